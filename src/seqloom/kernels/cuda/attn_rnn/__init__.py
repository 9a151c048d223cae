"""AttnRNN: Python that prepares and launches kernels, and the CUDA source beside it."""

"""AttnRNN: Python that prepares and launches, and the CUDA text beside it."""

"""Compile with NVRTC, launch kernels, record graphs; CUDA source that several kernels share."""

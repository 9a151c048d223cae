"""Compile with NVRTC, launch kernels, record graphs; CUDA text that several kernels share."""

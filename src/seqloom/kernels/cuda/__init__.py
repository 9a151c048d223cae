"""Kernels for NVIDIA GPUs, compiled when they are first used."""

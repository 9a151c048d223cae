"""Exact products of float32 matrices on tensor cores: launch code, and the CUDA text beside it."""

"""Full-precision products of float32 matrices on tensor cores: launch code, and the CUDA source beside it."""

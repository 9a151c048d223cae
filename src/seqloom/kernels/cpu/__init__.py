"""Kernels that run on the C++ engine in csrc/."""

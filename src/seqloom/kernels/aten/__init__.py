"""Kernels that call torch's own fused operators."""

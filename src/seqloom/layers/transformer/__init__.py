"""Transformer layers: the block, the stack, and conversion from torch."""

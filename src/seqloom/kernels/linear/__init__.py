"""Kernels of linear recurrences: a matrix state with decay, erase and write, and a diagonal state."""

"""Kernels that run a cell over a sequence: `loop.py` defines it, `registry.py` lists them, `dispatch.py` chooses."""

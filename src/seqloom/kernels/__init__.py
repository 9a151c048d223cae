"""Faster ways to run a cell over time. `loop.py` is the definition, `registry.py` lists all, `dispatch.py` chooses."""

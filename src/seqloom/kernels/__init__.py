"""Faster ways to run a cell over time, `<cell>_<backend>.py` each: `why_not()` and `run()`.

`any_loop` is the reference that all others are measured against. Files that start with an
underscore hold what several kernels share. `seqloom.kernel` chooses.
"""

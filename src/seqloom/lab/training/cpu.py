"""How small models are trained and timed on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def use_one_thread() -> Iterator[None]:
    """One thread, which small models are fastest with, and no denormals, which slow a CPU down."""
    threads, flushed = torch.get_num_threads(), are_denormals_flushed()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def are_denormals_flushed() -> bool:
    """Whether numbers too small for float32's exponent are zero on this thread: torch sets it, but does not tell."""
    return float(torch.tensor(1e-39) * 0.5) == 0

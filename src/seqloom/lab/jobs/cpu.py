"""Torch settings for training and timing small models on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Use a number of torch threads, None to change nothing, and flush denormals, which slow a CPU down."""
    threads, flushed = torch.get_num_threads(), are_denormals_flushed()
    if count is not None:
        torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def use_one_thread() -> AbstractContextManager[None]:
    """Use one torch thread, the fastest for small models, and flush denormals."""
    return use_threads(1)


def are_denormals_flushed() -> bool:
    """Return whether denormal float32 numbers are zero on this thread; torch has no getter for it."""
    return float(torch.tensor(1e-39) * 0.5) == 0

"""Work that runs beside other work on a GPU: the second direction of a layer, on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor


@contextmanager
def beside(x: Tensor) -> Iterator[AbstractContextManager[object]]:
    """What runs in the context that comes back does not wait for the rest of this one, whose end waits for it.

    One direction of a layer fills a fraction of a GPU. A backward runs where its forward did, so it gains too.
    `x` is there already, and is read by both.
    """
    if x.device.type != "cuda" or torch.compiler.is_compiling():
        yield nullcontext()
        return
    here = torch.cuda.current_stream(x.device)
    other = _second(here.device_index, here.stream_id)
    other.wait_stream(here)
    yield torch.cuda.stream(other)
    x.record_stream(other)
    here.wait_stream(other)


@cache
def _second(device: int, _of: int) -> torch.cuda.Stream:
    """For each stream one, or layers on different streams would wait for each other."""
    return torch.cuda.Stream(device)

"""Allocate uninitialised memory for kernels.

With the environment variable SEQLOOM_POISON=1, which tests set, such memory is filled with NaN, or with the largest
value of an integer type: a kernel that reads uninitialised memory then fails a test reliably. The engine fills its
memory, too (csrc/memory.hpp). Without the variable these functions are torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

IS_POISONED = os.environ.get("SEQLOOM_POISON") == "1"


def poison(t: Tensor) -> Tensor:
    """Fill a tensor with values that no result may depend on, and return it."""
    if t.is_meta:
        return t
    if t.is_floating_point() or t.is_complex():
        return t.fill_(torch.nan)
    return t.fill_(True if t.dtype == torch.bool else torch.iinfo(t.dtype).max)


def _poison_results(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that allocates and poisons."""

    @wraps(allocate)
    def allocate_poisoned(*args: object, **settings: object) -> Tensor:
        return poison(allocate(*args, **settings))

    return allocate_poisoned


empty: Callable[..., Tensor] = torch.empty
empty_like: Callable[..., Tensor] = torch.empty_like
new_empty: Callable[..., Tensor] = Tensor.new_empty  # type and device of the first argument, a tensor
if IS_POISONED:
    empty, empty_like, new_empty = map(_poison_results, (empty, empty_like, new_empty))

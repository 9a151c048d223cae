"""Allocate memory whose values are not set, for kernels.

With the environment variable SEQLOOM_POISON=1, a switch for tests, such memory is filled with NaN, or with the largest
number of an integer type: a kernel that reads what nothing wrote then fails a test instead of depending on luck. The
engine fills its own memory, too (csrc/memory.hpp). Without the switch these functions are torch's own.
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
new_empty: Callable[..., Tensor] = Tensor.new_empty  # of a tensor, which is the first argument
if IS_POISONED:
    empty, empty_like, new_empty = map(_poison_results, (empty, empty_like, new_empty))

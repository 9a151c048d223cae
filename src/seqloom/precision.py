"""Types of numbers: what autocast asks for, and what new parameters get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """The type that autocast runs products in on this kind of device, None where it is off."""
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


@contextmanager
def made_on(device: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Parameters made inside are on this device, of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device if device is not None else torch.get_default_device()):
            yield
    finally:
        torch.set_default_dtype(before)

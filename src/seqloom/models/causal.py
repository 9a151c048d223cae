"""What a layer must be like to foresee the next token."""

from __future__ import annotations

from torch import nn

from seqloom.core.errors import UserError


def check_causal(layer: nn.Module, who: str) -> None:
    """A layer that foresees must not look ahead."""
    if not getattr(layer, "batch_first", True):
        raise UserError(f"{who} takes a layer with batch_first=True")
    if getattr(layer, "bidirectional", False) or not getattr(layer, "causal", True):
        raise UserError(f"{who} takes a layer that does not look ahead: bidirectional=False, or causal=True")


def check_width(layer: nn.Module, width: int, why: str) -> None:
    """The layer takes what it will be given."""
    takes = getattr(layer, "input_size", width)
    if takes != width:
        raise UserError(f"the layer takes inputs of {takes}, but will be given {width} ({why})")

"""Checks that several models share: ids, and whether parts fit together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError, UserTypeError


def check_ids(ids: Tensor, size: int, what: str, first: int = 0) -> None:
    """Raise an error if an id is not among the `size` ids from `first` on."""
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise InputError(f"{what} must be whole numbers, got {ids.dtype}; convert them with .long()")
    if not can_check(ids):
        return
    wrong = (ids < first) | (ids >= first + size)
    if bool(wrong.any()):
        place = tuple(int(i) for i in wrong.nonzero()[0])
        raise InputError(
            f"{what} must lie between {first} and {first + size - 1} (a vocabulary of {size}), "
            f"got {int(ids[place])} at {place}"
        )


def can_check(x: Tensor) -> bool:
    """Return whether values can be checked: not on a GPU, where it would synchronise, nor while a graph is traced."""
    plain = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    return x.device.type == "cpu" and plain


def read_size(part: nn.Module, attribute: str, argument: str) -> int:
    """Return the size of a part of a model.

    Args:
        part: A layer or an embedding.
        attribute: "input_size" or "output_size".
        argument: The argument of the model that holds the part.

    Raises:
        UserTypeError: If the part has no such attribute.
    """
    size = getattr(part, attribute, None)
    if not isinstance(size, int):
        raise UserTypeError(
            f"{argument} must be a module with the attribute {attribute}, such as a layer of seqloom, "
            f"got a {type(part).__name__}"
        )
    return size


def check_fits(layer: nn.Module, model: str, *before: nn.Module | None) -> None:
    """Raise an error unless the layer takes (B, T, D) with D features from the parts before it."""
    if not getattr(layer, "batch_first", True):
        raise UserError(f"{model} takes a layer with batch_first=True")
    widths = [read_size(part, "output_size", "embed") for part in before if part is not None]
    if widths and sum(widths) != read_size(layer, "input_size", "layer"):
        raise UserError(
            f"the embedding has {' + '.join(map(str, widths))} features, the layer has input_size={layer.input_size}"
        )


def check_causal(layer: nn.Module, who: str) -> None:
    """Raise an error if a layer that predicts the next step looks ahead."""
    if not getattr(layer, "batch_first", True):
        raise UserError(f"{who} takes a layer with batch_first=True")
    if getattr(layer, "bidirectional", False) or not getattr(layer, "causal", True):
        raise UserError(f"{who} takes a layer that does not look ahead: bidirectional=False, or causal=True")


def check_width(layer: nn.Module, width: int, why: str) -> None:
    """Raise an error unless the layer's input has this width."""
    takes = getattr(layer, "input_size", width)
    if takes != width:
        raise UserError(f"the layer takes inputs of {takes}, but will receive {width} ({why})")

"""The memory layout that cuDNN needs for weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.backends.cudnn import rnn

from seqloom.core.cell import Cell

ALIGNMENT = 16  # elements: cuDNN may leave gaps up to this size between two weights


def parameter_names(cell: Cell) -> list[str]:
    """Return the names of the cell's parameters in the order of torch's functions."""
    order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return [n for n in order if getattr(cell, n, None) is not None]


def join_memory(cell: Cell, mode: str, weights: list[Tensor]) -> list[Tensor]:
    """Return the weights in one contiguous piece of GPU memory, copying them if necessary.

    cuDNN would copy them too at every call, with a warning.
    """
    if not (weights[0].is_cuda and torch.backends.cudnn.enabled):
        return weights
    if has_one_storage(weights) and _are_neighbours(weights):
        return weights
    copies = [w.clone() for w in weights]
    flatten_weights(cell, mode, copies)
    return copies


def has_one_storage(weights: Sequence[Tensor]) -> bool:
    """Return whether all weights lie in one piece of memory."""
    return len({w.untyped_storage().data_ptr() for w in weights}) == 1


def _are_neighbours(weights: Sequence[Tensor]) -> bool:
    """Return whether weights fill the start of their storage: those of one cell do, those of a stack do not."""
    places = sorted((w.storage_offset(), w.storage_offset() + w.numel()) for w in weights)
    return places[0][0] == 0 and all(begin <= end + ALIGNMENT for (_, end), (begin, _) in pairwise(places))


def flatten_weights(cell: Cell, mode: str, weights: list[Tensor], more: int = 0) -> None:
    """Move tensors into one piece of memory, laid out for cuDNN, for `more` input features than the cell has."""
    proj, code = getattr(cell, "proj_size", 0), rnn.get_cudnn_mode(mode)
    count, width = len(weights), cell.input_size + more
    torch._cudnn_rnn_flatten_weight(weights, count, width, code, cell.hidden_size, proj, 1, True, False)


def cudnn_mode(cell: Cell) -> str:
    """Return cuDNN's name for a cell; "" if it has none."""
    return {"rnn": f"RNN_{getattr(cell, 'nonlinearity', '').upper()}", "lstm": "LSTM", "gru": "GRU"}.get(cell.name, "")


@torch.no_grad()
def flatten_parameters(cells: Sequence[Cell], ways: int) -> None:
    """Move the parameters of a stack that cuDNN supports into one piece of memory, permanently.

    Args:
        cells: Layer by layer, with `ways` cells per layer.
        ways: Directions, 1 or 2.
    """
    mode, first = cudnn_mode(cells[0]), cells[0]
    if mode not in ("GRU", "LSTM", "RNN_TANH", "RNN_RELU") or not torch.backends.cudnn.enabled:
        return
    own = [getattr(cell, name) for cell in cells for name in parameter_names(cell)]
    if not all(type(p) is torch.nn.Parameter and p.is_cuda for p in own):
        return
    kinds = {(p.dtype, p.device) for p in own}
    if len(kinds) > 1 or len({p.data_ptr() for p in own}) < len(own) or len({_describe(cell) for cell in cells}) > 1:
        return
    proj, code = getattr(first, "proj_size", 0), rnn.get_cudnn_mode(mode)
    sizes = len(own) // len(cells), first.input_size, code, first.hidden_size, proj, len(cells) // ways
    with torch.cuda.device_of(own[0]):
        torch._cudnn_rnn_flatten_weight(own, *sizes, True, ways == 2)


def _describe(cell: Cell) -> tuple[object, ...]:
    """Return the properties that cuDNN requires to be equal in all cells of a stack."""
    return cudnn_mode(cell), cell.hidden_size, getattr(cell, "proj_size", 0), len(parameter_names(cell))

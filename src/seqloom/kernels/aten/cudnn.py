"""The memory that cuDNN wants weights in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.backends.cudnn import rnn

from seqloom.core.cell import Cell


def parameter_names(cell: Cell) -> list[str]:
    """The cell's parameters in the order that torch's functions take them."""
    order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return [n for n in order if getattr(cell, n, None) is not None]


def join_memory(cell: Cell, mode: str, weights: list[Tensor]) -> list[Tensor]:
    """On a GPU, weights in one piece of memory: as they are if they are, else copies.

    cuDNN would copy them at every call too, and complain.
    """
    if not (weights[0].is_cuda and torch.backends.cudnn.enabled):
        return weights
    if len({w.untyped_storage().data_ptr() for w in weights}) == 1:
        return weights
    copies = [w.clone() for w in weights]
    flatten_weights(cell, mode, copies)
    return copies


def flatten_weights(cell: Cell, mode: str, weights: list[Tensor], more: int = 0) -> None:
    """Move the memory of these tensors into one piece, laid out for cuDNN; `more` features than the cell takes."""
    proj, code = getattr(cell, "proj_size", 0), rnn.get_cudnn_mode(mode)
    count, width = len(weights), cell.input_size + more
    torch._cudnn_rnn_flatten_weight(weights, count, width, code, cell.hidden_size, proj, 1, True, False)


def cudnn_mode(cell: Cell) -> str | None:
    """cuDNN's name for a cell that it has."""
    return {"rnn": f"RNN_{getattr(cell, 'nonlinearity', '').upper()}", "lstm": "LSTM", "gru": "GRU"}.get(cell.name)


@torch.no_grad()
def flatten_parameters(cell: Cell) -> None:
    """Lay the parameters of a cell that cuDNN knows out in one piece, for good."""
    mode = cudnn_mode(cell)
    if mode is None or mode not in ("GRU", "LSTM", "RNN_TANH", "RNN_RELU"):
        return
    own = [getattr(cell, name) for name in parameter_names(cell)]
    if not all(type(p) is torch.nn.Parameter and p.is_cuda for p in own) or not torch.backends.cudnn.enabled:
        return
    alike = {(p.dtype, p.device) for p in own}
    if len(alike) == 1 and len({p.data_ptr() for p in own}) == len(own):
        with torch.cuda.device_of(own[0]):
            flatten_weights(cell, mode, own)

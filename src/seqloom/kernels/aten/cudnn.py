"""The memory layout that cuDNN needs for weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.backends.cudnn import rnn

from seqloom.core.cell import Cell


def parameter_names(cell: Cell) -> list[str]:
    """Return the names of the cell's parameters in the order of torch's functions."""
    order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return [n for n in order if getattr(cell, n, None) is not None]


def join_memory(cell: Cell, mode: str, weights: list[Tensor]) -> list[Tensor]:
    """Return the weights in one piece of memory on a GPU; copy them if they are not.

    cuDNN would copy them too at every call, with a warning.
    """
    if not (weights[0].is_cuda and torch.backends.cudnn.enabled):
        return weights
    if len({w.untyped_storage().data_ptr() for w in weights}) == 1:
        return weights
    copies = [w.clone() for w in weights]
    flatten_weights(cell, mode, copies)
    return copies


def flatten_weights(cell: Cell, mode: str, weights: list[Tensor], more: int = 0) -> None:
    """Move tensors into one piece of memory, laid out for cuDNN, for `more` input features than the cell has."""
    proj, code = getattr(cell, "proj_size", 0), rnn.get_cudnn_mode(mode)
    count, width = len(weights), cell.input_size + more
    torch._cudnn_rnn_flatten_weight(weights, count, width, code, cell.hidden_size, proj, 1, True, False)


def cudnn_mode(cell: Cell) -> str:
    """Return cuDNN's name for a cell; "" if it has none."""
    return {"rnn": f"RNN_{getattr(cell, 'nonlinearity', '').upper()}", "lstm": "LSTM", "gru": "GRU"}.get(cell.name, "")


@torch.no_grad()
def flatten_parameters(cell: Cell) -> None:
    """Move the parameters of a cell that cuDNN supports into one piece of memory, permanently."""
    mode = cudnn_mode(cell)
    if mode not in ("GRU", "LSTM", "RNN_TANH", "RNN_RELU"):
        return
    own = [getattr(cell, name) for name in parameter_names(cell)]
    if not all(type(p) is torch.nn.Parameter and p.is_cuda for p in own) or not torch.backends.cudnn.enabled:
        return
    kinds = {(p.dtype, p.device) for p in own}
    if len(kinds) == 1 and len({p.data_ptr() for p in own}) == len(own):
        with torch.cuda.device_of(own[0]):
            flatten_weights(cell, mode, own)

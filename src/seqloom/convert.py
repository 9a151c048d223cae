"""Swap the recurrent layers inside a model for seqloom's."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from seqloom.layers.named import GRU, LSTM, RNN
from seqloom.layers.recurrent import Recurrent

Module = TypeVar("Module", bound=nn.Module)


def convert(model: nn.Module, kernel: str = "auto") -> nn.Module:
    """Replace every torch.nn.RNN, LSTM and GRU by seqloom's, in place; returns the model.

    The parameters are the same objects, so an optimiser made before goes on working. A model
    that is itself such a layer comes back as a new one.
    """
    if type(model) in (nn.RNN, nn.LSTM, nn.GRU):
        return _one(model, kernel)  # type: ignore[arg-type]
    done: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.RNN, nn.LSTM, nn.GRU):
                done.setdefault(child, _one(child, kernel))  # type: ignore[arg-type]
                setattr(parent, name, done[child])
    return model


def _one(old: nn.RNNBase, kernel: str) -> Recurrent:
    common = dict(
        num_layers=old.num_layers,
        bias=old.bias,
        batch_first=old.batch_first,
        dropout=old.dropout,
        bidirectional=old.bidirectional,
        device="meta",
        kernel=kernel,
    )
    new: Recurrent
    if isinstance(old, nn.LSTM):
        new = LSTM(old.input_size, old.hidden_size, proj_size=old.proj_size, **common)
    elif isinstance(old, nn.RNN):
        new = RNN(old.input_size, old.hidden_size, nonlinearity=old.nonlinearity, **common)
    else:
        new = GRU(old.input_size, old.hidden_size, **common)
    for name, parameter in old.named_parameters():
        setattr(new, name, parameter)
    return new.train(old.training)

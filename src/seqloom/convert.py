"""Swap the recurrent layers inside a model for seqloom's."""

from __future__ import annotations

from torch import nn

from seqloom.layers.named import GRU, LSTM, RNN
from seqloom.layers.recurrent import Recurrent


def convert(model: nn.Module, kernel: str = "auto") -> nn.Module:
    """Replace every torch.nn.RNN, LSTM and GRU by seqloom's, in place; returns the model.

    The parameters are the same objects, so an optimiser made before goes on working. A model
    that is itself such a layer comes back as a new one. A layer with hooks, or whose weights are
    computed (weight_norm, parametrizations), is refused: convert first, then add them.
    """
    new = {old: _one(path, old, kernel) for path, old in model.named_modules() if _plain(old)}
    if model in new:
        return new[model]
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in new:
                parent._modules[name] = new[child]
    return model


def _plain(module: nn.Module) -> bool:
    """torch's own layer; somebody's subclass has a reason to be one and stays."""
    return type(module) in (nn.RNN, nn.LSTM, nn.GRU) or (
        hasattr(module, "parametrizations") and isinstance(module, nn.RNNBase)
    )


def _one(path: str, old: nn.RNNBase, kernel: str) -> Recurrent:
    computed = hasattr(old, "parametrizations") or len(old._parameters) != len(old._flat_weights_names)
    if computed or old._forward_hooks or old._forward_pre_hooks or old._backward_hooks:
        raise ValueError(
            f"convert: {path or 'model'} ({type(old).__name__}) has hooks or computed weights; convert, then add them"
        )
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
    for name, parameter in old.named_parameters(remove_duplicate=False):
        setattr(new, name, parameter)
    return new.train(old.training)

"""Swap the recurrent layers inside a model: torch.nn's for seqloom's, or back."""

from __future__ import annotations

import warnings
from typing import Any, Literal, TypeVar, cast

from torch import nn

from seqloom.core.errors import UserError
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.named import GRU, LSTM, RNN
from seqloom.layers.recurrent.layer import Recurrent

TORCH: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
Layer = TypeVar("Layer", Recurrent, nn.RNNBase)


def convert(model: nn.Module, kernel: str = "auto", *, to: Literal["seqloom", "torch"] = "seqloom") -> nn.Module:
    """Replace every recurrent layer of a model, in place.

    The parameters remain the same objects, so an existing optimiser keeps working. If the model itself is such a layer,
    a new layer is returned. Subclasses of torch's layers, which may compute something else, and cells such as
    torch.nn.LSTMCell remain; a UserWarning names them.

    Args:
        model: Any module that holds torch.nn.RNN, LSTM or GRU (or seqloom's, with `to="torch"`).
        kernel: The kernel of the new seqloom layers.
        to: "seqloom", or "torch" for the backward pass, for tools that know only torch.nn's classes, such as
            torch.ao.quantization.

    Returns:
        The model.

    Raises:
        ValueError: If a layer has hooks, or weights that are computed (weight_norm, parametrizations):
            convert first, then add them. With `to="torch"`, if torch.nn has no such layer.

    Example:
        >>> import torch, seqloom
        >>> model = torch.nn.ModuleDict({"rnn": torch.nn.GRU(4, 8)})
        >>> type(seqloom.convert(model)["rnn"]).__module__
        'seqloom.layers.named'
    """
    if to not in ("seqloom", "torch"):
        raise UserError(f"to must be 'seqloom' or 'torch', got {to!r}")
    new: dict[nn.Module, nn.Module] = {}
    left: list[str] = []
    for path, old in model.named_modules():
        if to == "seqloom" and _is_torch_layer(old):
            new[old] = _to_seqloom(path, cast(nn.RNNBase, old), kernel)
        elif to == "seqloom" and isinstance(old, (nn.RNNBase, nn.RNNCellBase)):
            left.append(f"{path or 'model'} ({type(old).__name__})")
        elif to == "torch" and isinstance(old, Recurrent):
            new[old] = _to_torch(path, old)
    if left:
        warnings.warn(
            f"convert: not replaced: {', '.join(left)}; it replaces torch.nn.RNN, LSTM and GRU themselves, "
            "not subclasses or cells of one step",
            stacklevel=2,
        )
    if model in new:
        return new[model]
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in new:
                parent._modules[name] = new[child]
    return model


def _is_torch_layer(module: nn.Module) -> bool:
    """Return whether a module is one of torch's layers; subclasses may behave differently and are not converted."""
    return type(module) in (nn.RNN, nn.LSTM, nn.GRU) or (
        hasattr(module, "parametrizations") and isinstance(module, nn.RNNBase)
    )


def _to_seqloom(path: str, old: nn.RNNBase, kernel: str) -> Recurrent:
    computed = hasattr(old, "parametrizations") or len(old._parameters) != len(old._flat_weights_names)
    if computed or old._forward_hooks or old._forward_pre_hooks or old._backward_hooks:
        raise UserError(
            f"convert: {path or 'model'} ({type(old).__name__}) has hooks or computed weights; convert, then add them"
        )
    common = _read_settings(old) | {"kernel": kernel}
    new: Recurrent
    if isinstance(old, nn.LSTM):
        new = LSTM(old.input_size, old.hidden_size, proj_size=old.proj_size, **common)
    elif isinstance(old, nn.RNN):
        new = RNN(old.input_size, old.hidden_size, nonlinearity=old.nonlinearity, **common)
    else:
        new = GRU(old.input_size, old.hidden_size, **common)
    return _share_weights(new, old)


def _to_torch(path: str, old: Recurrent) -> nn.RNNBase:
    """Return the torch.nn layer with the same parameters."""
    cell = old.cell_at(0)
    if cell.name not in TORCH:
        reason = f"torch.nn has no {cell.name or type(cell).__name__}"
    elif getattr(cell, "learned_states", 0):
        reason = "it learns its initial state"
    elif not getattr(cell, "reset_after", True):
        reason = "it has reset_after=False"
    elif (old.residual or old.stack_norm is not None) and old.num_layers > 1:
        reason = "it has residuals or norms between layers"
    elif old.dropouts != Dropouts():
        reason = f"it has {old.dropouts}"
    elif hasattr(old, "parametrizations") or old._forward_hooks or old._forward_pre_hooks or old._backward_hooks:
        reason = "it has hooks or computed weights"
    else:
        reason = ""
    if reason:
        raise UserError(f"convert: {path or 'model'} ({type(old).__name__}) cannot become a torch.nn layer: {reason}")
    more = {"proj_size": old.proj_size} if cell.name == "lstm" else {}
    more |= {"nonlinearity": cell.nonlinearity} if cell.name == "rnn" else {}
    new: nn.RNNBase = TORCH[cell.name](old.input_size, old.hidden_size, **_read_settings(old), **more)
    _share_weights(new, old).flatten_parameters()
    return new


def _read_settings(old: nn.RNNBase | Recurrent) -> dict[str, Any]:
    """Return the settings that the layers of both libraries have."""
    names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
    return {name: getattr(old, name) for name in names} | {"device": "meta"}


def _share_weights(new: Layer, old: nn.Module) -> Layer:
    for name, parameter in old.named_parameters(remove_duplicate=False):
        setattr(new, name, parameter)
    return new.train(old.training)

"""A model's weights as a flat dict for a file: each tensor once, whatever names share it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from seqloom.core.errors import UserError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor; of tied weights the first name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy into the model; every name must be there, of the same shape, and no other."""
    check_weights(model, tensors)
    model.load_state_dict(dict(tensors), strict=False)  # not strict: the other names of tied weights


def check_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError where the names or the shapes of the tensors are not those of the model's weights."""
    own = weights_of(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise UserError(f"the weights are not those of this model: {odd!r} is in one of them alone")
    for name, w in own.items():
        if w.shape != tensors[name].shape:
            there, here = tuple(tensors[name].shape), tuple(w.shape)
            raise UserError(f"the weights are not those of this model: {name!r} is {there} in the file, not {here}")

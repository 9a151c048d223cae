"""A cell's weights as a mapping, and views of a cell that use other weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, TypeVar, cast

from torch import Tensor, nn
from torch.nn import Parameter

from seqloom.core.cell import Cell
from seqloom.core.checks import resolve
from seqloom.core.errors import InputError

_NOTHING: dict[str, Any] = {}
Module = TypeVar("Module", bound=nn.Module)


def restore_parameters(module: nn.Module) -> None:
    """Let a replica of torch.nn.DataParallel list its parameters, which torch leaves as plain attributes."""
    if "_is_replica" not in module.__dict__:
        return
    for each in module.modules():
        own = each.__dict__
        for name, copied in own.pop("_former_parameters", _NOTHING).items():
            own.pop(name, None)
            own["_parameters"][name] = copied


def take_cells(layer: nn.Module) -> list[Cell]:
    """Give a shallow copy of a layer, such as a replica of torch.nn.DataParallel, cells that read its own weights.

    Args:
        layer: A layer whose `cells` refer to the layer that it was copied from. They do not change.

    Returns:
        The new cells: views that use what was compiled for the original cells.
    """
    restore_parameters(layer)
    before = cast(nn.ModuleList, layer.cells)
    cells, taken = copy.copy(before), []
    for cell in cast(Iterable[Cell], before):
        view = copy.copy(cell)
        view.handle = cell.handle
        view.__dict__["_home"] = layer
        taken.append(view)
    cells._modules = {str(i): view for i, view in enumerate(taken)}
    layer._modules = {**layer._modules, "cells": cells}  # the layer that was copied may have the same dict
    return taken


def weights(cell: Cell) -> dict[str, Tensor]:
    """Return every tensor that a step of this cell may read, by its name in the cell."""
    own = [*cell.__dict__.get("_names", ())]
    for tensors in (cell.named_parameters, cell.named_buffers):
        own += dict(tensors(remove_duplicate=False))  # a view of the cell must replace a tied tensor everywhere
    return {name: reduce(getattr, name.split("."), cell) for name in own}  # type: ignore[misc]


def read_tensors(cell: Cell, names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors of a cell by name; a dot separates submodules. Runs in every call of a layer."""
    adopted = cell.__dict__.get("_names", _NOTHING)
    held = cell.__dict__["_home"].__dict__["_parameters"] if adopted else _NOTHING
    tensors: dict[str, Tensor] = {}
    for name in names:
        *path, last = name.split(".")
        module: nn.Module | None = cell
        for child in path:
            module = module and module.__dict__["_modules"].get(child)
        own = _NOTHING if module is None else module.__dict__
        t = own.get(last)
        if t is None:
            t = held.get(adopted[name]) if name in adopted else own["_parameters"].get(last) if own else None
        tensors[name] = reduce(getattr, name.split("."), cell) if t is None else t  # type: ignore[assignment]
    return tensors


def resolve_weights(cell: Cell) -> Cell:
    """Return a cell whose weights kernels can read by address: of their original shapes and in plain memory.

    Raises:
        InputError: If a weight's shape was changed, as by `layer.weight_hh_l0 = nn.Parameter(...)`.
    """
    own, resolved = cell.__dict__, {}
    known, names, home = own.get("_known", _NOTHING), own.get("_names", _NOTHING), own.get("_home", cell)
    parameters = home.__dict__["_parameters"]
    for name, shape in own.get("_shapes", _NOTHING).items():
        w = own.get(name)
        if w is None:
            w = parameters.get(names.get(name, name))
        if w is None:  # computed, as by torch.nn.utils.parametrize
            w = getattr(cell, name)
        place = (id(w), w.data_ptr()) if type(w) is Parameter else None
        if place and known.get(name) == place and w.shape == shape and not w.is_neg():
            continue  # checked in an earlier call; resizing the storage would have moved it
        label = names.get(name, name)
        if w.shape != shape:
            raise InputError(f"{label} must have shape {tuple(shape)}, got {tuple(w.shape)}; assign one of that shape")
        plain = resolve(w, label)
        if plain is not w:
            resolved[name] = plain
        elif place:
            known[name] = place
    if not resolved:
        return cell
    view = bind_weights(cell, resolved)
    view.handle = cell.handle
    return view


def bind_weights(module: Module, values: Mapping[str, Tensor]) -> Module:
    """Return a view of a module in which the named tensors replace its own.

    The module does not change, so threads and nested calls do not disturb each other.

    Args:
        module: A module, such as a cell.
        values: Tensors by parameter name; a dot separates submodules.
    """
    view = copy.copy(module)
    own = {name: t for name, t in values.items() if "." not in name}
    view.__dict__.update(own)  # Python looks up attributes before torch looks up parameters
    below = {name.split(".", 1)[0] for name in values if "." in name}
    if below:
        view.__dict__["_modules"] = dict(module._modules)
        for child in below:
            part = {n[len(child) + 1 :]: t for n, t in values.items() if n.startswith(child + ".")}
            view._modules[child] = bind_weights(module._modules[child], part)  # type: ignore[type-var]
    return view

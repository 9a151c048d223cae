"""Extend griffe, which reads the docstrings for the reference.

Renders `Example:` as code, and gives each recurrent layer the arguments that it passes on to `Recurrent`: in the place
of `**options`, the entry of `GRU` shows all of them.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import griffe

from research.pages.arguments import complete_arguments, read_arguments

# griffe knows the section "Examples:" only; "Example:" would become text, with >>> as quotations.
EXAMPLE = re.compile(r"^( *)Example:$", re.M)
LAYERS, BASE, OPTIONS = "layers.named", "layers.recurrent.layer.Recurrent", "layers.dropouts"


class Examples(griffe.Extension):
    """Read the section `Example:` of a docstring as `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)


class Arguments(griffe.Extension):
    """Write the arguments of `Recurrent` into the entries of its subclasses."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "seqloom":
            return
        base, options = pkg[BASE], pkg[OPTIONS]
        for layer in pkg[LAYERS].classes.values():
            if not layer.is_alias and layer.docstring is not None:
                complete_class(layer, base, options)


def complete_class(layer: griffe.Class, base: griffe.Class, options: griffe.Module) -> None:
    """Expand `**options` of a layer's signature, and document every argument."""
    start = layer["__init__"]
    passed = start.parameters["options"]
    kind = options[re.search(r"\[(\w+)\]", str(passed.annotation))[1]]  # of Unpack[HeadsOptions]
    names = [name for parent in (*reversed(kind.mro()), kind) for name in parent.attributes]
    theirs = base["__init__"].parameters
    start.parameters = griffe.Parameters(
        *(parameter for parameter in start.parameters if parameter is not passed),
        *(copy.copy(theirs[name]) for name in dict.fromkeys(names)),
    )
    order = [parameter.name for parameter in start.parameters if parameter.name != "self"]
    layer.docstring.value = complete_arguments(layer.docstring.value, read_arguments(base.docstring.value), order)

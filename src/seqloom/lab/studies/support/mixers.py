"""Linear recurrences as models of a study."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from seqloom.core.errors import UserError
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.transformer.layer import Transformer

HEADS = 4
NEGATIVE = " negative"  # after the name of a linear recurrence: its transition has negative eigenvalues too


def is_linear(model: str) -> bool:
    """Return whether this is the name of a linear recurrence, such as "gated_deltanet negative"."""
    return model.removesuffix(NEGATIVE) in Mixer.registry


def make_linear(model: str, hidden: int, layers: int = 1) -> Transformer:
    """Return a stack of causal blocks with a linear recurrence in place of attention.

    Args:
        model: Its name. With the word "negative" after it, its delta rule may have negative eigenvalues.
        hidden: Features of a step.
        layers: Number of blocks.

    Raises:
        UserError: If "negative" was asked of a recurrence that cannot have negative eigenvalues.
    """
    kind = Mixer.registry[model.removesuffix(NEGATIVE)]
    settings: dict[str, Any] = {}
    if "negative_eigenvalues" in inspect.signature(kind).parameters:
        settings["negative_eigenvalues"] = model.endswith(NEGATIVE)
    elif model.endswith(NEGATIVE):
        raise UserError(f"{model.removesuffix(NEGATIVE)} has no setting for negative eigenvalues")
    return Transformer(hidden, HEADS, layers, causal=True, attention=partial(kind, **settings))

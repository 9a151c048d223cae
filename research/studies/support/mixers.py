"""Linear recurrences as models of a study."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from seqloom.core.errors import UserError
from seqloom.layers.linear.deltanet import DeltaNet
from seqloom.layers.linear.deltaproduct import DeltaProduct
from seqloom.layers.linear.gated_deltanet import GatedDeltaNet
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.linear.mamba2 import Mamba2
from seqloom.layers.transformer.layer import Transformer

HEADS = 4
WRITES = 4  # of DeltaProduct for each input: enough for the permutations of five things
GATED = (GatedDeltaNet, DeltaProduct, Mamba2)  # their decay is exp(-exp(A) softplus(W x + b))
DELTA = (DeltaNet, GatedDeltaNet, DeltaProduct)  # with a rate beta = sigmoid(W_b x) of every write
NEGATIVE = " negative"  # after the name of a linear recurrence: its transition has negative eigenvalues too


def is_linear(model: str) -> bool:
    """Return whether this is the name of a linear recurrence, such as "gated_deltanet negative"."""
    return model.removesuffix(NEGATIVE) in Mixer.registry


def make_linear(model: str, hidden: int, num_layers: int = 1, start: str = "default") -> Transformer:
    """Return a stack of causal blocks with a linear recurrence in place of attention.

    Args:
        model: Its name. With the word "negative" after it, its delta rule may have negative eigenvalues.
        hidden: Features of a step.
        num_layers: Number of blocks.
        start: "default", or "keep n", so that a delta rule starts with a long memory: the decay of every head is
            sigmoid(n) for a step with W x = 0, and W_b is n times as large, so that beta is nearer to its ends.

    Raises:
        UserError: If "negative" was asked of a recurrence that cannot have negative eigenvalues.
    """
    kind = Mixer.registry[model.removesuffix(NEGATIVE)]
    settings: dict[str, Any] = {}
    if "negative_eigenvalues" in inspect.signature(kind).parameters:
        settings["negative_eigenvalues"] = model.endswith(NEGATIVE)
    elif model.endswith(NEGATIVE):
        raise UserError(f"{model.removesuffix(NEGATIVE)} has no setting for negative eigenvalues")
    if kind is DeltaProduct:
        settings["writes"] = WRITES
    stack = Transformer(hidden, HEADS, num_layers, causal=True, attention=partial(kind, **settings))
    if start != "default":
        n = float(start.removeprefix("keep "))
        rate = -F.logsigmoid(torch.tensor(n))
        for part in stack.modules():
            if isinstance(part, GATED):
                part.A.data = (rate / F.softplus(part.b.detach())).log()
            if isinstance(part, DELTA):
                part.W_b.weight.data *= n
    return stack

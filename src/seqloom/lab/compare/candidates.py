"""The models that are compared, by the kind of the task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.lab.cell_names import find_cells
from seqloom.layers import registry

ALL = "all"
# The first ones stay when time is short: a fast one of every family, then their relatives.
AHEAD = (
    "gru",
    "bi_gru",
    "attn_rnn",
    "tcn",
    "lstm",
    "bi_transformer:2",
    "rnn",
    "bi_lstm",
    "bi_attn_rnn",
    "gru:2",
    "attn_rnn:2",
    "bi_hybrid",
    "bi_linear_transformer:2",
    "bi_local_transformer:2",
)
CAUSAL = (
    "gru",
    "attn_rnn",
    "tcn",
    "lstm",
    "transformer:2",
    "rnn",
    "gru:2",
    "attn_rnn:2",
    "lstm:2",
    "hybrid",
    "linear_transformer:2",
    "local_transformer:2",
)
PAIRS = ("gru", "attn_rnn", "lstm", "transformer:2", "rnn", "gru:2", "tcn", "hybrid", "linear_transformer:2")
BOTH_WAYS = ("bi_gru", "bi_attn_rnn", "bi_lstm")  # a tag depends on what follows, too
TAG = (*BOTH_WAYS, *(name for name in AHEAD if name not in BOTH_WAYS))
KINDS = {"tag": TAG, "generate": CAUSAL, "forecast": CAUSAL, "translate": PAIRS}  # of the rest, AHEAD
REACH = 4  # steps that a TCN of one block adds to each side of its reach: 1 + 4 (2^layers - 1)
ATTENTION = ("transformer", "performer", "linformer", "hybrid", "rnn_attend")


@dataclass(frozen=True)
class Candidate:
    """A layer by name, and how many of it stand on each other. `name` is what --models takes."""

    model: str
    layers: int = 1

    @property
    def name(self) -> str:
        return self.model if self.layers == 1 else f"{self.model}:{self.layers}"

    def label(self, hidden: int) -> str:
        """For a table: attn_rnn 2x128."""
        return f"{self.model.rpartition('/')[2]} {self.layers}x{hidden}"

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates, the likeliest first."""
        if any(part in self.model for part in ATTENTION):
            return (1e-3, 3e-3, 3e-4)
        return (3e-3, 1e-3, 1e-2)


def candidates(kind: str, names: Sequence[str] = (), steps: int = 100) -> list[Candidate]:
    """Those of this kind, or those that are named; `steps` is how long a usual sequence is.

    A name is a layer's (`seqloom list layers`), or path/to/file.py:MyCell; ":2" behind it makes two layers.
    """
    wanted = tuple(names) or KINDS.get(kind, AHEAD)
    if wanted == (ALL,):
        causal = kind in KINDS
        wanted = tuple(name for name in registry.list_names() if not (causal and name.startswith(registry.BI_PREFIX)))
    found = [_parsed(name, steps) for name in wanted]
    return list(dict.fromkeys(found))


def _parsed(name: str, steps: int) -> Candidate:
    model, _, layers = name.strip().rpartition(":")
    if not layers.isdigit():
        model, layers = name.strip(), ""
    if layers and not int(layers):
        raise UserError(f"model {name!r}: a model has at least one layer")
    place, _, cell = model.rpartition(".py:")
    if place:
        find_cells([model.removeprefix(registry.BI_PREFIX)])
        bare = place.removeprefix(registry.BI_PREFIX)
        both = registry.BI_PREFIX if bare != place else ""
        model = f"{both}{Path(bare + '.py').absolute()}:{cell}"
    else:
        registry.find(model)
    if model == "tcn" and not layers:
        return Candidate(model, max(2, min(8, math.ceil(math.log2((steps - 1) / REACH + 1)))))
    return Candidate(model, int(layers or 1))

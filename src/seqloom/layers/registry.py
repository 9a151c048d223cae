"""Every layer by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from seqloom.cells.lookup import split_name
from seqloom.core import renamed
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.plurals import list_some, shorten
from seqloom.core.suggest import suggest
from seqloom.layers import linear  # noqa: F401  (fills Mixer.registry)
from seqloom.layers.hybrid import ConvRNN, Hybrid, RNNThenAttention
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.memory import MemoryTransformer, TransformerXL
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.tcn import TCN
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Projected, Transformer

BI_PREFIX = "bi_"  # before a name: the variant that also looks ahead
NOT_CAUSAL = {"causal": False}


@dataclass(frozen=True)
class LayerEntry:
    """How to build a layer."""

    kind: Callable[..., nn.Module]
    settings: dict[str, Any] = field(default_factory=dict)
    ahead: dict[str, Any] | None = None  # further settings of the variant that looks ahead; None if there is none
    needs_projection: bool = False  # input and output have the same width, so the input must be projected to it
    description: str = ""  # default: the first line of the class's docstring


def _transformer(attention: str, position: str, feature: str, causal: bool = True) -> LayerEntry:
    settings = {"attention": attention, "position": position, "causal": causal}
    return LayerEntry(
        Transformer,
        settings,
        NOT_CAUSAL if causal else None,
        needs_projection=True,
        description=f"Transformer with {feature}.",
    )


def _linear(name: str, kind: type[Mixer]) -> LayerEntry:
    title = (kind.__doc__ or "").strip().partition("\n")[0]
    settings = {"attention": name, "position": None, "causal": True}
    return LayerEntry(Transformer, settings, needs_projection=True, description=title)


LAYERS = {
    "tcn": LayerEntry(TCN),
    "transformer": _transformer("dense", "rotary", "attention to all earlier steps"),
    "local_transformer": _transformer("local", "rotary", "attention to nearby steps"),
    "linear_transformer": _transformer("linear", "sinusoidal", "linear attention and a state of fixed size"),
    "performer": _transformer("performer", "sinusoidal", "random features instead of a softmax"),
    "linformer": _transformer(
        "linformer", "sinusoidal", "a fixed number of keys and values for the whole sequence", causal=False
    ),
    **{name: _linear(name, kind) for name, kind in Mixer.registry.items()},
    "transformer_xl": LayerEntry(TransformerXL, needs_projection=True),
    "memory_transformer": LayerEntry(MemoryTransformer, needs_projection=True),
    "hybrid": LayerEntry(Hybrid, ahead=NOT_CAUSAL),
    "conv_rnn": LayerEntry(ConvRNN, ahead={"bidirectional": True}),
    "rnn_then_attention": LayerEntry(RNNThenAttention, ahead=NOT_CAUSAL),
}


def list_names() -> list[str]:
    """Return the names that `make` takes."""
    both = [name for name, entry in LAYERS.items() if entry.ahead is not None]
    return [*_cells(), *LAYERS, *(BI_PREFIX + name for name in (*_cells(), *both))]


def find(name: str) -> Callable[..., nn.Module]:
    """Return a function (input_size, hidden_size, **settings) that builds the layer of this name.

    Every layer takes inputs (B, T, D) and has the settings `num_layers` and `dropout`.

    Raises:
        UserError: If there is no layer of this name.
    """
    name = renamed.LAYERS.get(name, name)
    base, both = name.removeprefix(BI_PREFIX), name.startswith(BI_PREFIX)
    if base in _cells() or split_name(base) is not None:  # or a custom cell in a file
        return partial(_recurrent, base, bidirectional=both)
    if name in list_names():
        entry = LAYERS[base]
        settings = entry.settings | (entry.ahead or {} if both else {})
        return (
            partial(_make_projected, entry.kind, **settings)
            if entry.needs_projection
            else partial(entry.kind, **settings)
        )
    hint = suggest(name, list_names()) or f"some are {list_some(list_names())}: see `seqloom list layers`"
    raise UserError(f"there is no layer {shorten(name)!r}; {hint}")


def describe(name: str) -> str:
    """Return one line that describes a layer."""
    if name in _cells():
        text = Cell.registry[name].__doc__ or ""
    else:
        text = LAYERS[name].description or LAYERS[name].kind.__doc__ or ""
    return text.strip().partition("\n")[0]


def make(name: str, input_size: int, hidden_size: int, **settings: object) -> nn.Module:
    """Build the layer of this name, such as `make("bi_gru", 8, 64, num_layers=2, dropout=0.1)`.

    Args:
        name: One of `list_names()`, or "path/to/file.py:MyCell" for a custom cell.
        input_size: Features of the input (B, T, D).
        hidden_size: Units, or width, of the layer.
        **settings: Settings of the layer's class.
    """
    settings = renamed.take_renamed("make", settings, {"layers": "num_layers"})
    return find(name)(input_size, hidden_size, **settings)


def _recurrent(
    cell: str,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    **settings: Any,  # noqa: ANN401  # forwarded to Recurrent
) -> nn.Module:
    return Recurrent(
        cell, input_size, hidden_size, num_layers, batch_first=True, bidirectional=bidirectional, **settings
    )


def _make_projected(
    kind: Callable[..., nn.Module],
    input_size: int,
    hidden_size: int,
    *,
    dropout: float = 0.0,
    block: Block | None = None,
    **settings: object,
) -> Projected:
    """Build a Transformer of width `hidden_size` for inputs of another width.

    `dropout` does not apply to attention weights: with 600 steps, training is then 2.5 times as fast on a CPU.
    """
    inner = kind(hidden_size, block=block or Block(dropout=dropout, attention_dropout=0.0), **settings)
    return Projected(inner, input_size)


def _cells() -> list[str]:
    return [name for name, kind in Cell.registry.items() if kind.__module__.startswith("seqloom.cells.")]

"""Parts of models that several kinds share: the layer of the settings, its input, and how a whole row is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.core.init import Init
from seqloom.lab.data.task import PAD, Features, Task
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.layers import registry
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.memory import Segmented
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.layer import Projected
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed

EMBEDDING_SCALE = 0.1  # scale of a classifier's initial embeddings, so that rare words have little influence
NORMALISED_CELLS = ("attn_rnn",)  # their state is normalised, so the embedding must have the same scale
CLASSIFIER_SPAN = 100  # initial memory span of these cells in steps, as a class is read at the end


def build_layer(settings: TrainSettings, input_size: int, name: str | None = None) -> nn.Module:
    """Build the layer of the settings, or the one called `name` with the same size and dropout."""
    name = settings.model if name is None else name
    options: dict[str, Any] = {"num_layers": settings.layers, "dropout": settings.dropout}
    dropouts = Dropouts(settings.recurrent_dropout, settings.zoneout, settings.weight_dropout)
    base = name.removeprefix(registry.BI_PREFIX)
    if base not in registry.LAYERS:
        options |= {"dropouts": dropouts, "init": Init(settings.init, settings.chrono or None)}
        options |= {"residual": True} if settings.residual else {}
    elif dropouts != Dropouts() or settings.residual:
        raise UserError(
            f"recurrent_dropout, zoneout, weight_dropout and residual are for recurrent cells, and {name!r} is not one"
        )
    return registry.make(name, input_size, settings.hidden, **options)


def build_timed_layer(settings: TrainSettings, input_size: int, timed: bool) -> nn.Module:
    """Build a layer; if the last input feature is a time span (`timed`), pass it to cells that support it."""
    layer = build_layer(settings, input_size)
    if not timed or not isinstance(layer, Recurrent) or "dt" not in layer.cell_at(0).takes:
        return layer
    return Timed(cast(Recurrent, build_layer(settings, input_size - 1)))


def build_input(task: Task, settings: TrainSettings, timed: bool = False) -> tuple[Embed | None, int]:
    """Return the embedding, if the inputs are ids, and the input size of the layer."""
    if isinstance(task.input, Features):
        return None, task.input.size + len(task.input.attributes) + timed
    return Embed(task.input.size, settings.embedding, settings.dropout, padding=PAD), settings.embedding


def looks_ahead(model: str) -> bool:
    """Return whether a layer of this name reads later steps."""
    return model.startswith(registry.BI_PREFIX) or model == "linformer"


def normalise(model: nn.Module, settings: TrainSettings) -> nn.Module:
    """Add a layer normalisation before the head, if the settings request it."""
    if settings.normalise:
        last: Any = getattr(model, "readout", model.layer)
        model.head = nn.Sequential(nn.LayerNorm(last.output_size), cast(nn.Module, model.head))
    return model


def has_fixed_state(layer: nn.Module) -> bool:
    """Return whether the state has the same size for every length, so that it can be carried to the next batch."""
    inner = layer.layer if isinstance(layer, Projected) else layer
    if isinstance(inner, Segmented):
        return True
    training = layer.training
    with torch.no_grad():
        x = torch.zeros(1, 5, cast(int, layer.input_size))
        shapes = [[s.shape for s in list_states(layer.eval()(x[:, :T])[1])] for T in (1, 2, 5)]
    layer.train(training)
    return shapes[0] == shapes[1] == shapes[2]


def list_states(state: Tensor | State | None) -> list[Tensor]:
    """Return the tensors of a state, which may be a single one or None."""
    return [state] if isinstance(state, Tensor) else list(state or ())


class EmbedWithAttributes(nn.Module):
    """Embed ids and append the attributes of the row to each vector.

    Ids and attributes come as one tensor of floats, exact up to 2**24, so that a model has one input.
    """

    def __init__(self, embed: Embed, attributes: int) -> None:
        super().__init__()
        self.embed = embed
        self.output_size = embed.output_size + attributes

    def forward(self, x: Tensor) -> Tensor:
        """Map ids and attributes (B, T, 1 + A) to (B, T, output_size)."""
        return torch.cat([self.embed(x[..., 0].long()), x[..., 1:]], -1)


class Timed(nn.Module):
    """Pass the last input feature, the time since the previous step, to the layer as `timespans`."""

    batch_first = True

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer
        self.input_size, self.output_size = layer.input_size + 1, layer.output_size
        self.bidirectional, self.causal = layer.bidirectional, layer.causal

    def forward(
        self, x: Tensor, state: Tensor | State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Any]:
        """Run the layer on x (B, T, D + 1), whose last feature is the time span; return y and the state."""
        return self.layer(x[..., :-1], state, lengths, timespans=x[..., -1])


def build_reader(task: Task, settings: TrainSettings, timed: bool, pools: bool, **size: int) -> Classify:
    """Build a model with one output for a whole row.

    Args:
        timed: Whether the last input feature is a time span.
        pools: Whether the maximum and the mean over all steps are read by default; synthetic tokens are not, as they
            test what a state remembers to the end.
        **size: The number of `classes` or of `outputs`.
    """
    embed: Any
    embed, width = build_input(task, settings, timed)
    if settings.model.removeprefix(registry.BI_PREFIX) in NORMALISED_CELLS:
        settings = settings.model_copy(
            update={"chrono": CLASSIFIER_SPAN if settings.chrono is None else settings.chrono}
        )
        embed = embed and Embed(task.input.size, width, settings.dropout, padding=PAD, scaled=True)
    elif embed is not None:
        with torch.no_grad():
            embed.table.weight.mul_(EMBEDDING_SCALE)
    if embed is not None and task.input.attributes:
        embed, width = EmbedWithAttributes(embed, len(task.input.attributes)), width + len(task.input.attributes)
    layer = build_timed_layer(settings, width, timed)
    readout = _choose_readout(settings, layer, pools and getattr(task.input, "unit", "") != "tokens")
    return Classify(layer, readout=readout, dropout=settings.dropout, embed=embed, **size)


def _choose_readout(settings: TrainSettings, layer: nn.Module, pools: bool) -> str:
    """Choose max_mean where `pools`, mean for layers that look ahead, otherwise last."""
    if settings.readout != "auto":
        return settings.readout
    if pools:
        return "max_mean"
    return "last" if getattr(layer, "causal", True) else "mean"

"""Models that read a whole row and predict at its end, for classes, labels and numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from seqloom.lab.data.task import PAD, Task
from seqloom.lab.kinds.layers import EmbedWithAttributes, build_input, build_timed_layer
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.layers import registry
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed

EMBEDDING_SCALE = 0.1  # scale of a classifier's initial embeddings, so that rare words have little influence
NORMALISED_CELLS = ("attn_rnn",)  # their state is normalised, so the embedding must have the same scale
CLASSIFIER_SPAN = 100  # initial memory span of these cells in steps, as a class is read at the end


def build_reader(task: Task, settings: TrainSettings, timed: bool, pools: bool, **size: int) -> Classify:
    """Build a model with one output for a whole row.

    Args:
        task: The task.
        settings: The settings.
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

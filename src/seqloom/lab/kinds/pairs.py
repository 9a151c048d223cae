"""One class for two texts, such as whether both say the same.

The two texts are read as one sequence, END between them, so that the second is read with the state after the first
(Rocktäschel et al. 2016, arXiv 1509.06664). Each text is summarised by itself, and a linear head compares the two:

    u, v   summaries of the outputs over the first and over the second text
    z = W [u, v, |u - v|, u * v] + b                                          Conneau et al. 2017, arXiv 1705.02364
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqloom.lab.data.task import END, Task
from seqloom.lab.kinds.classify import ClassifyKind, ForClassify
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.layers import build_reader, normalise
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.layers.readout import Readout
from seqloom.models.classify import Classify


class PairReadout(nn.Module):
    """Summarise the steps before and after the first END, and compare the two summaries."""

    def __init__(self, inner: Readout) -> None:
        super().__init__()
        self.inner = inner
        self.output_size = 4 * inner.output_size

    def forward(self, y: Tensor, lengths: Tensor, ids: Tensor) -> Tensor:
        """Map outputs y (B, T, H) for ids (B, T) with lengths (B,) to (B, output_size); a text may be empty."""
        T = y.shape[1]
        first = torch.minimum((ids == END).cumsum(1).eq(0).sum(1), lengths)  # steps of the first text, (B,)
        second = (lengths - first - 1).clamp(min=0)
        at = (torch.arange(T, device=y.device) + first.unsqueeze(1) + 1).clamp(max=T - 1)  # (B, T)
        u = self.inner(y, first)
        v = self.inner(y.gather(1, at.unsqueeze(-1).expand(-1, -1, y.shape[2])), second)
        return torch.cat([u, v, (u - v).abs(), u * v], -1)


class Pair(nn.Module):
    """Compare two texts: the embedding and the layer of a classifier, a `PairReadout`, dropout and a linear head.

    Args:
        reader: The classifier whose parts are taken.
    """

    def __init__(self, reader: Classify) -> None:
        super().__init__()
        assert reader.classes is not None
        self.embed, self.layer, self.dropout = reader.embed, reader.layer, reader.dropout
        self.readout = PairReadout(reader.readout)
        self.head = nn.Linear(self.readout.output_size, reader.classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map ids (B, T) with lengths (B,) to logits (B, classes)."""
        embed: Any = self.embed
        y, _ = self.layer(embed(x), lengths=lengths)
        return self.head(self.dropout(self.readout(y, lengths, x)))


class ForPairs(ForClassify):
    """Cross-entropy over the classes of a pair, which is read at its end alone."""

    streams = False
    why_whole = "two texts are compared after the last step"


class PairsKind(ClassifyKind):
    """One class for two texts: cross-entropy, with a threshold or a reject option."""

    name = "pairs"
    baselines = ("majority", "overlap", "logistic")
    baseline_model = ForPairs
    use = "Compares two texts as"
    reads_timespans = False

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        reader = build_reader(task, settings, timed=False, pools=True, classes=task.target.size)
        return ForPairs(normalise(Pair(reader), settings), settings.label_smoothing)

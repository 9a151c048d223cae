"""N to 1: one class for a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

READOUTS = ("last", "mean")


class Classify(nn.Module):
    """A layer, what it says of the whole sequence, dropout and a linear head.

    `readout` "last" takes the output at each row's last real step (and the first one of a layer
    that also reads backwards), "mean" the mean over its real steps. A row of length 0 reads 0.
    """

    def __init__(self, layer: nn.Module, classes: int, readout: str = "last", dropout: float = 0.0) -> None:
        super().__init__()
        if readout not in READOUTS:
            raise ValueError(f"readout must be one of {', '.join(READOUTS)}, got {readout!r}")
        if not getattr(layer, "batch_first", True):
            raise ValueError("Classify takes a layer with batch_first=True")
        self.layer, self.readout = layer, readout
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(layer.output_size, classes)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """(B, T, D) -> logits (B, classes)."""
        if lengths is not None:
            lengths = torch.as_tensor(lengths, device=x.device)
        y, _ = self.layer(x, lengths=lengths)
        return self.head(self.dropout(self._read(y, lengths)))

    def _read(self, y: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, T, H) -> (B, H); outputs past a length are 0 already."""
        if self.readout == "mean":
            return y.mean(1) if lengths is None else y.sum(1) / lengths.clamp(min=1).unsqueeze(1)
        last = y[:, -1] if lengths is None else y[torch.arange(len(y), device=y.device), (lengths - 1).clamp(min=0)]
        if not getattr(self.layer, "bidirectional", False):
            return last
        forwards, backwards = last.chunk(2, -1)[0], y[:, 0].chunk(2, -1)[1]
        return torch.cat([forwards, backwards], -1)

"""Summarise each sequence of a batch as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import UserError
from seqloom.core.job import zero_padding
from seqloom.core.masks import make_mask

READOUTS = ("last", "mean", "max", "max_mean", "attention")


class Readout(nn.Module, metaclass=Checked):
    """Summarise the real steps of each row as one vector; 0 for a row of length 0.

        last       y_n, n the row's last real step; for a bidirectional layer, the last output of each direction
        mean       1/n sum_t y_t
        max        max_t y_t, for each feature
        max_mean   max and mean concatenated, 2 H wide                    Howard & Ruder 2018, arXiv 1801.06146
        attention  sum_t a_t y_t,  a = softmax_t(v . tanh(W y_t + b))     Yang et al. 2016 (NAACL, N16-1174)

    Args:
        name: One of the above.
        width: Features of the layer's output, H.
        bidirectional: Whether the second half of the features comes from a layer that reads backwards.

    Example:
        >>> readout = seqloom.Readout("max_mean", 16)
        >>> readout(torch.randn(3, 5, 16), lengths=[5, 2, 0]).shape  # (B, T, H) -> (B, 2 H)
        torch.Size([3, 32])
    """

    def __init__(self, name: str, width: int, bidirectional: bool = False) -> None:
        super().__init__()
        if name not in READOUTS:
            raise UserError(f"the name of a readout must be one of {', '.join(READOUTS)}, got {name!r}")
        self.name, self.bidirectional = name, bidirectional
        self.output_size = 2 * width if name == "max_mean" else width
        if name == "attention":
            self.key = nn.Linear(width, width)  # W, b
            self.query = nn.Linear(width, 1, bias=False)  # v

    def forward(self, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Summarise y (B, T, H), of which each row has lengths (B,) real steps, as (B, output_size)."""
        if lengths is None:
            real = torch.full((y.shape[0],), y.shape[1], device=y.device)
        else:
            real = read_lengths(lengths, y.shape[0], y.shape[1], y.device)
            y = zero_padding(y, real)  # NaN there, times a weight of 0, would be NaN
        return getattr(self, f"_{self.name}")(y, real) * (real > 0).unsqueeze(1)

    def _last(self, y: Tensor, lengths: Tensor) -> Tensor:
        last = y[torch.arange(y.shape[0], device=y.device), (lengths - 1).clamp(min=0)]
        if not self.bidirectional:
            return last
        forwards, backwards = last.chunk(2, -1)[0], y[:, 0].chunk(2, -1)[1]
        return torch.cat([forwards, backwards], -1)

    def _mean(self, y: Tensor, lengths: Tensor) -> Tensor:
        return y.sum(1) / lengths.clamp(min=1).unsqueeze(1)

    def _max(self, y: Tensor, lengths: Tensor) -> Tensor:
        return y.masked_fill(~_real_steps(y, lengths), torch.finfo(y.dtype).min).amax(1)

    def _max_mean(self, y: Tensor, lengths: Tensor) -> Tensor:
        return torch.cat([self._max(y, lengths), self._mean(y, lengths)], -1)

    def _attention(self, y: Tensor, lengths: Tensor) -> Tensor:
        s = self.query(torch.tanh(self.key(y)))  # (B, T, 1)
        a = s.masked_fill(~_real_steps(y, lengths), torch.finfo(s.dtype).min).softmax(1)
        return (a * y).sum(1)


def _real_steps(y: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask (B, T, 1), True at the real steps."""
    return make_mask(lengths, y.shape[1]).unsqueeze(-1)

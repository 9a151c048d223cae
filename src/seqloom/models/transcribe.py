"""N to M, in order: frames in, fewer symbols out, with nobody saying which frame is which symbol (CTC)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.core.masks import make_mask
from seqloom.models.checks import can_check, check_fits, check_ids
from seqloom.models.decoding.ctc import BLANK, greedy, prefix_beam


class Transcribe(nn.Module):
    """A layer and, at every step, a distribution over `symbols` and a blank, trained by CTC.

    Symbols are 1..symbols, the blank is 0. `stack` frames are joined to one step of the layer, whose
    input_size is then stack times the features: fewer steps, where frames are many and symbols few.

    Graves et al. 2006 (ICML): the loss is -log of the sum over all paths that read as the target.
    """

    def __init__(self, layer: nn.Module, symbols: int, *, stack: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if symbols < 1 or stack < 1:
            raise UserError(f"symbols and stack must be at least 1, got symbols={symbols} and stack={stack}")
        check_fits(layer, "Transcribe")
        if layer.input_size % stack:  # type: ignore[operator]
            raise UserError(f"the layer's input_size={layer.input_size} is not a multiple of stack={stack}")
        self.layer, self.symbols, self.stack = layer, symbols, stack
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(layer.output_size, 1 + symbols)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Frames (B, T, D) -> log-probabilities (B, ceil(T / stack), 1 + symbols), steps of each row (B,)."""
        x, steps = self._stacked(x, lengths)
        y, _ = self.layer(x, lengths=steps)
        return self.head(self.dropout(y)).log_softmax(-1), steps

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        y_lengths: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Of targets y (B, S), the first y_lengths (B,) of each row: CTC's loss a symbol, mean over the batch."""
        if y.dim() != 2:
            raise InputError(f"targets y must be (B, S), got {tuple(y.shape)}")
        B, S = y.shape
        given = torch.full((B,), S) if y_lengths is None else torch.as_tensor(y_lengths)
        y_lengths = read_lengths(given, B, S, given.device, "y_lengths")
        if not y.numel() or (can_check(y_lengths) and not bool(y_lengths.any())):
            raise InputError(f"a loss needs at least one target symbol, got y of shape {tuple(y.shape)}, all empty")
        y_lengths = y_lengths.to(y.device)
        real = make_mask(y_lengths, S)
        y = torch.where(real, y, torch.ones_like(y))
        check_ids(y, self.symbols, "symbols y", first=1)
        log_p, steps = self(x, lengths)
        _check_room(y, real, steps)
        # ctc_loss takes float32 or float64, and (T, B, K)
        log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32)).transpose(0, 1)
        return F.ctc_loss(log_p, y, steps, y_lengths, blank=BLANK, zero_infinity=True)

    @torch.no_grad()
    def decode(
        self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, beam: int | None = None
    ) -> list[list[int]]:
        """The symbols of each row: along the likeliest path, or the best of a beam over prefixes."""
        log_p, steps = self(x, lengths)
        if beam is None:
            return greedy(log_p, steps)
        return [best[0][0] for best in prefix_beam(log_p, steps, beam)]

    def _stacked(self, x: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor]:
        if x.dim() != 3:
            raise InputError(f"frames must be (B, T, D), got {tuple(x.shape)}")
        B, T, D = x.shape
        if lengths is None:
            lengths = torch.full((B,), T, device=x.device)
        lengths = read_lengths(lengths, B, T, x.device)
        if self.stack == 1:
            return x, lengths
        real = make_mask(lengths, T)
        x = torch.where(real.unsqueeze(-1), x, torch.zeros_like(x))  # a row's last step may be half padding
        x = F.pad(x, (0, 0, 0, -T % self.stack))
        return x.reshape(B, -1, self.stack * D), (lengths + self.stack - 1) // self.stack


def _check_room(y: Tensor, real: Tensor, steps: Tensor) -> None:
    """A path needs a step for each symbol, and a blank between two that are equal."""
    if not can_check(y):
        return  # there the loss of such a row is 0
    repeats = (y[:, 1:] == y[:, :-1]) & real[:, 1:]
    needed = real.sum(1) + repeats.sum(1)
    if bool((needed > steps).any()):
        row = int((needed > steps).nonzero()[0])
        raise InputError(
            f"row {row} has {int(steps[row])} steps, but its target needs {int(needed[row])}; "
            "take longer input, shorter targets or a smaller stack"
        )

"""N to M in order: frames to symbols without an alignment (CTC)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.core.masks import make_mask
from seqloom.core.plurals import count
from seqloom.models.checks import can_check, check_fits, check_ids, read_size
from seqloom.models.decoding.ctc import BLANK, greedy, prefix_beam


class Transcribe(nn.Module, metaclass=Checked):
    """Transcribe frames to symbols: a layer and a distribution over symbols and a blank at every step, trained by CTC.

    Symbols are 1 to `symbols`, the blank is 0. The loss is -log of the sum over all paths that read as the target
    (Graves et al. 2006, ICML).

    Args:
        layer: A layer with batch_first=True; its input_size is `stack` times the features of a frame.
        symbols: Number of symbols.
        stack: Frames that are concatenated to one step, which shortens sequences with many frames per symbol.
        dropout: Dropout before the head.

    Raises:
        ValueError: If an argument is out of range or the layer does not fit.

    Example:
        >>> model = seqloom.Transcribe(seqloom.GRU(8, 16, batch_first=True), symbols=4)
        >>> frames, symbols = torch.randn(3, 20, 8), torch.randint(1, 5, (3, 6))
        >>> log_p, steps = model(frames)
        >>> log_p.shape, model.loss(frames, symbols).shape, len(model.decode(frames))
        (torch.Size([3, 20, 5]), torch.Size([]), 3)
    """

    def __init__(self, layer: nn.Module, symbols: int, *, stack: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if symbols < 1 or stack < 1:
            raise UserError(f"symbols and stack must be at least 1, got symbols={symbols} and stack={stack}")
        check_fits(layer, "Transcribe")
        width = read_size(layer, "input_size", "layer")
        if width % stack:
            raise UserError(f"the layer's input_size={width} is not a multiple of stack={stack}")
        self.layer, self.symbols, self.stack = layer, symbols, stack
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(read_size(layer, "output_size", "layer"), 1 + symbols)

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Map frames (B, T, D) to log-probabilities (B, ceil(T / stack), 1 + symbols) and steps of each row (B,)."""
        x, steps = self._stack_frames(x, lengths)
        y, _ = self.layer(x, lengths=steps)
        return self.head(self.dropout(y)).log_softmax(-1), steps

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        y_lengths: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Return the CTC loss per symbol, mean over the batch.

        Args:
            x: Frames (B, T, D).
            y: Target symbols (B, S).
            lengths: (B,), the real frames of each row.
            y_lengths: (B,), the real symbols of each row.
        """
        if y.dim() != 2:
            raise InputError(f"targets y must be (B, S), got {tuple(y.shape)}")
        B, S = y.shape
        counts = torch.full((B,), S) if y_lengths is None else torch.as_tensor(y_lengths)
        y_lengths = read_lengths(counts, B, S, counts.device, "y_lengths")
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
        """Return the symbols of each row: of the most likely path, or of a beam search over `beam` prefixes."""
        log_p, steps = self(x, lengths)
        if beam is None:
            return greedy(log_p, steps)
        return [best[0][0] for best in prefix_beam(log_p, steps, beam)]

    def _stack_frames(self, x: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor]:
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
    """Raise an error if a row has too few steps: one for each symbol, and a blank between equal ones."""
    if not can_check(y):
        return  # the loss of a row with too few steps is then 0
    repeats = (y[:, 1:] == y[:, :-1]) & real[:, 1:]
    needed = real.sum(1) + repeats.sum(1)
    if bool((needed > steps).any()):
        row = int((needed > steps).nonzero()[0])
        raise InputError(
            f"row {row} has {count(int(steps[row]), 'step')}, but its target needs {int(needed[row])}; "
            "take longer input, shorter targets or a smaller stack"
        )

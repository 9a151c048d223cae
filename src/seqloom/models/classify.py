"""N to 1: one class, or one set of real values, for a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.layers.readout import Readout
from seqloom.models.checks import check_fits, check_ids


class Classify(nn.Module):
    """A layer, what it says of the whole sequence (`Readout`), dropout and a linear head.

    Give `classes` for a class a row, or `outputs` for that many real values a row. The input is
    features (B, T, D), or ids (B, T) where there is an `embed`: `Embed`, or a module like it.
    """

    def __init__(
        self,
        layer: nn.Module,
        classes: int | None = None,
        readout: str = "last",
        dropout: float = 0.0,
        *,
        embed: nn.Module | None = None,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        if (classes is None) == (outputs is None):
            raise UserError(f"give classes or outputs, one of them; got classes={classes} and outputs={outputs}")
        check_fits(layer, "Classify", embed)
        self.embed, self.layer, self.classes = embed, layer, classes
        width: int = layer.output_size  # type: ignore[assignment]
        self.readout = Readout(readout, width, getattr(layer, "bidirectional", False))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.readout.output_size, outputs if classes is None else classes)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """(B, T, D) or ids (B, T) -> logits (B, classes) or values (B, outputs)."""
        if lengths is not None:
            lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        y, _ = self.layer(x if self.embed is None else self.embed(x), lengths=lengths)
        return self.head(self.dropout(self.readout(y, lengths)))

    def loss(self, x: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Cross-entropy of the classes y (B,), or the mean squared error of the values y (B, outputs)."""
        if not y.numel():
            raise InputError(f"a loss needs at least one target, got y of shape {tuple(y.shape)}")
        if self.classes is not None:
            check_ids(y, self.classes, "classes y")
            return F.cross_entropy(self(x, lengths), y.long())
        values = self(x, lengths)
        if y.shape != values.shape:
            raise InputError(f"y must have the shape {tuple(values.shape)} of the values, got {tuple(y.shape)}")
        return F.mse_loss(values, y)

    @torch.no_grad()
    def predict(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """The best class of each row (B,), or the values (B, outputs)."""
        scores = self(x, lengths)
        return scores if self.classes is None else scores.argmax(-1)

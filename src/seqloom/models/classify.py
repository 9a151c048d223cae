"""N to 1: a class, or real values, for a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.layers.readout import Readout
from seqloom.models.checks import check_fits, check_ids, read_size


class Classify(nn.Module, metaclass=Checked):
    """Classify sequences, or predict real values for them: a layer, a `Readout`, dropout and a linear head.

    Args:
        layer: A layer with batch_first=True.
        classes: Number of classes. Pass either this or `outputs`.
        readout: How a sequence is summarised: "last", "mean", "max", "max_mean" or "attention".
        dropout: Dropout before the head.
        embed: Maps ids (B, T) to vectors, such as `Embed`; None if the input is features (B, T, D).
        outputs: Number of real values.

    Raises:
        ValueError: If both or neither of `classes` and `outputs` are given, or the parts do not fit together.

    Example:
        >>> model = seqloom.Classify(seqloom.GRU(8, 16, batch_first=True), classes=4)
        >>> x, y = torch.randn(3, 5, 8), torch.tensor([0, 3, 1])
        >>> model(x).shape, model.loss(x, y).shape, model.predict(x).shape
        (torch.Size([3, 4]), torch.Size([]), torch.Size([3]))
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
            raise UserError(f"give either classes or outputs; got classes={classes} and outputs={outputs}")
        check_fits(layer, "Classify", embed)
        self.embed, self.layer, self.classes = embed, layer, classes
        width = read_size(layer, "output_size", "layer")
        self.readout = Readout(readout, width, getattr(layer, "bidirectional", False))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.readout.output_size, outputs if classes is None else classes)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Map features (B, T, D) or ids (B, T), with lengths (B,), to logits (B, classes) or values (B, outputs)."""
        if lengths is not None:
            lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        y, _ = self.layer(x if self.embed is None else self.embed(x), lengths=lengths)
        return self.head(self.dropout(self.readout(y, lengths)))

    def loss(self, x: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the cross-entropy of classes y (B,), or the mean squared error of values y (B, outputs)."""
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
        """Return the most likely class of each row (B,), or the values (B, outputs)."""
        scores = self(x, lengths)
        return scores if self.classes is None else scores.argmax(-1)

"""What the letters of a word say of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError
from seqloom.layers.readout import Readout
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.embed import Embed

KINDS = ("lstm", "cnn")


class Characters(nn.Module):
    """Letters (B, T, C), 0 where a word has ended -> a vector for each word (B, T, output_size).

    "lstm" reads a word forwards and backwards and keeps where both end (Lample et al. 2016, arXiv 1603.01360);
    "cnn" takes the largest answer of each filter over its letters (Ma & Hovy 2016, arXiv 1603.01354).
    A word without letters is 0.
    """

    def __init__(self, alphabet: int, dim: int = 25, output_size: int = 50, kind: str = "lstm") -> None:
        super().__init__()
        if kind not in KINDS:
            raise UserError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        if kind == "lstm" and output_size % 2:
            raise UserError(f"output_size must be even, half for each direction; got {output_size}")
        self.output_size, self.kind = output_size, kind
        self.embed = Embed(alphabet, dim)
        self.layer: nn.Module
        if kind == "lstm":
            self.layer = Recurrent("lstm", dim, output_size // 2, batch_first=True, bidirectional=True)
            self.readout = Readout("last", output_size, bidirectional=True)
        else:
            self.layer = nn.Conv1d(dim, output_size, 3, padding=1)
            self.readout = Readout("max", output_size)

    def forward(self, letters: Tensor) -> Tensor:
        if letters.dim() != 3 or not letters.shape[2]:
            raise InputError(f"letters must be (B, T, C), C at least 1 and 0 past a word; got {tuple(letters.shape)}")
        B, T, C = letters.shape
        words = letters.reshape(B * T, C)  # every word is a sequence of its own
        lengths = (words != 0).sum(1)
        x = self.embed(words)  # (B * T, C, dim)
        if self.kind == "lstm":
            y, _ = self.layer(x, lengths=lengths)
        else:
            y = torch.relu(self.layer(x.transpose(1, 2))).transpose(1, 2)
        return self.readout(y, lengths).view(B, T, self.output_size)

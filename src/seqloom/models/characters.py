"""Word vectors computed from letters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError
from seqloom.layers.readout import Readout
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.embed import Embed

KINDS = ("lstm", "cnn")


class Characters(nn.Module):
    """Compute a vector for each word from its letters; 0 for a word without letters.

    Args:
        alphabet: Number of letter ids, 0 included.
        dim: Width of a letter's embedding.
        output_size: Width of a word's vector.
        kind: "lstm" for the last outputs of an LSTM in both directions (Lample et al. 2016, arXiv 1603.01360), or "cnn"
            for the largest output of each convolution filter over the letters (Ma & Hovy 2016, arXiv 1603.01354).
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
        """Map letters (B, T, C), 0 past the end of a word, to word vectors (B, T, output_size)."""
        if letters.dim() != 3 or not letters.shape[2]:
            raise InputError(f"letters must be (B, T, C), C at least 1 and 0 past a word; got {tuple(letters.shape)}")
        B, T, C = letters.shape
        words = letters.reshape(B * T, C)  # every word is one sequence
        lengths = (words != 0).sum(1)
        x = self.embed(words)  # (B * T, C, dim)
        if self.kind == "lstm":
            y, _ = self.layer(x, lengths=lengths)
        else:
            y = torch.relu(self.layer(x.transpose(1, 2))).transpose(1, 2)
        return self.readout(y, lengths).view(B, T, self.output_size)

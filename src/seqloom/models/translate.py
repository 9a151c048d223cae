"""N to M: a sequence into another, of another length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError
from seqloom.models.decoding import likelihood
from seqloom.models.decoding.beam import Beam, Found, beam_search, follow
from seqloom.models.embed import Marks
from seqloom.models.encode import Encoder

Lengths = Tensor | Sequence[int] | None


class Translate(nn.Module):
    """An encoder that reads the source, and a decoder that writes the target with an eye on it.

        encoder = Encoder(Embed(5000, 256), GRU(256, 256, batch_first=True, bidirectional=True))
        decoder = RecurrentDecoder(Embed(6000, 256), GRU(256, 512, batch_first=True), encoder.output_size)
        model = Translate(encoder, decoder)

    A decoder is a RecurrentDecoder, a TransformerDecoder, or any module with their methods:
    start(memory), step(tokens, state), select(state, rows), forward(tokens, memory), align(tokens, memory). Targets are
    framed by `marks`: start, words, stop, padding. Call eval() before `translate` and `greedy`.
    """

    def __init__(self, encoder: Encoder, decoder: nn.Module, marks: Marks = Marks()) -> None:
        super().__init__()
        self.encoder, self.marks = encoder, marks
        self.decoder: Any = decoder

    def forward(self, source: Tensor, target: Tensor, lengths: Lengths = None) -> tuple[Tensor, Tensor | None]:
        """source (B, S), target (B, T) -> logits of the token after each (B, T, V), alignment (B, T, S).

        The alignment says how much each step looked at each source token. It is None without
        attention, and of a Transformer, where `align` works it out when asked.
        """
        if source.shape[0] != target.shape[0]:  # len() would settle the number of rows for an export
            raise InputError(f"source has {len(source)} rows, target {len(target)}; they must have as many")
        return self.decoder(target, self.encoder(source, lengths))

    def loss(
        self,
        source: Tensor,
        target: Tensor,
        lengths: Lengths = None,
        target_lengths: Lengths = None,
        *,
        smoothing: float = 0.0,
        teacher: float = 1.0,
    ) -> Tensor:
        """Mean nats for each real target token after the start.

        `teacher` is the probability that a step reads the true token before it (teacher forcing)
        rather than the model's own likeliest: below 1 this is scheduled sampling (Bengio et al. 2015,
        arXiv 1506.03099), and steps come one after another.
        """
        if not 0 <= teacher <= 1:
            raise UserError(f"teacher must be a probability from 0 to 1, got {teacher}")
        read, wanted = likelihood.shift_targets(target, target_lengths)
        if teacher == 1:
            logits, _ = self(source, read, lengths)
        else:
            logits = self._scheduled(source, read, lengths, teacher)
        return likelihood.loss(logits, wanted, smoothing)

    def _scheduled(self, source: Tensor, read: Tensor, lengths: Lengths, teacher: float) -> Tensor:
        state = self.decoder.start(self.encoder(source, lengths))
        true = torch.rand(read.shape, device=read.device) < teacher
        said: list[Tensor] = []
        for t, tokens in enumerate(read.unbind(1)):
            given = tokens if t == 0 else tokens.where(true[:, t], said[-1].argmax(-1))
            logits, state = self.decoder.step(given, state)
            said.append(logits)
        return torch.stack(said, 1)

    def translate(self, source: Tensor, lengths: Lengths = None, beam: Beam = Beam()) -> Found:
        """source (B, S) -> the best targets, by beam search over all rows at once."""
        return beam_search(_Steps(self), (source, lengths), self._first(source), self.marks.stop, beam)

    def greedy(self, source: Tensor, lengths: Lengths = None, max_length: int = 100) -> Found:
        """source (B, S) -> one target each: the likeliest token at every step."""
        return follow(_Steps(self), (source, lengths), self._first(source), self.marks.stop, max_length)

    @torch.no_grad()
    def align(self, source: Tensor, tokens: Tensor, lengths: Lengths = None) -> Tensor | None:
        """tokens (B, T) as found, without marks -> where the model looked for each of them (B, T + 1, S).

        The last row belongs to what comes after them, the stop.
        """
        framed = torch.cat([self._first(source).unsqueeze(1), tokens], 1)
        return self.decoder.align(framed, self.encoder(source, lengths))

    def _first(self, source: Tensor) -> Tensor:
        if source.dim() != 2:
            raise InputError(f"source must be (B, S), got {tuple(source.shape)}")
        return torch.full((len(source),), self.marks.start, device=source.device)


class _Steps:
    """A Translate as the searches see it."""

    def __init__(self, model: Translate) -> None:
        self.model = model
        self.decoder: Any = model.decoder

    def start(self, batch: tuple[Tensor, Lengths]) -> Any:
        return self.decoder.start(self.model.encoder(*batch))

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.decoder.step(tokens, state)
        # The frame is no part of what is said.
        logits[:, self.model.marks.padding] = -torch.inf
        logits[:, self.model.marks.start] = -torch.inf
        return logits.float().log_softmax(-1) if logits.dtype.itemsize < 4 else logits.log_softmax(-1), state

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.decoder.select(state, rows)

"""N to M: a sequence to another one of a different length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.errors import InputError, UserError
from seqloom.core.plurals import count
from seqloom.models.decoding import likelihood
from seqloom.models.decoding.beam import Beam, Hypotheses, beam_search, follow
from seqloom.models.embed import Marks
from seqloom.models.encode import Encoder

Lengths = Tensor | Sequence[int] | None


class Translate(nn.Module, metaclass=Checked):
    """Translate sequences: an encoder reads the source, and a decoder writes the target.

    Call `eval()` before `translate` and `greedy`.

    Args:
        encoder: The encoder of the source.
        decoder: A RecurrentDecoder, a TransformerDecoder, or a module with their methods: start(memory),
            step(tokens, state), select(state, rows), forward(tokens, memory) and align(tokens, memory).
        marks: Special ids of the target: start, words, stop, padding.

    Example:
        >>> from seqloom.models.decoding.recurrent import RecurrentDecoder
        >>> from seqloom.models.embed import Embed
        >>> from seqloom.models.encode import Encoder
        >>> encoder = Encoder(Embed(20, 8), seqloom.GRU(8, 8, batch_first=True, bidirectional=True))
        >>> decoder = RecurrentDecoder(Embed(30, 8), seqloom.GRU(8, 16, batch_first=True), encoder.output_size)
        >>> model = seqloom.Translate(encoder, decoder)
        >>> source, target = torch.randint(3, 20, (2, 5)), torch.randint(3, 30, (2, 7))
        >>> logits, alignment = model(source, target)
        >>> logits.shape, alignment.shape, len(model.greedy(source, max_length=9).lists())
        (torch.Size([2, 7, 30]), torch.Size([2, 7, 5]), 2)
    """

    def __init__(self, encoder: Encoder, decoder: nn.Module, marks: Marks = Marks()) -> None:
        super().__init__()
        self.encoder, self.marks = encoder, marks
        self.decoder: Any = decoder

    def forward(self, source: Tensor, target: Tensor, lengths: Lengths = None) -> tuple[Tensor, Tensor | None]:
        """Return logits of the next target token at each step.

        Args:
            source: Ids (B, S).
            target: Ids (B, T).
            lengths: (B,), the real tokens of each source.

        Returns:
            logits: (B, T, V).
            alignment: (B, T, S), the attention of each step to each source token. None without attention, and for a
                Transformer, where `align` computes it.
        """
        if source.shape[0] != target.shape[0]:  # len() would fix the number of rows in an export
            raise InputError(
                f"source has {count(len(source), 'row')} and target {len(target)}; they must have the same number"
            )
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
        """Return the mean cross-entropy in nats over the real target tokens after the start.

        Args:
            source: Ids (B, S).
            target: Ids (B, T): start, words, stop, padding.
            lengths: (B,), the real tokens of each source.
            target_lengths: (B,), the tokens of each target without padding.
            smoothing: Share of each target that is spread over the vocabulary.
            teacher: Probability that a step reads the true previous token (teacher forcing) instead of the model's most
                likely one. Below 1 this is scheduled sampling (Bengio et al. 2015, arXiv 1506.03099), which runs step
                by step.
        """
        if not 0 <= teacher <= 1:
            raise UserError(f"teacher must be a probability from 0 to 1, got {teacher}")
        read, wanted = likelihood.shift_targets(target, target_lengths)
        if teacher == 1:
            logits, _ = self(source, read, lengths)
        else:
            logits = self._run_scheduled(source, read, lengths, teacher)
        return likelihood.loss(logits, wanted, smoothing)

    def _run_scheduled(self, source: Tensor, read: Tensor, lengths: Lengths, teacher: float) -> Tensor:
        state = self.decoder.start(self.encoder(source, lengths))
        true = torch.rand(read.shape, device=read.device) < teacher
        outputs: list[Tensor] = []
        for t, tokens in enumerate(read.unbind(1)):
            previous = tokens if t == 0 else tokens.where(true[:, t], outputs[-1].argmax(-1))
            logits, state = self.decoder.step(previous, state)
            outputs.append(logits)
        return torch.stack(outputs, 1)

    def translate(self, source: Tensor, lengths: Lengths = None, beam: Beam = Beam()) -> Hypotheses:
        """Find the best targets of source (B, S), with lengths (B,), by beam search over all rows at once."""
        return beam_search(_TranslateSteps(self), (source, lengths), self._first(source), self.marks.stop, beam)

    def greedy(self, source: Tensor, lengths: Lengths = None, max_length: int = 100) -> Hypotheses:
        """Find one target for each row of source (B, S): the most likely token at every step."""
        return follow(_TranslateSteps(self), (source, lengths), self._first(source), self.marks.stop, max_length)

    @torch.no_grad()
    def align(self, source: Tensor, tokens: Tensor, lengths: Lengths = None) -> Tensor | None:
        """Return the attention (B, T + 1, S) to the source for each token (B, T) of a translation without marks.

        The last row belongs to the stop token.
        """
        target = torch.cat([self._first(source).unsqueeze(1), tokens], 1)
        return self.decoder.align(target, self.encoder(source, lengths))

    def _first(self, source: Tensor) -> Tensor:
        if source.dim() != 2:
            raise InputError(f"source must be (B, S), got {tuple(source.shape)}")
        return torch.full((len(source),), self.marks.start, device=source.device)


class _TranslateSteps:
    """The interface of a Translate for decoding."""

    def __init__(self, model: Translate) -> None:
        self.model = model
        self.decoder: Any = model.decoder

    def start(self, batch: tuple[Tensor, Lengths]) -> object:
        return self.decoder.start(self.model.encoder(*batch))

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        logits, state = self.decoder.step(tokens, state)
        # Padding and start are never predicted.
        logits[:, self.model.marks.padding] = -torch.inf
        logits[:, self.model.marks.start] = -torch.inf
        return logits.float().log_softmax(-1) if logits.dtype.itemsize < 4 else logits.log_softmax(-1), state

    def select(self, state: object, rows: Tensor) -> object:
        return self.decoder.select(state, rows)

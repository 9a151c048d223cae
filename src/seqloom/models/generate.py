"""Language models, and 1 to N: predict each token from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.cell import State
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError
from seqloom.layers.layer import select_rows
from seqloom.models.checks import check_causal, check_width, read_size
from seqloom.models.decoding import likelihood
from seqloom.models.decoding.beam import Beam, Hypotheses, beam_search, follow
from seqloom.models.decoding.sampling import Sampling
from seqloom.models.embed import Embed, Head

Lengths = Tensor | Sequence[int] | None


class Generate(nn.Module, metaclass=Checked):
    """Language model: an embedding, a causal layer and a head that predicts the next token.

        x_t = [e(w_t), c]          c: a vector of the whole sequence, the same at every step; optional
        y_t = layer(x_1 .. x_t)
        P(w_t+1) = softmax(W y_t + b)

    Call `eval()` before `sample` and `search`.

    Args:
        embed: The embedding of the vocabulary V.
        layer: A causal layer with batch_first=True.
        condition: Width of c (attributes, a class, an image), from which a sequence is generated; 0 for no condition.
        tied: Whether W is the embedding's table.
        dropout: Dropout before the head.

    Raises:
        ValueError: If the parts do not fit together.

    Example:
        >>> from seqloom.models.embed import Embed
        >>> model = seqloom.Generate(Embed(20, 8), seqloom.GRU(8, 16, batch_first=True))
        >>> ids = torch.randint(1, 20, (3, 5))  # (B, T)
        >>> model.loss(ids).shape, model.sample(ids, max_length=7).tokens.shape
        (torch.Size([]), torch.Size([3, 7]))
    """

    def __init__(
        self, embed: Embed, layer: nn.Module, *, condition: int = 0, tied: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_causal(layer, "Generate")
        check_width(layer, embed.output_size + condition, f"embedding {embed.output_size} + condition {condition}")
        self.embed, self.condition = embed, condition
        self.layer: Any = layer
        self.head = Head(read_size(layer, "output_size", "layer"), embed, tied=tied, dropout=dropout)

    def forward(
        self,
        ids: Tensor,
        lengths: Lengths = None,
        condition: Tensor | None = None,
        state: Tensor | State | None = None,
    ) -> tuple[Tensor, Any]:
        """Return logits of the next token at each step.

        Args:
            ids: (B, T).
            lengths: (B,), the real tokens of each row.
            condition: (B, C), if the model has a condition.
            state: What an earlier call returned, to continue from there.

        Returns:
            Logits (B, T, V), and the state.
        """
        x = self._append_condition(self.embed(ids), condition)
        if lengths is not None:
            lengths = read_lengths(lengths, ids.shape[0], ids.shape[1], ids.device)
        y, state = self.layer(x, state, lengths=lengths)
        return self.head(y), state

    def loss(
        self, ids: Tensor, lengths: Lengths = None, condition: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """Return the mean cross-entropy in nats over the real tokens after the first.

        `likelihood.perplexity` and `likelihood.bits` convert it.

        Args:
            ids: (B, T): start, words, stop, padding.
            lengths: (B,), the tokens of each row without padding.
            condition: (B, C), if the model has a condition.
            smoothing: Share of each target that is spread over the vocabulary.
        """
        read, target = likelihood.shift_targets(ids, lengths)
        logits, _ = self(read, condition=condition)  # causal, so padding at the end has no influence
        return likelihood.loss(logits, target, smoothing)

    def sample(
        self,
        start: Tensor,
        sampling: Sampling = Sampling(),
        *,
        lengths: Lengths = None,
        condition: Tensor | None = None,
        stop: int | None = None,
        max_length: int = 100,
    ) -> Hypotheses:
        """Draw a continuation of each row.

        Args:
            start: First tokens (B, P).
            sampling: How a token is drawn.
            lengths: (B,), the real tokens of each row of `start`.
            condition: (B, C), if the model has a condition.
            stop: Id that ends a text; None to draw `max_length` tokens.
            max_length: Largest number of tokens to draw.

        Returns:
            Tokens without the start, (B, L), and their lengths and log-probabilities.
        """
        self._check_stop(stop)
        prompt = _Prompt.of(start, lengths, condition)
        generator = sampling.generator(start.device)
        return follow(
            _GenerateSteps(self), prompt, prompt.last, stop, max_length, lambda p: sampling.draw(p, generator)
        )

    def search(
        self,
        start: Tensor,
        stop: int,
        beam: Beam = Beam(),
        *,
        lengths: Lengths = None,
        condition: Tensor | None = None,
    ) -> Hypotheses:
        """Find the most likely continuations of `start` (B, P) by beam search; arguments as in `sample`."""
        self._check_stop(stop)
        prompt = _Prompt.of(start, lengths, condition)
        return beam_search(_GenerateSteps(self), prompt, prompt.last, stop, beam)

    def _check_stop(self, stop: int | None) -> None:
        if stop is not None and not 0 <= stop < self.embed.vocabulary:
            raise InputError(f"stop must be an id below the vocabulary of {self.embed.vocabulary}, got {stop}")

    def _append_condition(self, e: Tensor, c: Tensor | None) -> Tensor:
        """Return [e_t, c] for every step of e (B, T, E), or for one step (B, E)."""
        width = 0 if c is None else c.shape[-1]
        if width != self.condition or (c is not None and c.shape != (e.shape[0], width)):
            shape = None if c is None else tuple(c.shape)
            raise InputError(
                f"condition must be {(e.shape[0], self.condition) if self.condition else None}, got {shape}"
            )
        if c is None:
            return e
        c = c.to(e.dtype)
        return torch.cat([e, c if e.dim() == 2 else c.unsqueeze(1).expand(-1, e.shape[1], -1)], -1)


@dataclass(frozen=True)
class _Prompt:
    before: Tensor  # (B, P-1): all but each row's last token
    lengths: Tensor | None
    last: Tensor  # (B,)
    condition: Tensor | None

    @classmethod
    def of(cls, start: Tensor, lengths: Lengths, condition: Tensor | None) -> _Prompt:
        if start.dim() != 2 or 0 in start.shape:
            raise InputError(f"start must be (B, P), at least one token for each row; got {tuple(start.shape)}")
        if lengths is None:
            return cls(start[:, :-1], None, start[:, -1], condition)
        n = read_lengths(lengths, start.shape[0], start.shape[1], start.device, "lengths of the starts")
        if int(n.min()) < 1 or int(n.max()) > start.shape[1]:
            raise InputError(f"lengths of the starts must be from 1 to {start.shape[1]}, got {n.tolist()}")
        return cls(start[:, :-1], n - 1, start.gather(1, n.unsqueeze(1) - 1).squeeze(1), condition)


_DecodingState: TypeAlias = tuple[Tensor | State | None, Tensor | None]


class _GenerateSteps:
    """The interface of a Generate for decoding; its state is that of the layer, and the condition."""

    def __init__(self, model: Generate) -> None:
        self.model = model

    def start(self, batch: _Prompt) -> _DecodingState:
        if batch.before.shape[1] == 0:
            return None, batch.condition
        _, state = self.model(batch.before, batch.lengths, batch.condition)
        return state, batch.condition

    def step(self, tokens: Tensor, state: _DecodingState) -> tuple[Tensor, _DecodingState]:
        inner, c = state
        y, inner = self.model.layer.step(self.model._append_condition(self.model.embed(tokens), c), inner)
        return self.model.head(y).log_softmax(-1), (inner, c)

    def select(self, state: _DecodingState, rows: Tensor) -> _DecodingState:
        inner, c = state
        return select_rows(self.model.layer, inner, rows), None if c is None else c.index_select(0, rows)

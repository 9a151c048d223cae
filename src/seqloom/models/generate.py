"""1 to N, and language models: each token from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError
from seqloom.layers.layer import select_rows
from seqloom.models.checks import check_causal, check_width
from seqloom.models.decoding import likelihood
from seqloom.models.decoding.beam import Beam, Found, beam_search, follow
from seqloom.models.decoding.sampling import Sampling
from seqloom.models.embed import Embed, Head

Lengths = Tensor | Sequence[int] | None


class Generate(nn.Module):
    """An embedding, a causal layer and a head that foresees the next token.

        x_t = [e(w_t), c]          c: a fixed vector of the whole sequence, at every step, if there is one
        y_t = layer(x_1 .. x_t)
        P(w_t+1) = softmax(W y_t + b)

    `condition` is the width of c (attributes, a class, an image): with it, one vector makes a
    sequence, 1 to N; without it this is a language model. `tied` takes the embedding as W.
    `dropout` acts before the head. Call eval() before `sample` and `search`.
    """

    def __init__(
        self, embed: Embed, layer: nn.Module, *, condition: int = 0, tied: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_causal(layer, "Generate")
        check_width(layer, embed.output_size + condition, f"embedding {embed.output_size} + condition {condition}")
        self.embed, self.condition = embed, condition
        self.layer: Any = layer
        self.head = Head(cast(int, layer.output_size), embed, tied=tied, dropout=dropout)

    def forward(
        self, ids: Tensor, lengths: Lengths = None, condition: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, Any]:
        """ids (B, T), condition (B, C) -> logits of the token after each (B, T, V), state to go on from."""
        x = self._with(self.embed(ids), condition)
        if lengths is not None:
            lengths = read_lengths(lengths, ids.shape[0], ids.shape[1], ids.device)
        y, state = self.layer(x, state, lengths=lengths)
        return self.head(y), state

    def loss(
        self, ids: Tensor, lengths: Lengths = None, condition: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        """Mean nats for each real token after the first; likelihood.perplexity and likelihood.bits read it.

        ids (B, T) are start, words, stop, padding; `lengths` counts all but the padding.
        """
        read, target = likelihood.shift_targets(ids, lengths)
        logits, _ = self(read, condition=condition)  # causal: the padding comes after all that counts
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
    ) -> Found:
        """Go on from the tokens in `start` (B, P), at most `max_length` tokens or until `stop`; B texts at once.

        The state is carried on: with a recurrent layer each token costs the same. `lengths` are
        those of the starts.
        """
        self._check_stop(stop)
        prompt = _Prompt.of(start, lengths, condition)
        generator = sampling.generator(start.device)
        return follow(_Steps(self), prompt, prompt.last, stop, max_length, lambda p: sampling.draw(p, generator))

    def search(
        self,
        start: Tensor,
        stop: int,
        beam: Beam = Beam(),
        *,
        lengths: Lengths = None,
        condition: Tensor | None = None,
    ) -> Found:
        """The likeliest continuations of `start` (B, P)."""
        self._check_stop(stop)
        prompt = _Prompt.of(start, lengths, condition)
        return beam_search(_Steps(self), prompt, prompt.last, stop, beam)

    def _check_stop(self, stop: int | None) -> None:
        if stop is not None and not 0 <= stop < self.embed.vocabulary:
            raise InputError(f"stop must be an id below the vocabulary of {self.embed.vocabulary}, got {stop}")

    def _with(self, e: Tensor, c: Tensor | None) -> Tensor:
        """[e_t, c] at every step; e is (B, T, E), or (B, E) for one step."""
        given = 0 if c is None else c.shape[-1]
        if given != self.condition or (c is not None and c.shape != (e.shape[0], given)):
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


class _Steps:
    """A Generate as the searches see it; its state is the layer's and the condition."""

    def __init__(self, model: Generate) -> None:
        self.model = model

    def start(self, batch: _Prompt) -> tuple[Any, Tensor | None]:
        if batch.before.shape[1] == 0:
            return None, batch.condition
        _, state = self.model(batch.before, batch.lengths, batch.condition)
        return state, batch.condition

    def step(self, tokens: Tensor, state: tuple[Any, Tensor | None]) -> tuple[Tensor, Any]:
        inner, c = state
        y, inner = self.model.layer.step(self.model._with(self.model.embed(tokens), c), inner)
        return self.model.head(y).log_softmax(-1), (inner, c)

    def select(self, state: tuple[Any, Tensor | None], rows: Tensor) -> tuple[Any, Tensor | None]:
        inner, c = state
        return select_rows(self.model.layer, inner, rows), None if c is None else c.index_select(0, rows)

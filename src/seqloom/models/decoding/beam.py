"""Decoding of token sequences: one path, greedy or drawn, or a beam search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from seqloom.core.errors import InputError, UserError

Source_contra = TypeVar("Source_contra", contravariant=True)
DecodingState = TypeVar("DecodingState")


class Steps(Protocol[Source_contra, DecodingState]):
    """The interface of a model for decoding: a state, and log-probabilities of the next token."""

    def start(self, batch: Source_contra) -> DecodingState:
        """Return the state before the first token, for a batch of B sources."""

    def step(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Return log-probabilities (N, V) after tokens (N,), and the state; N is B, or B K in a beam of size K."""

    def select(self, state: DecodingState, rows: Tensor) -> DecodingState:
        """Return the state of these rows. Rows of a source stay together: the first N / B belong to source 0."""


@dataclass(frozen=True)
class Beam:
    """Settings of a beam search.

    The score of a finished hypothesis y of n tokens, including the stop token, is

        score(y) = log P(y) / ((5 + n) / 6) ** length_penalty

    as in GNMT (Wu et al. 2016, arXiv 1609.08144).

    Args:
        size: Hypotheses at a time, K.
        length_penalty: 0 scores by log P alone; larger values favour longer hypotheses.
        max_length: Largest number of tokens.
        best: Number of hypotheses to return.
    """

    size: int = 5
    length_penalty: float = 0.6
    max_length: int = 100
    best: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"a beam's size must be at least 1 hypothesis, got {self.size}")
        if not 1 <= self.best <= self.size:
            raise UserError(f"best must be from 1 to the beam's size of {self.size}, got {self.best}")
        if self.length_penalty < 0:
            raise UserError(f"length_penalty must be at least 0, got {self.length_penalty}")
        check_max_length(self.max_length)

    def score(self, log_p: Tensor, n: int) -> Tensor:
        return log_p / ((5 + n) / 6) ** self.length_penalty


@dataclass(frozen=True)
class Hypotheses:
    """Decoded token sequences without the stop token, padded with it."""

    tokens: Tensor  # (B, best, L), or (B, L) for one path
    lengths: Tensor  # (B, best) or (B,): number of real tokens
    scores: Tensor  # the same shape: Beam's score, or the log-probability of a path
    finished: Tensor  # the same shape: False if cut off at max_length

    def lists(self) -> list[Any]:
        """Return nested lists of ids without padding."""
        return _trim(self.tokens.tolist(), self.lengths.tolist())


def _trim(tokens: list[Any], lengths: int | list[Any]) -> list[Any]:
    return tokens[:lengths] if isinstance(lengths, int) else [_trim(t, n) for t, n in zip(tokens, lengths, strict=True)]


def check_max_length(max_length: int) -> None:
    if max_length < 1:
        raise UserError(f"max_length must be at least 1 token, got {max_length}")


@torch.no_grad()
def follow(
    steps: Steps[Source_contra, DecodingState],
    batch: Source_contra,
    first: Tensor,
    stop: int | None,
    max_length: int,
    choose: Callable[[Tensor], Tensor] | None = None,
) -> Hypotheses:
    """Follow one path for each row.

    Args:
        steps: The model.
        batch: What `steps.start` takes.
        first: First tokens (B,).
        stop: Token that ends a path; without one every path has max_length tokens.
        max_length: Largest number of tokens.
        choose: Maps log-probabilities (N, V) to tokens (N,); by default the most likely token.
    """
    check_max_length(max_length)
    _check_first(first)
    state, tokens = steps.start(batch), first
    scores = torch.zeros(len(first), device=first.device)
    done = torch.zeros_like(first, dtype=torch.bool)
    lengths, path = torch.zeros_like(first), []
    for _ in range(max_length):
        log_p, state = steps.step(tokens, state)
        tokens = log_p.argmax(-1) if choose is None else choose(log_p)
        scores = scores + log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).masked_fill(done, 0)
        if stop is not None:
            tokens = tokens.masked_fill(done, stop)
            done = done | (tokens == stop)
        lengths = lengths + ~done
        path.append(tokens)
        if stop is not None and bool(done.all()):
            break
    longest = int(lengths.max())
    return Hypotheses(torch.stack(path, 1)[:, :longest], lengths, scores, done)


@torch.no_grad()
def beam_search(
    steps: Steps[Source_contra, DecodingState], batch: Source_contra, first: Tensor, stop: int, beam: Beam = Beam()
) -> Hypotheses:
    """Find the best continuations of each row's token, for all rows and hypotheses at once.

    A row has K open hypotheses and the best finished ones so far. The search ends when no open hypothesis of any row
    can still become one of the best. The cost of a step does not grow with the length. If fewer than `best` hypotheses
    have finished by max_length, the best unfinished ones follow them.

    Args:
        steps: The model.
        batch: What `steps.start` takes.
        first: First tokens (B,).
        stop: Token that ends a hypothesis.
        beam: Size, length penalty, largest length and number of results.
    """
    _check_first(first)
    B, K = len(first), beam.size
    base = torch.arange(B, device=first.device).unsqueeze(1) * K  # row of each source's first hypothesis
    state = steps.select(steps.start(batch), torch.arange(B, device=first.device).repeat_interleave(K))
    tokens = first.unsqueeze(1).expand(B, K)
    alive = torch.full((B, K), -torch.inf, device=first.device)
    alive[:, 0] = 0  # K equal hypotheses would all continue alike
    finished = _Finished.empty(alive[:, : beam.best])
    trail: list[tuple[Tensor, Tensor]] = []
    for t in range(beam.max_length):
        log_p, state = steps.step(tokens.flatten(), state)
        V = log_p.shape[-1]
        total = alive.unsqueeze(-1) + log_p.view(B, K, V)
        ended = total[..., stop].clone()
        total[..., stop] = -torch.inf
        alive, place = total.flatten(1).topk(K)
        # An ending less likely than all open hypotheses would not be in the beam either.
        ended = ended.masked_fill(ended < alive[:, -1:], -torch.inf)
        finished = finished.add(beam.score(ended, t + 1), t)
        parent, tokens = place // V, place % V
        trail.append((parent, tokens))
        hope = beam.score(alive[:, 0], beam.max_length)  # upper bound: log P only falls, the penalty only grows
        if bool((finished.scores[:, -1] >= hope).all()):
            break
        state = steps.select(state, (base + parent).flatten())
    return _read_back(finished, beam.score(alive, len(trail)), trail, stop)


def _check_first(first: Tensor) -> None:
    if first.dim() != 1 or len(first) < 1:
        raise InputError(f"first must hold one token for each row, (B,) with B of at least 1; got {tuple(first.shape)}")


@dataclass
class _Finished:
    """The best finished hypotheses: scores, lengths, and the open hypothesis that each continued; (B, best) each."""

    scores: Tensor
    lengths: Tensor
    places: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> _Finished:
        none = torch.zeros_like(like, dtype=torch.long)
        return cls(torch.full_like(like, -torch.inf), none, none)

    def add(self, scores: Tensor, length: int) -> _Finished:
        """Add the open hypotheses as if they ended now; `scores` is (B, K)."""
        best, chosen = torch.cat([self.scores, scores], 1).topk(self.scores.shape[1])
        places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
        lengths = torch.cat([self.lengths, torch.full_like(places, length)], 1)
        return _Finished(best, lengths.gather(1, chosen), torch.cat([self.places, places], 1).gather(1, chosen))


def _read_back(done: _Finished, cut: Tensor, trail: list[tuple[Tensor, Tensor]], stop: int) -> Hypotheses:
    """Trace each hypothesis from its end to its start: finished ones first, then those that were cut off."""
    slot = torch.arange(done.scores.shape[1], device=cut.device).expand_as(done.scores)
    n = done.scores.isfinite().sum(1, keepdim=True)
    finished, spare = slot < n, (slot - n).clamp(min=0)
    lengths = done.lengths.where(finished, torch.full_like(slot, len(trail)))
    place = done.places.where(finished, spare)
    scores = done.scores.where(finished, cut.gather(1, spare))
    lengths = lengths.masked_fill(scores == -torch.inf, 0)  # fewer than K different hypotheses exist
    written = []
    for t in range(len(trail) - 1, -1, -1):
        parent, tokens = trail[t]
        here = t < lengths
        written.append(tokens.gather(1, place).where(here, torch.full_like(place, stop)))
        place = parent.gather(1, place).where(here, place)
    longest = int(lengths.max())
    return Hypotheses(torch.stack(written[::-1], -1)[..., :longest], lengths, scores, finished)

"""The tokens that follow: one path (greedy, or drawn) or the best of many (beam search)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from seqloom.core.errors import InputError, UserError


class Steps(Protocol):
    """What can be searched: a state, and the next token's log-probabilities from it."""

    def start(self, batch: Any) -> Any:
        """The state before the first token, for a batch of B sources."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (N,), state -> log-probabilities (N, V), state; N is B, or K times B in a beam."""

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of these rows. Rows of one source stay together: the first N / B are those of source 0."""


@dataclass(frozen=True)
class Beam:
    """A beam search: `size` hypotheses at a time, of at most `max_length` tokens; the `best` of them are returned.

    A finished hypothesis y of n tokens, the stop token counted, is worth

        score(y) = log P(y) / ((5 + n) / 6) ** length_penalty

    as in GNMT (Wu et al. 2016, arXiv 1609.08144); length_penalty 0 is log P alone.
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
class Found:
    """Token sequences without their stop token, padded with it: (B, best, L), or (B, L) of one path."""

    tokens: Tensor
    lengths: Tensor  # (B, best) or (B,): how many tokens are real
    scores: Tensor  # likewise: Beam's score, or the log-probability of a path
    finished: Tensor  # likewise: False where max_length cut it off

    def lists(self) -> list[Any]:
        """As nested lists of ids, each as long as it is."""
        return _cut(self.tokens.tolist(), self.lengths.tolist())


def _cut(tokens: Any, lengths: Any) -> Any:
    return tokens[:lengths] if isinstance(lengths, int) else [_cut(t, n) for t, n in zip(tokens, lengths, strict=True)]


def check_max_length(max_length: int) -> None:
    if max_length < 1:
        raise UserError(f"max_length must be at least 1 token, got {max_length}")


@torch.no_grad()
def follow(
    steps: Steps,
    batch: Any,
    first: Tensor,
    stop: int | None,
    max_length: int,
    choose: Callable[[Tensor], Tensor] | None = None,
) -> Found:
    """One path for each row after its token in `first` (B,): the likeliest next token each time.

    `choose` (N, V) -> (N,) takes another than the likeliest. Without a `stop` token every path has max_length.
    """
    check_max_length(max_length)
    _check_first(first)
    state, tokens = steps.start(batch), first
    scores = torch.zeros(len(first), device=first.device)
    done = torch.zeros_like(first, dtype=torch.bool)
    lengths, taken = torch.zeros_like(first), []
    for _ in range(max_length):
        log_p, state = steps.step(tokens, state)
        tokens = log_p.argmax(-1) if choose is None else choose(log_p)
        scores = scores + log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).masked_fill(done, 0)
        if stop is not None:
            tokens = tokens.masked_fill(done, stop)
            done = done | (tokens == stop)
        lengths = lengths + ~done
        taken.append(tokens)
        if stop is not None and bool(done.all()):
            break
    longest = int(lengths.max())
    return Found(torch.stack(taken, 1)[:, :longest], lengths, scores, done)


@torch.no_grad()
def beam_search(steps: Steps, batch: Any, first: Tensor, stop: int, beam: Beam = Beam()) -> Found:
    """The best continuations of each row's token in `first` (B,), all rows and hypotheses at once.

    A row has K living hypotheses, and the best finished ones so far. The search ends when in no row
    a living one can still become one of the best: these are then what they would be in the end. What
    a step costs does not grow with the length. Where fewer than `best` have finished by max_length,
    what it cut off comes after them.
    """
    _check_first(first)
    B, K = len(first), beam.size
    base = torch.arange(B, device=first.device).unsqueeze(1) * K  # the row number of each source's first hypothesis
    state = steps.select(steps.start(batch), torch.arange(B, device=first.device).repeat_interleave(K))
    tokens = first.unsqueeze(1).expand(B, K)
    alive = torch.full((B, K), -torch.inf, device=first.device)
    alive[:, 0] = 0  # K equal hypotheses would all do the same
    kept = _Kept.nothing(alive[:, : beam.best])
    trail: list[tuple[Tensor, Tensor]] = []
    for t in range(beam.max_length):
        log_p, state = steps.step(tokens.flatten(), state)
        V = log_p.shape[-1]
        total = alive.unsqueeze(-1) + log_p.view(B, K, V)
        ended = total[..., stop].clone()
        total[..., stop] = -torch.inf
        alive, place = total.flatten(1).topk(K)
        # An ending less likely than all that live on would not be in the beam either.
        ended = ended.masked_fill(ended < alive[:, -1:], -torch.inf)
        kept = kept.add(beam.score(ended, t + 1), t)
        parent, tokens = place // V, place % V
        trail.append((parent, tokens))
        hope = beam.score(alive[:, 0], beam.max_length)  # log P only falls, the penalty only grows
        if bool((kept.scores[:, -1] >= hope).all()):
            break
        state = steps.select(state, (base + parent).flatten())
    return _read_back(kept, beam.score(alive, len(trail)), trail, stop)


def _check_first(first: Tensor) -> None:
    if first.dim() != 1 or len(first) < 1:
        raise InputError(f"first must hold one token for each row, (B,) with B of at least 1; got {tuple(first.shape)}")


@dataclass
class _Kept:
    """The best finished hypotheses: scores, how many tokens, and after which living one they ended; (B, best) each."""

    scores: Tensor
    lengths: Tensor
    places: Tensor

    @classmethod
    def nothing(cls, like: Tensor) -> _Kept:
        none = torch.zeros_like(like, dtype=torch.long)
        return cls(torch.full_like(like, -torch.inf), none, none)

    def add(self, scores: Tensor, length: int) -> _Kept:
        """`scores` (B, K): of each living hypothesis, if it ended now."""
        best, chosen = torch.cat([self.scores, scores], 1).topk(self.scores.shape[1])
        places = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
        lengths = torch.cat([self.lengths, torch.full_like(places, length)], 1)
        return _Kept(best, lengths.gather(1, chosen), torch.cat([self.places, places], 1).gather(1, chosen))


def _read_back(kept: _Kept, cut: Tensor, trail: list[tuple[Tensor, Tensor]], stop: int) -> Found:
    """Follow every hypothesis from its end to its start: finished ones first, then what was cut off."""
    slot = torch.arange(kept.scores.shape[1], device=cut.device).expand_as(kept.scores)
    n = kept.scores.isfinite().sum(1, keepdim=True)
    finished, spare = slot < n, (slot - n).clamp(min=0)
    lengths = kept.lengths.where(finished, torch.full_like(slot, len(trail)))
    place = kept.places.where(finished, spare)
    scores = kept.scores.where(finished, cut.gather(1, spare))
    lengths = lengths.masked_fill(scores == -torch.inf, 0)  # there are no K different hypotheses
    written = []
    for t in range(len(trail) - 1, -1, -1):
        parent, tokens = trail[t]
        here = t < lengths
        written.append(tokens.gather(1, place).where(here, torch.full_like(place, stop)))
        place = parent.gather(1, place).where(here, place)
    longest = int(lengths.max())
    return Found(torch.stack(written[::-1], -1)[..., :longest], lengths, scores, finished)

"""Decoding of CTC: the best path, or a beam search over prefixes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError

BLANK = 0
Prefix = tuple[int, ...]


def greedy(log_p: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[list[int]]:
    """Return the symbols of each row's most likely path: repeats joined, then blanks removed.

    Args:
        log_p: Log-probabilities (B, T, 1 + symbols), the blank first.
        lengths: (B,), the real frames of each row.
    """
    rows = []
    for path, length in zip(log_p.argmax(-1).tolist(), _read_lengths(log_p, lengths), strict=True):
        joined = [s for t, s in enumerate(path[:length]) if not t or s != path[t - 1]]
        rows.append([s for s in joined if s != BLANK])
    return rows


def prefix_beam(
    log_p: Tensor, lengths: Tensor | Sequence[int] | None = None, beam: int = 8
) -> list[list[tuple[list[int], float]]]:
    """Find the `beam` most likely symbol sequences of each row and their log-probabilities, best first.

    Unlike `greedy` this adds up all paths that read as the same symbols. A prefix l has two log-probabilities: those of
    all its paths so far that end in a blank (b) and in a symbol (n):

        b'(l)      = p_t(blank) (b(l) + n(l))
        n'(l)      = p_t(l_end) n(l)                         the same symbol, repeated
        n'(l + s) += p_t(s) (b(l) + n(l)),  s != l_end
        n'(l + s) += p_t(s) b(l),           s == l_end       a repeat needs a blank between

    The result is exact if `beam` is at least the number of prefixes. Graves et al. 2006 (ICML);
    Hannun et al. 2014, arXiv 1408.2873.
    """
    if isinstance(beam, bool) or not isinstance(beam, int) or beam < 1:
        raise UserError(f"beam must be a whole number of at least 1, got {beam!r}")
    rows = log_p.detach().to("cpu", torch.float64).tolist()
    return [_search(row[:length], beam) for row, length in zip(rows, _read_lengths(log_p, lengths), strict=True)]


def _search(frames: list[list[float]], beam: int) -> list[tuple[list[int], float]]:
    prefixes: dict[Prefix, tuple[float, float]] = {(): (0.0, -math.inf)}
    for t, p in enumerate(frames):
        ending: defaultdict[Prefix, list[list[float]]] = defaultdict(lambda: [[], []])  # terms of b', of n'
        for prefix, (b, n) in prefixes.items():
            both = _add(b, n)
            ending[prefix][0].append(p[BLANK] + both)
            for s in range(1, len(p)):
                if prefix and s == prefix[-1]:
                    ending[prefix][1].append(p[s] + n)
                    ending[(*prefix, s)][1].append(p[s] + b)
                else:
                    ending[(*prefix, s)][1].append(p[s] + both)
        summed = {prefix: (_add(*b), _add(*n)) for prefix, (b, n) in ending.items()}
        likely = {prefix: both for prefix, ends in summed.items() if (both := _add(*ends)) > -math.inf}
        if not likely:
            raise InputError(f"log_p leaves nothing possible at frame {t}: it is NaN or -inf")
        prefixes = {prefix: summed[prefix] for prefix in sorted(likely, key=likely.__getitem__, reverse=True)[:beam]}
    return [(list(prefix), _add(*ends)) for prefix, ends in prefixes.items()]


def _add(*logs: float) -> float:
    """Return log(sum(exp(logs)))."""
    top = max(logs, default=-math.inf)
    return top if top == -math.inf else top + math.log(sum(math.exp(x - top) for x in logs))


def _read_lengths(log_p: Tensor, lengths: Tensor | Sequence[int] | None) -> list[int]:
    if log_p.dim() != 3 or log_p.shape[2] < 2:
        raise InputError(f"log_p must be (B, T, 1 + symbols), got {tuple(log_p.shape)}")
    if lengths is None:
        return [log_p.shape[1]] * log_p.shape[0]
    return list(read_lengths(lengths, log_p.shape[0], log_p.shape[1], torch.device("cpu")).tolist())

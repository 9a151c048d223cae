"""Pairs of digits as a pen writes them, generated: movements of the pen with changing hands, sizes and speeds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from research.studies.data.series import Parts

CLASSES, FEATURES = 100, 3  # classes: pairs of digits; features: dx, dy, whether the pen is down
STEP = 0.16  # distance between two points of an average writer, in heights of a digit
ROWS = {"train": 10_000, "valid": 1_000, "test": 1_000}
# Strokes of each digit as corner points in a box of width 0.6 and height 1; curves are rounded afterwards.
STROKES: tuple[tuple[tuple[tuple[float, float], ...], ...], ...] = (
    (((0.3, 1.0), (0.0, 0.8), (0.0, 0.2), (0.3, 0.0), (0.6, 0.2), (0.6, 0.8), (0.3, 1.0)),),
    (((0.1, 0.75), (0.4, 1.0), (0.4, 0.0)),),
    (((0.05, 0.8), (0.3, 1.0), (0.6, 0.75), (0.3, 0.35), (0.0, 0.0), (0.6, 0.0)),),
    (((0.05, 0.9), (0.4, 1.0), (0.55, 0.75), (0.25, 0.55), (0.6, 0.3), (0.35, 0.0), (0.0, 0.1)),),
    (((0.35, 1.0), (0.0, 0.35), (0.6, 0.35)), ((0.45, 0.65), (0.4, 0.0))),
    (((0.1, 1.0), (0.1, 0.6), (0.45, 0.6), (0.6, 0.3), (0.3, 0.0), (0.0, 0.1)), ((0.1, 1.0), (0.55, 1.0))),
    (((0.45, 1.0), (0.1, 0.6), (0.0, 0.2), (0.3, 0.0), (0.6, 0.2), (0.4, 0.45), (0.05, 0.3)),),
    (((0.0, 1.0), (0.6, 1.0), (0.25, 0.0)), ((0.15, 0.5), (0.5, 0.5))),
    (((0.5, 0.85), (0.2, 1.0), (0.1, 0.7), (0.5, 0.35), (0.3, 0.0), (0.05, 0.25), (0.5, 0.7), (0.5, 0.85)),),
    (((0.55, 0.75), (0.3, 1.0), (0.05, 0.75), (0.3, 0.5), (0.55, 0.75), (0.5, 0.3), (0.3, 0.0)),),
)


def pairs_of_digits(steps: int, every: int = 1, seed: int = 0) -> Parts:
    """Return movements (N, steps, 3), the number that was written, and lengths, by split.

    Each row has another slant, size, width, speed and tremor.

    Args:
        steps: Longest sequence; longer ones are cut.
        every: 2 halves the number of rows, and so on.
        seed: Of the random numbers.
    """
    random = torch.Generator().manual_seed(seed)
    parts: Parts = {}
    for split, count in ROWS.items():
        rows = count // every
        x, lengths = torch.zeros(rows, steps, FEATURES), torch.zeros(rows, dtype=torch.long)
        y = torch.randint(CLASSES, (rows,), generator=random)
        for i, number in enumerate(y.tolist()):
            moves = write_number(number, random)[:steps]
            x[i, : len(moves)], lengths[i] = moves, len(moves)
        parts[split] = (x, y, lengths)
    return parts


def write_number(number: int, random: torch.Generator) -> Tensor:
    """Write two digits; return dx, dy in units of an average step, and whether the pen is down (T, 3)."""
    slant, turn, width, speed = (_spread(random, s) for s in (0.35, 0.15, 0.15, 0.3))
    points, pen = [], []
    for place, digit in enumerate(divmod(number, 10)):
        size = math.exp(_spread(random, 0.15))
        for stroke in STROKES[digit]:
            corners = torch.tensor(stroke) * torch.tensor([math.exp(width), 1.0]) * size
            corners = corners + 0.07 * torch.randn(corners.shape, generator=random)
            corners = corners + torch.tensor([0.9 * place, 0.1 * _spread(random, 1.0)])
            curve = _resample(_round_corners(corners), STEP * math.exp(speed))
            points.append(curve + 0.01 * torch.randn(curve.shape, generator=random))
            pen += [0.0] + [1.0] * (len(curve) - 1)  # the pen is lifted on the way to a stroke
    path = torch.cat(points)
    lean = torch.tensor([[1.0, 0.0], [slant, 1.0]])
    rotation = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    path = path @ lean @ rotation
    moves = torch.diff(path, dim=0, prepend=path[:1]) / STEP
    return torch.cat([moves, torch.tensor(pen).unsqueeze(1)], 1)


def _spread(random: torch.Generator, deviation: float) -> float:
    return deviation * float(torch.randn((), generator=random))


def _round_corners(corners: Tensor, rounds: int = 2) -> Tensor:
    """Cut the corners of a polyline, so that it becomes a curve (Chaikin 1974)."""
    for _ in range(rounds):
        a, b = corners[:-1], corners[1:]
        inner = torch.stack([0.75 * a + 0.25 * b, 0.25 * a + 0.75 * b], 1).flatten(0, 1)
        corners = torch.cat([corners[:1], inner, corners[-1:]])
    return corners


def _resample(curve: Tensor, step: float) -> Tensor:
    """Return points of the curve at equal distances of about `step`, both ends included."""
    along = torch.cat([torch.zeros(1), torch.diff(curve, dim=0).norm(dim=1).cumsum(0)])
    count = max(2, round(float(along[-1]) / step) + 1)
    at = torch.linspace(0, float(along[-1]), count)
    right = torch.searchsorted(along, at).clamp(1, len(along) - 1)
    share = (at - along[right - 1]) / (along[right] - along[right - 1]).clamp(min=1e-9)
    return curve[right - 1] + share.unsqueeze(1) * (curve[right] - curve[right - 1])

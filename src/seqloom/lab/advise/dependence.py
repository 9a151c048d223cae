"""How far back the information about a target lies: mutual information by distance, computed on the sample.

    I(d) = sum p(x, y) log2 p(x, y) / (p(x) p(y))      ids: x at distance d from y, in bits
    I(d) = -log2(1 - R^2) / 2                          numbers: R^2 of a target by the value at distance d

The information that remains when x and y are paired at random is subtracted as chance. Distances are counted from
the step at which a target is predicted: the last step of a classified sequence, the step itself of a tagged or
generated one. Only pairs of one step and one target are considered: information that two steps carry only together
is not found.
"""

from __future__ import annotations

import numpy as np

from seqloom.lab.advise.curve import DistanceCurve, space_distances, stretch_widths
from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.kinds.registry import kind_of

DISTINCT_IDS = 64  # the most frequent ids; all others count as one
ID_PAIRS, NUMBER_PAIRS = 60_000, 4_000  # pairs that are drawn for a distance
MOST_FEATURES = 16
LONGEST_DISTANCE = 600
SIGNIFICANT = 4.0  # standard errors above chance from which information counts
SHUFFLES = 6
POOLED_STEPS = 8  # steps of a stretch that are measured
PRIOR_COUNT = 4.0  # pseudo-counts of the class frequencies for each id


def measure_dependence(sample: Sample) -> DistanceCurve:
    """Return the bits about the target by distance."""
    far = min(int(np.quantile(sample.lengths, 0.95)) - 1, LONGEST_DISTANCE)
    kind = kind_of(sample.task)
    random = np.random.default_rng(0)
    if kind.is_per_row:
        return _whole(sample, space_distances(far), random)
    before = space_distances(far)
    if kind.continues_text:
        return _steps(sample, before, random)
    if kind.padding is not None and not kind.aligns_text:
        return _steps(sample, [*(-d for d in reversed(before[1:])), *before], random)
    return _series(sample, before[1:] or [1])


def _whole(sample: Sample, distances: list[int], random: np.random.Generator) -> DistanceCurve:
    """Measure tasks with one target per sequence; each distance pools up to POOLED_STEPS steps of its stretch."""
    y = np.stack([e.y.numpy().ravel() for e in sample.examples])
    y = y[:, 0] if kind_of(sample.task).has_classes else y
    known = y >= 0 if y.ndim == 1 else np.isfinite(y).all(1)
    x, starts = sample.flat()
    rows = np.flatnonzero(known)
    if x.ndim == 1:
        # Ids are grouped on different examples than those they are measured on.
        fit, rows = np.split(rows, [len(rows) // 2])
        x = _group_by_class(x, sample, fit, y)
    y = _keep_frequent(y) if y.ndim == 1 else y
    bits = []
    for d, width in zip(distances, stretch_widths(distances), strict=True):
        offsets = random.permutation(np.arange(d - int(width / 2), d + int(width / 2) + 1))[:POOLED_STEPS]
        row = np.tile(rows, len(offsets))
        place = sample.lengths[row] - 1 - np.repeat(offsets, len(rows))
        there = (place >= 0) & (place < sample.lengths[row])
        row, place = row[there], place[there]
        bits.append(_bits(x[starts[row] + place], y[row], random) if len(row) > 1 else 0.0)
    return DistanceCurve(tuple(distances), tuple(bits))


def _group_by_class(ids: Array, sample: Sample, rows: Array, y: Array) -> Array:
    """Group ids by the class they indicate and how strongly; for regression, keep them."""
    if y.ndim > 1:
        return _keep_frequent(ids)
    C, V = int(y.max()) + 1, int(ids.max()) + 1
    row = np.repeat(np.arange(len(sample)), sample.lengths)
    seen = np.isin(row, rows)
    counts = np.bincount(ids[seen] * C + y[row[seen]], minlength=V * C).reshape(V, C)
    share = (counts + counts.sum(0) / counts.sum() * PRIOR_COUNT) / (counts.sum(1, keepdims=True) + PRIOR_COUNT)
    lift = np.log2(share / (counts.sum(0) / counts.sum() + 1e-9) + 1e-9)
    strength = np.digitize(lift.max(1), (0.05, 0.4))
    return _keep_frequent((lift.argmax(1) * 3 + strength)[ids])


def _steps(sample: Sample, distances: list[int], random: np.random.Generator) -> DistanceCurve:
    """Measure tasks with a target at every step."""
    x, starts = sample.flat()
    lengths = sample.lengths
    sizes = np.array([len(e.y) for e in sample.examples])
    row = np.repeat(np.arange(len(sample)), sizes)
    place = np.concatenate([np.arange(n) for n in sizes])
    y = np.concatenate([e.y.numpy() for e in sample.examples])
    x = _keep_frequent(x) if x.ndim == 1 else x
    row, place, y = row[y >= 0], place[y >= 0], _keep_frequent(y[y >= 0])
    bits = []
    for d in distances:
        there = np.flatnonzero((place - d >= 0) & (place - d < lengths[row]))
        there = random.permutation(there)[:ID_PAIRS]
        bits.append(_bits(x[starts[row[there]] + place[there] - d], y[there], random) if len(there) > 1 else 0.0)
    return DistanceCurve(tuple(distances), tuple(bits))


def _keep_frequent(ids: Array) -> Array:
    """Map the DISTINCT_IDS - 1 most frequent ids to 1, 2, ... and all others to 0."""
    values, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    names = np.zeros(len(values), np.int64)
    names[np.argsort(-counts, kind="stable")[: DISTINCT_IDS - 1]] = np.arange(1, min(len(values), DISTINCT_IDS - 1) + 1)
    return names[inverse]


def _bits(x: Array, y: Array, random: np.random.Generator) -> float:
    """Return the bits of x about y above chance; 0 if not significant."""
    if x.ndim > 1 or y.ndim > 1:
        some = random.permutation(len(x))[:NUMBER_PAIRS]
        x, y = x[some], y[some]
    bits = _information(x, y)
    chance = [_information(x, random.permutation(y)) for _ in range(SHUFFLES)]
    above = bits - float(np.mean(chance))
    return above if above > SIGNIFICANT * (float(np.std(chance)) + 0.02 * float(np.mean(chance))) else 0.0


def _information(x: Array, y: Array) -> float:
    if x.ndim == 1 and y.ndim == 1:
        p = np.bincount(x * DISTINCT_IDS + y, minlength=DISTINCT_IDS * DISTINCT_IDS).reshape(
            DISTINCT_IDS, DISTINCT_IDS
        ) / len(x)
        apart = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
        return float((p[p > 0] * np.log2(p[p > 0] / apart[p > 0])).sum())
    inputs = _center(_one_hot(x) if x.ndim == 1 else x[:, :MOST_FEATURES])
    outputs = _center(_one_hot(y) if y.ndim == 1 else y[:, :MOST_FEATURES])
    if y.ndim == 1:  # numbers predict a class: use the variance of each number that the classes explain
        inputs, outputs = outputs, inputs
    explained = inputs @ np.linalg.lstsq(inputs, outputs, rcond=1e-6)[0]
    R2 = np.square(explained).sum(0) / np.maximum(np.square(outputs).sum(0), 1e-9)
    return float(-np.log2(np.maximum(1 - R2, 1e-6)).mean() / 2)


def _one_hot(ids: Array) -> Array:
    return np.eye(DISTINCT_IDS)[ids][:, np.unique(ids)]


def _center(v: Array) -> Array:
    return np.asarray(v, np.float64) - np.mean(v, 0)


def _series(sample: Sample, distances: list[int]) -> DistanceCurve:
    """Measure what a value of a series says about the same feature d steps later."""
    rows = [e.x.numpy()[:, :MOST_FEATURES] for e in sample.examples[:400]]
    bits = [_gaussian_bits(r) for r in autocorrelation(rows, distances)]
    return DistanceCurve(tuple(distances), tuple(bits))


def autocorrelation(rows: list[Array], distances: list[int]) -> list[Array]:
    """Return (D,) for each distance: the correlation of each feature with itself d steps later."""
    every = np.concatenate(rows)
    mean, deviation = every.mean(0), every.std(0) + 1e-9
    rows = [(r - mean) / deviation for r in rows]
    correlations = []
    for d in distances:
        pairs = [(r[:-d], r[d:]) if d else (r, r) for r in rows if len(r) > d]
        n = sum(len(a) for a, _ in pairs)
        correlations.append(sum((a * b).sum(0) for a, b in pairs) / max(n, 1) if pairs else np.zeros(every.shape[1]))
    return correlations


def _gaussian_bits(r: Array) -> float:
    """Return the bits between normal variables with correlation r, averaged over features; |r| < 0.1 counts as 0."""
    r = np.where(np.abs(r) < 0.1, 0.0, np.clip(r, -0.999, 0.999))
    return float(-np.log2(1 - np.square(r)).mean() / 2)

"""How far back the information about a target lies: mutual information against distance, on the sample alone.

    I(d) = sum p(x, y) log2 p(x, y) / (p(x) p(y))      ids: x at distance d from y, in bits
    I(d) = -log2(1 - R^2) / 2                          numbers: R^2 of a target by the value at distance d

What is left when x and y are paired at random is chance, and is taken off. Distances are counted from the place
where a target is read: the last step of a sequence that is read as a whole, the step itself of one that is tagged or
continued. Only pairs of one step and one target are seen: what two steps say together and neither alone is not.
"""

from __future__ import annotations

import numpy as np

from seqloom.lab.advise.curve import Curve, spread, stretches
from seqloom.lab.advise.sample import Array, Sample

KINDS = 64  # ids that are told apart, the commonest; all others are one
PAIRS, NUMBERS = 60_000, 4_000  # drawn for a distance, of ids and of numbers
FEATURES = 16  # of many features that are looked at
LONGEST = 600
SURE = 4.0  # standard errors of chance above which something is taken for more than chance
SHUFFLES = 6
POOLED = 8  # places of a stretch
PRIOR = 4.0  # tokens that an id must outweigh to speak for a class


def dependence(sample: Sample, seed: int = 0) -> Curve:
    """Bits about the target against distance."""
    far = min(int(np.quantile(sample.lengths, 0.95)) - 1, LONGEST)
    kind = sample.task.kind
    random = np.random.default_rng(seed)
    if kind in ("classify", "regress"):
        return _whole(sample, spread(far), random)
    before = spread(far)
    if kind == "generate":
        return _steps(sample, before, random)
    if kind in ("tag", "translate"):
        return _steps(sample, [*(-d for d in reversed(before[1:])), *before], random)
    return _series(sample, before[1:] or [1])


def _whole(sample: Sample, distances: list[int], random: np.random.Generator) -> Curve:
    """Every sequence has one target; a distance is measured at up to POOLED places of the stretch it stands for."""
    y = np.stack([e.y.numpy().ravel() for e in sample.examples])
    y = y[:, 0] if sample.task.kind == "classify" else y
    known = y >= 0 if y.ndim == 1 else np.isfinite(y).all(1)
    x, starts = sample.flat()
    rows = np.flatnonzero(known)
    if x.ndim == 1:
        telling = rows[: len(rows) // 2]
        rows = rows[len(rows) // 2 :]  # what an id tells is learned from other examples than those it is measured on
        x = _telling(x, sample, telling, y)
    y = _common(y) if y.ndim == 1 else y
    bits = []
    for d, width in zip(distances, stretches(distances), strict=True):
        offsets = random.permutation(np.arange(d - int(width / 2), d + int(width / 2) + 1))[:POOLED]
        row = np.tile(rows, len(offsets))
        place = sample.lengths[row] - 1 - np.repeat(offsets, len(rows))
        there = (place >= 0) & (place < sample.lengths[row])
        row, place = row[there], place[there]
        bits.append(_bits(x[starts[row] + place], y[row], random) if len(row) > 1 else 0.0)
    return Curve(tuple(distances), tuple(bits))


def _telling(ids: Array, sample: Sample, rows: Array, y: Array) -> Array:
    """Each id by the class that it speaks for, and by how loudly; of regression, ids as they are."""
    if y.ndim > 1:
        return _common(ids)
    C, V = int(y.max()) + 1, int(ids.max()) + 1
    row = np.repeat(np.arange(len(sample)), sample.lengths)
    seen = np.isin(row, rows)
    counts = np.bincount(ids[seen] * C + y[row[seen]], minlength=V * C).reshape(V, C)
    share = (counts + counts.sum(0) / counts.sum() * PRIOR) / (counts.sum(1, keepdims=True) + PRIOR)
    lift = np.log2(share / (counts.sum(0) / counts.sum() + 1e-9) + 1e-9)
    loud = np.digitize(lift.max(1), (0.05, 0.4))
    return _common((lift.argmax(1) * 3 + loud)[ids])


def _steps(sample: Sample, distances: list[int], random: np.random.Generator) -> Curve:
    """Every step has its target."""
    x, starts = sample.flat()
    lengths = sample.lengths
    sizes = np.array([len(e.y) for e in sample.examples])
    row = np.repeat(np.arange(len(sample)), sizes)
    place = np.concatenate([np.arange(n) for n in sizes])
    y = np.concatenate([e.y.numpy() for e in sample.examples])
    x = _common(x) if x.ndim == 1 else x
    row, place, y = row[y >= 0], place[y >= 0], _common(y[y >= 0])
    bits = []
    for d in distances:
        there = np.flatnonzero((place - d >= 0) & (place - d < lengths[row]))
        there = random.permutation(there)[:PAIRS]
        bits.append(_bits(x[starts[row[there]] + place[there] - d], y[there], random) if len(there) > 1 else 0.0)
    return Curve(tuple(distances), tuple(bits))


def _common(ids: Array) -> Array:
    """The KINDS - 1 commonest ids as 1, 2, ..., all others as 0."""
    found, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    names = np.zeros(len(found), np.int64)
    names[np.argsort(-counts, kind="stable")[: KINDS - 1]] = np.arange(1, min(len(found), KINDS - 1) + 1)
    return names[inverse]


def _bits(x: Array, y: Array, random: np.random.Generator) -> float:
    """What x says about y beyond chance; 0 where that is too little to be sure of."""
    if x.ndim > 1 or y.ndim > 1:
        some = random.permutation(len(x))[:NUMBERS]
        x, y = x[some], y[some]
    found = _information(x, y)
    chance = [_information(x, random.permutation(y)) for _ in range(SHUFFLES)]
    above = found - float(np.mean(chance))
    return above if above > SURE * (float(np.std(chance)) + 0.02 * float(np.mean(chance))) else 0.0


def _information(x: Array, y: Array) -> float:
    if x.ndim == 1 and y.ndim == 1:
        p = np.bincount(x * KINDS + y, minlength=KINDS * KINDS).reshape(KINDS, KINDS) / len(x)
        apart = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
        return float((p[p > 0] * np.log2(p[p > 0] / apart[p > 0])).sum())
    given = _centred(_one_hot(x) if x.ndim == 1 else x[:, :FEATURES])
    asked = _centred(_one_hot(y) if y.ndim == 1 else y[:, :FEATURES])
    if y.ndim == 1:  # numbers say a class: how much of each number's variance the classes explain
        given, asked = asked, given
    explained = given @ np.linalg.lstsq(given, asked, rcond=1e-6)[0]
    R2 = np.square(explained).sum(0) / np.maximum(np.square(asked).sum(0), 1e-9)
    return float(-np.log2(np.maximum(1 - R2, 1e-6)).mean() / 2)


def _one_hot(ids: Array) -> Array:
    return np.eye(KINDS)[ids][:, np.unique(ids)]


def _centred(v: Array) -> Array:
    return np.asarray(v, np.float64) - np.mean(v, 0)


def _series(sample: Sample, distances: list[int]) -> Curve:
    """Of a series: what a value says about the same feature d steps later."""
    rows = [e.x.numpy()[:, :FEATURES] for e in sample.examples[:400]]
    bits = [_gauss(r) for r in autocorrelation(rows, distances)]
    return Curve(tuple(distances), tuple(bits))


def autocorrelation(rows: list[Array], distances: list[int]) -> list[Array]:
    """(D,) for each distance: how each feature goes with itself d steps later."""
    every = np.concatenate(rows)
    mean, deviation = every.mean(0), every.std(0) + 1e-9
    rows = [(r - mean) / deviation for r in rows]
    found = []
    for d in distances:
        pairs = [(r[:-d], r[d:]) if d else (r, r) for r in rows if len(r) > d]
        n = sum(len(a) for a, _ in pairs)
        found.append(sum((a * b).sum(0) for a, b in pairs) / max(n, 1) if pairs else np.zeros(every.shape[1]))
    return found


def _gauss(r: Array) -> float:
    """Bits of two normal numbers with correlation r, the mean over features; a weak one is chance."""
    r = np.where(np.abs(r) < 0.1, 0.0, np.clip(r, -0.999, 0.999))
    return float(-np.log2(1 - np.square(r)).mean() / 2)

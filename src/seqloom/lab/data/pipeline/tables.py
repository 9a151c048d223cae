"""A table in time made ready for windows: ordered, cut by time, scaled on its training rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.scale import Scale
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.times import TimesCoder, checked
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.ragged import Writer
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.saved import Saved
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Notes

USUAL = Reading()


Array = np.ndarray[Any, Any]
MONTH = 30 * 24 * 3600  # seconds: the months of the usual ETT borders
SHARES = (0.7, 0.1, 0.2)
Borders = dict[str, tuple[float, float]]  # split -> from and to, as shares of the rows or as rows


def build_windows(found: Source, saved: Saved, work: Path) -> None:
    """Fit on the training rows, then write."""
    saved.x = SeriesCoder(saved.plan.input, width=1 if len(saved.plan.input) == 1 else 0)
    saved.y = ValuesCoder(saved.plan.target)
    frame, ranges = ordered(found, saved.plan)
    cuts = _borders(frame, ranges, saved, found)
    longest = max(b - a for a, b in ranges)
    sides = {name: b - a for name, (a, b) in ((name, _rows(cut, 0, longest)) for name, cut in cuts.items())}
    saved.options = fitted(saved.options, sides, saved.notes)
    train = np.concatenate([np.arange(*_rows(cuts["train"], a, b)) for a, b in ranges])
    saved.x.scale = Scale.fit([_matrix(frame, saved.plan.input)[train]])
    saved.y.scale = Scale.fit([_matrix(frame, saved.plan.target)[train]])
    if saved.plan.time:
        saved.times = _ticks(frame, ranges, saved)
    saved.notes.say("errors are in units of each column's spread (standard deviation) in training")
    write(found, saved, cuts, work)


def ordered(found: Source, plan: Plan) -> tuple[pl.DataFrame, list[tuple[int, int]]]:
    """The rows by group and time, and the first and last row of every group."""
    there = found.frame().collect_schema().names()
    group = plan.group if plan.group in there else None  # new rows may be one series
    names = [n for n in (group, plan.time) if n]
    missing = [n for n in (*plan.input, *([plan.time] if plan.time else [])) if n not in there]
    if missing:
        raise UserError(f"{found.parts[0].label}: no column {missing[0]!r}, which training had")
    frame = found.frame().select(n for n in dict.fromkeys([*names, *plan.input, *plan.target]) if n in there).collect()
    if plan.time:
        frame = frame.with_columns(pl.Series("_t", checked(frame[plan.time], found.place)))
    keys = [n for n in (group, "_t" if plan.time else None) if n]
    frame = frame.sort(keys, maintain_order=True) if keys else frame
    sizes = frame.group_by(group, maintain_order=True).len()["len"].to_list() if group else [len(frame)]
    ends = np.cumsum(sizes).tolist()
    return frame, list(zip([0, *ends[:-1]], ends, strict=True))


def _borders(frame: pl.DataFrame, ranges: list[tuple[int, int]], saved: Saved, found: Source) -> Borders:
    """What `borders` means here."""
    asked = saved.options.borders
    if asked == "ett":
        if not saved.plan.time:
            raise UserError(f"{found.parts[0].label}: borders=ett needs time stamps; say time=...")
        start, end = ranges[0]
        tick = float(np.median(np.diff(frame["_t"].to_numpy()[start:end])))
        months = [round(m * MONTH / tick) for m in (12, 16, 20)]
        if months[-1] > end - start:
            raise UserError(
                f"{found.parts[0].label}: borders=ett needs 20 months, {months[-1]} rows, got {end - start}"
            )
        edges = [0.0, *map(float, months)]
    else:
        parts = list(SHARES) if asked == "auto" else [float(part) for part in asked.split("/")]
        total = sum(parts)
        rows = total > 100.5  # 70/10/20 and 0.7/0.1/0.2 are shares
        edges = [0.0, *np.cumsum(parts if rows else [p / total for p in parts]).tolist()]
    saved.notes.say("split by time: " + ", ".join(f"{n} {b - a:g}" for n, a, b in _named(edges)) + _unit(edges))
    return {name: (a, b) for name, a, b in _named(edges)}


def _named(edges: list[float]) -> list[tuple[str, float, float]]:
    return list(zip(("train", "valid", "test"), edges[:-1], edges[1:], strict=True))


def _unit(edges: list[float]) -> str:
    return " rows" if edges[-1] > 1.5 else " of the rows"


def _rows(cut: tuple[float, float], start: int, end: int) -> tuple[int, int]:
    """The rows of one group on one side of the borders."""
    size = end - start
    a, b = (round(c * size) if cut[1] <= 1.5 else round(c) for c in cut)
    return start + min(a, size), start + min(b, size)


def _matrix(frame: pl.DataFrame, names: tuple[str, ...]) -> Array:
    return frame.select(pl.col(n).cast(pl.Float64).fill_null(float("nan")) for n in names).to_numpy()


def _ticks(frame: pl.DataFrame, ranges: list[tuple[int, int]], saved: Saved) -> TimesCoder | None:
    spans = np.concatenate([np.diff(frame["_t"].to_numpy()[a:b]) for a, b in ranges])
    coder = TimesCoder(saved.plan.time or "")
    coder.tick = float(np.median(spans)) or 1.0
    if len(spans) and np.abs(spans / coder.tick - 1).max() < 0.15:  # months differ by a day or two
        return None
    saved.notes.say(f"time stamps {saved.plan.time!r} are irregular; batches carry the time since the step before")
    return coder


def write(found: Source, saved: Saved, cuts: Borders, work: Path) -> None:
    """The scaled table and the first row of every window of each split."""
    frame, ranges = ordered(found, saved.plan)
    x, y = _matrix(frame, saved.plan.input), _matrix(frame, saved.plan.target)
    _put(work, "x", saved.x.scale.masked(x))
    _put(work, "y", saved.y.scale.forth(y).astype(np.float32))
    gaps = int((~np.isfinite(x)).any(1).sum())
    if gaps:
        saved.notes.warn(f"{gaps} of {len(x)} rows have missing values, which read 0 and are marked")
    if saved.times is not None:
        dt = np.diff(frame["_t"].to_numpy(), prepend=frame["_t"][0]) / saved.times.tick
        dt[[a for a, _ in ranges]] = 0
        _put(work, "times", dt.astype(np.float32))
    back, ahead = saved.options.lookback, saved.options.horizon
    short = sum(b - a < back + ahead for a, b in ranges)
    if short:
        saved.notes.warn(
            f"{short} of {len(ranges)} series are shorter than a window of {back} + {ahead} rows; left out"
        )
    for number, (name, cut) in enumerate(cuts.items()):
        starts = np.concatenate([_starts(_rows(cut, a, b), a, back, ahead) for a, b in ranges])
        if not len(starts):
            told = f"{name} has no room for a window of {back} + {ahead} rows"
            raise UserError(f"{found.parts[0].label}: {told}; shorten lookback=... or horizon=..., or move borders=...")
        np.save(work / f"split.{number}.npy", starts)
        saved.splits[name] = {"size": len(starts), "hash": cache.digest(found.fingerprint, starts.tobytes())}


def _starts(side: tuple[int, int], first: int, back: int, ahead: int) -> Array:
    return np.arange(max(first, side[0] - back), max(first, side[1] - back - ahead + 1), dtype=np.int64)


def _put(work: Path, name: str, values: Array) -> None:
    writer = Writer(work, name)
    writer.add(values, np.array([len(values)]))
    writer.close()


def fitted(options: Reading, sides: Mapping[str, int], notes: Notes) -> Reading:
    """Shorter windows where the usual ones have no room; `sides` are the rows of the longest series in each split.

    A horizon is at most half of the shortest side, and a window half of the training rows. What was asked for stays.
    """
    back, ahead, train = options.lookback, options.horizon, sides["train"]
    shortest = min(sides.values())
    if back + ahead <= train and ahead <= shortest:
        return options
    if ahead == USUAL.horizon:
        ahead = min(ahead, max(1, shortest // 2))
    if back == USUAL.lookback:
        back = min(back, max(1, train // 2 - ahead))
    if (back, ahead) != (options.lookback, options.horizon):
        told = f"the usual window of {options.lookback} + {options.horizon} rows does not fit in"
        notes.say(f"{told}: {back} steps say {ahead}; lookback=... and horizon=... take others")
    return options.model_copy(update={"lookback": back, "horizon": ahead})

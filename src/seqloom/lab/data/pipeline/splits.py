"""Which row is trained on, which is validated on, which is tested on."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.times import checked
from seqloom.lab.data.pipeline import duplicates
from seqloom.lab.data.pipeline.paths import SPLITS
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Notes

Array = np.ndarray[Any, Any]
FEW = 10  # different series, which cannot be split; rows, from which nothing is learned
PLENTY = 10_000  # examples that are enough to validate or test on, where nobody asked for more


def split(source: Source, plan: Plan, keep: Array, texts: bool, options: Reading, notes: Notes) -> dict[str, Array]:
    """split -> row numbers, of the rows in `keep` (N,) bool. Given splits stay; missing ones are made."""
    given = _given(source, plan)
    rows = {name: np.flatnonzero((given == name) & keep) for name in dict.fromkeys(given.tolist())}
    rows = {"train" if name == "" else name: r for name, r in rows.items()}
    if not len(rows.get("train", ())):
        raise UserError(f"{source.parts[0].label}: no usable rows to train on; splits: {', '.join(rows)}")
    shares = {"valid": options.valid} if "test" in rows else {"valid": options.valid, "test": options.test}
    shares = {name: share for name, share in shares.items() if name not in rows and ("valid" not in rows)}
    usual, most = Reading(), PLENTY / len(rows["train"])
    shares = {k: min(share, most) if share == getattr(usual, k) else share for k, share in shares.items()}
    if sum(shares.values()) >= 1:
        told = " and ".join(f"{name}={share:g}" for name, share in shares.items())
        raise UserError(
            f"{source.parts[0].label}: {told} leave nothing to train on; make valid=... or test=... smaller"
        )
    if shares:
        rows |= _made(source, plan, rows["train"], shares, texts, options, notes)
    if texts and (plan.split or len(source.parts) > 1):
        _shared(source, plan, rows, notes)
    if len(rows["train"]) < FEW:
        notes.warn(f"there are only {len(rows['train'])} rows to train on; no number that follows means much")
    order = ("train", "valid", "test")
    return {name: rows[name] for name in sorted(rows, key=lambda s: order.index(s) if s in order else 3)}


def _given(source: Source, plan: Plan) -> Array:
    """(N,) the name of each row's split, "" where none was given."""
    if plan.split:
        names = source.columns(plan.split)[plan.split].str.to_lowercase()
        return np.array([SPLITS.get(name or "", name or "") for name in names], dtype=object)
    parts = [np.full(part.rows, part.split or "", dtype=object) for part in source.parts]
    return np.concatenate(parts)


def _made(
    source: Source, plan: Plan, rows: Array, shares: dict[str, float], texts: bool, options: Reading, notes: Notes
) -> dict[str, Array]:
    if plan.time and plan.layout == "rows" and source.frame().collect_schema()[plan.time].is_nested() is False:
        return _later(source, plan, rows, shares, notes)
    keys = _keys(source, plan, rows, texts, options, notes)
    labels = np.zeros(len(rows), dtype=np.int64)
    if plan.kind == "classify":
        column = source.columns(plan.target[0])[plan.target[0]].cast(pl.String)
        labels = column.rank("dense").fill_null(0).to_numpy()[rows].astype(np.int64)
    share = ", ".join(f"{v:.0%} {k}" if v >= 0.01 else f"{round(v * len(rows)):,} {k}" for k, v in shares.items())
    notes.say(f"made a split: {share}, seed {options.split_seed}" + (", stratified" if plan.kind == "classify" else ""))
    try:
        return _stratified(rows, keys, labels, shares, options.split_seed)
    except ValueError as error:
        raise UserError(f"{source.parts[0].label}: {error}") from None


def _keys(source: Source, plan: Plan, rows: Array, texts: bool, options: Reading, notes: Notes) -> Array:
    """(rows,) rows with the same key stay together."""
    if plan.group and plan.layout != "long":
        column = source.columns(plan.group)[plan.group].cast(pl.String)
        notes.say(f"rows of one {plan.group!r} stay on one side of the split")
        return column.rank("dense").fill_null(0).to_numpy().astype(np.int64)[rows]
    if not options.near_duplicates:
        return np.arange(len(rows))
    if not texts:
        return _same(source, plan, rows, notes)
    wanted = np.zeros(source.rows, dtype=bool)
    wanted[rows] = True
    chunks = source.chunks(plan.input[:1])
    keys = duplicates.clusters(_text(f.filter(wanted[start : start + len(f)]).to_series()) for start, f in chunks)
    together = len(rows) - len(np.unique(keys))
    if together:
        notes.say(f"{together} texts nearly repeat another one; such texts stay on one side of the split")
    return keys


def _same(source: Source, plan: Plan, rows: Array, notes: Notes) -> Array:
    """(rows,) the same number for rows whose series are equal, number by number."""
    hashes = np.concatenate([_hashed(frame, plan.input) for _, frame in source.chunks(plan.input)])
    _, first, keys = np.unique(hashes[rows], return_index=True, return_inverse=True)
    keys = np.argsort(np.argsort(first))[keys.ravel()]  # numbered as they come
    together = len(rows) - len(first)
    if together and len(first) < FEW:
        notes.warn(f"there are only {len(first)} different series; the same ones are trained and tested on")
        return np.arange(len(rows))
    if together:
        notes.say(f"{together} series repeat another one; such series stay on one side of the split")
    return keys


def _hashed(frame: pl.DataFrame, names: tuple[str, ...]) -> Array:
    parts = [frame[name].hash(k).to_numpy() * np.uint64(2 * k + 1) for k, name in enumerate(names)]
    return np.add.reduce(parts)


def _text(column: pl.Series) -> pl.Series:
    return column.list.join(" ") if column.dtype.is_nested() else column


def _later(source: Source, plan: Plan, rows: Array, shares: dict[str, float], notes: Notes) -> dict[str, Array]:
    """The latest rows for the last share. Rows of one group are as late as the latest of them."""
    time = plan.time or ""
    notes.say(f"split by time: later rows of {time!r} are held out")
    frame = source.columns(*dict.fromkeys([time, *([plan.group] if plan.group else [])]))
    stamps = checked(frame[time], source.place)[rows]
    keys = np.arange(len(rows))
    if plan.group:
        notes.say(f"rows of one {plan.group!r} stay on one side of the split")
        keys = frame[plan.group].cast(pl.String).rank("dense").fill_null(0).to_numpy().astype(np.int64)[rows]
        latest = np.full(keys.max() + 1, -np.inf)
        np.maximum.at(latest, keys, stamps)
        stamps = latest[keys]
    order = np.lexsort((keys, stamps))
    rows, keys = rows[order], keys[order]
    parts, end = {}, len(rows)
    for name, share in reversed(shares.items()):
        start = max(end - max(1, round(share * len(rows))), 1)
        while start > 1 and keys[start] == keys[start - 1]:
            start -= 1
        parts[name], end = np.sort(rows[start:end]), start
    return {"train": np.sort(rows[:end])} | parts


def _stratified(rows: Array, keys: Array, labels: Array, shares: dict[str, float], seed: int) -> dict[str, Array]:
    """Groups in random order, each class by itself, until every split has its share of the class.

    A group counts for the class of its first row. A class that is too small stays in training.
    """
    _, first, group, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    side = np.zeros(len(sizes), dtype=np.int64)  # 0 is train
    order = np.random.default_rng(seed).permutation(len(sizes))
    label = labels[first][order]
    for one in np.unique(label):
        mine = order[label == one]
        before = np.cumsum(sizes[mine]) - sizes[mine] / 2  # the middle of each group decides
        total, edge = sizes[mine].sum(), 0.0
        for number, share in enumerate(shares.values(), 1):
            want = float(round(share * total))
            side[mine[(before >= edge) & (before < edge + want)]] = number
            edge += want
    for number, name in enumerate(shares, 1):  # few, large groups may have left a split empty
        spare = np.flatnonzero(side == 0)
        if not (side == number).any():
            if len(spare) < 2:
                raise UserError(f"too few different examples to hold some out for {name!r}; give the splits yourself")
            side[spare[sizes[spare].argmin()]] = number
    of_row = side[group.ravel()]
    return {name: rows[of_row == number] for number, name in enumerate(("train", *shares))}


def _shared(source: Source, plan: Plan, rows: dict[str, Array], notes: Notes) -> None:
    """Count texts of a test split that training has too."""
    chunks = [duplicates.equal(_text(frame.to_series())) for _, frame in source.chunks(plan.input[:1])]
    hashes = np.concatenate(chunks)
    for name in [name for name in rows if name.startswith("test")]:
        count = int(np.isin(hashes[rows[name]], hashes[rows["train"]]).sum())
        if count:
            notes.warn(f"{count} of {len(rows[name])} texts of {name!r} are in training too")

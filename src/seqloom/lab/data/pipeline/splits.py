"""Divide rows into training, validation and test; texts that are nearly equal, by MinHash, stay on one side.

Broder 1997, On the resemblance and containment of documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.text import WORDS
from seqloom.lab.data.coders.times import parse_stamps
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Notes

BANDS, ROWS = 4, 2  # two texts are compared if both hashes of a band agree
MIN_AGREEING = 6  # of BANDS * ROWS hashes: a Jaccard similarity of about 0.75
MIN_WORDS = 8  # shorter texts are duplicates only if they are equal
SHINGLE = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd multipliers


class FoldError(UserError):
    """Raised for data that cannot be divided into folds."""


Array = np.ndarray[Any, Any]
FEW = 10  # fewer distinct series cannot be split; with fewer training rows, results are unreliable
MAX_HELD_OUT = 10_000  # most examples that a default share holds out


def split_rows(
    source: Source, plan: TaskPlan, usable: Array, is_text: bool, options: Reading, notes: Notes
) -> dict[str, Array]:
    """Assign rows to splits: keep the splits of the data and create those that are missing.

    Args:
        usable: (N,) bool, the rows to assign.
        is_text: Whether the input is text, so that near duplicates can be found.

    Returns:
        Split -> row numbers; "train" first, then "valid", "test" and further splits.
    """
    label = source.parts[0].label
    names = _read_splits(source, plan)
    rows = {name: np.flatnonzero((names == name) & usable) for name in dict.fromkeys(names.tolist())}
    rows = {"train" if name == "" else name: r for name, r in rows.items()}
    if not len(rows.get("train", ())):
        raise UserError(f"{label}: no usable rows to train on; splits: {', '.join(rows)}")
    shares = {"valid": options.valid} if "test" in rows else {"valid": options.valid, "test": options.test}
    shares = {name: share for name, share in shares.items() if name not in rows and ("valid" not in rows)}
    defaults, most = Reading(), MAX_HELD_OUT / len(rows["train"])
    shares = {k: min(share, most) if share == getattr(defaults, k) else share for k, share in shares.items()}
    if sum(shares.values()) >= 1:
        listed = " and ".join(f"{name}={share:g}" for name, share in shares.items())
        raise UserError(f"{label}: {listed} leave nothing to train on; make valid=... or test=... smaller")
    if options.fold and len(shares) < 2:
        raise FoldError(f"{label}: fold={options.fold} is for data without splits of their own; leave it out")
    if options.valid_part and "valid" not in shares:
        raise FoldError(f"{label}: valid_part={options.valid_part} is for data without validation rows; leave it out")
    if shares:
        rows |= _hold_out(source, plan, rows["train"], shares, is_text, options, notes)
    if is_text and (plan.split or len(source.parts) > 1):
        _warn_of_shared_texts(source, plan, rows, notes)
    if len(rows["train"]) < FEW:
        notes.warn(f"only {count(len(rows['train']), 'row')} to train on; results will be unreliable")
    order = ("train", "valid", "test")
    return {name: rows[name] for name in sorted(rows, key=lambda s: order.index(s) if s in order else 3)}


def _read_splits(source: Source, plan: TaskPlan) -> Array:
    """Return (N,) the split of each row in the data, "" if it has none."""
    if plan.split:
        names = source.columns(plan.split)[plan.split].str.to_lowercase()
        return np.array([SPLITS.get(name or "", name or "") for name in names], dtype=object)
    return np.concatenate([np.full(part.rows, part.split or "", dtype=object) for part in source.parts])


def _hold_out(
    source: Source,
    plan: TaskPlan,
    rows: Array,
    shares: dict[str, float],
    is_text: bool,
    options: Reading,
    notes: Notes,
) -> dict[str, Array]:
    """Divide training rows into "train" and a split for each share: by time if there are time stamps, else randomly."""
    if plan.time and plan.layout == "rows" and source.frame().collect_schema()[plan.time].is_nested() is False:
        for name, part, verb in (("fold", options.fold, "test"), ("valid_part", options.valid_part, "validate")):
            if part:
                raise FoldError(f"{source.parts[0].label}: {name}={part} would {verb} on rows before the training rows")
        return _split_by_time(source, plan, rows, shares, notes)
    if plan.layout == "long" and plan.group is None:  # neighbouring pieces of one series resemble each other
        if options.valid_part:
            raise FoldError(f"{source.parts[0].label}: valid_part={options.valid_part} is not for pieces of one series")
        notes.say("split by position: the last pieces are held out")
        edges = np.cumsum([0, *(max(1, round(share * len(rows))) for share in reversed(shares.values()))])
        ends = len(rows) - edges
        held = {name: rows[b:a] for name, a, b in zip(reversed(shares), ends[:-1], ends[1:], strict=True)}
        return {"train": rows[: ends[-1]], **held}
    keys = _group_rows(source, plan, rows, is_text, options, notes)
    labels = np.zeros(len(rows), dtype=np.int64)
    is_stratified = plan.form.target == "class"
    if is_stratified:
        labels = _rank(source.columns(plan.target[0])[plan.target[0]])[rows]
    if options.fold:
        shares = {"valid": shares["valid"], "test": 1 / int(options.fold.partition("/")[2] or 1)}
    share = ", ".join(f"{v:.0%} {k}" if v >= 0.01 else f"{round(v * len(rows)):,} {k}" for k, v in shares.items())
    notes.say(f"random split: {share}, seed {options.split_seed}" + (", stratified" if is_stratified else ""))
    try:
        if options.fold:
            sides = _split_fold(rows, keys, labels, shares["valid"], options)
        else:
            sides = _split_randomly(rows, keys, labels, shares, options.split_seed)
        return _validate_part(sides, rows, keys, labels, options) if options.valid_part else sides
    except UserError as error:
        kind = FoldError if options.fold or options.valid_part else UserError  # compare then splits the rows once
        raise kind(f"{source.parts[0].label}: {error}") from None


def _rank(column: pl.Series) -> Array:
    """Assign an id to each distinct value of a column; missing values get 0."""
    return column.cast(pl.String).rank("dense").fill_null(0).to_numpy().astype(np.int64)


def _group_rows(source: Source, plan: TaskPlan, rows: Array, is_text: bool, options: Reading, notes: Notes) -> Array:
    """Return (rows,) keys; rows with the same key must stay together."""
    if plan.group and plan.layout != "long":
        notes.say(f"rows with the same {plan.group!r} stay on one side of the split")
        return _rank(source.columns(plan.group)[plan.group])[rows]
    if not options.near_duplicates:
        return np.arange(len(rows))
    if not is_text:
        return _group_equal_series(source, plan, rows, notes)
    is_chosen = np.zeros(source.rows, dtype=bool)
    is_chosen[rows] = True
    chunks = source.chunks(plan.input)
    keys = cluster_texts(_to_text(f.filter(is_chosen[start : start + len(f)])) for start, f in chunks)
    if plan.attributes:  # the same text beside another number is not a duplicate
        other = _hash_rows(source.columns(*plan.attributes), plan.attributes)[rows]
        keys, _ = _number_keys(np.stack([keys.astype(np.uint64), other], 1))
    repeats = len(rows) - len(np.unique(keys))
    if repeats:
        notes.say(f"texts that nearly repeat another one: {repeats}; they stay on the same side of the split")
    return keys


def _group_equal_series(source: Source, plan: TaskPlan, rows: Array, notes: Notes) -> Array:
    """Return (rows,) keys that are the same for rows with equal series, numbered in order of appearance."""
    hashes = np.concatenate([_hash_rows(frame, plan.input) for _, frame in source.chunks(plan.input)])
    keys, distinct = _number_keys(hashes[rows])
    repeats = len(rows) - distinct
    if repeats and distinct < FEW:
        notes.warn(f"only {distinct} distinct series; training and test share the same ones")
        return np.arange(len(rows))
    if repeats:
        notes.say(f"series that repeat another one: {repeats}; they stay on the same side of the split")
    return keys


def _number_keys(values: Array) -> tuple[Array, int]:
    """Return (rows,) ids of the distinct values in order of appearance, and the number of values."""
    _, first, keys = np.unique(values, axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[keys.ravel()], len(first)


def _hash_rows(frame: pl.DataFrame, names: tuple[str, ...]) -> Array:
    parts = [frame[name].hash(k).to_numpy() * np.uint64(2 * k + 1) for k, name in enumerate(names)]
    return np.add.reduce(parts)


def _to_text(frame: pl.DataFrame) -> pl.Series:
    """Return the text of every row: its text, its joined tokens, or the joined texts of all columns."""
    column = frame.to_series()
    if len(frame.columns) > 1:
        return frame.select(pl.concat_str(pl.all(), separator=" ", ignore_nulls=True)).to_series()
    return column.list.join(" ") if column.dtype.is_nested() else column


def _split_by_time(
    source: Source, plan: TaskPlan, rows: Array, shares: dict[str, float], notes: Notes
) -> dict[str, Array]:
    """Hold out the latest rows. All rows of a group have the time of its latest row."""
    time = plan.time or ""
    notes.say(f"split by time: the latest rows by {time!r} are held out")
    frame = source.columns(*dict.fromkeys([time, *([plan.group] if plan.group else [])]))
    stamps = parse_stamps(frame[time], source.place)[rows]
    keys = np.arange(len(rows))
    if plan.group:
        notes.say(f"rows with the same {plan.group!r} stay on one side of the split")
        keys = _rank(frame[plan.group])[rows]
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


def _split_randomly(rows: Array, keys: Array, labels: Array, shares: dict[str, float], seed: int) -> dict[str, Array]:
    """Assign groups of rows in random order, class by class, until every split has its share of the class.

    A group counts for the class of its first row. A class that is too small stays in training.
    """
    _, first, group, sizes = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    side = np.zeros(len(sizes), dtype=np.int64)  # 0 is train
    order = np.random.default_rng(seed).permutation(len(sizes))
    label = labels[first][order]
    for one in np.unique(label):
        groups = order[label == one]
        middle = np.cumsum(sizes[groups]) - sizes[groups] / 2  # the middle of a group decides
        total, edge = sizes[groups].sum(), 0.0
        for number, share in enumerate(shares.values(), 1):
            wanted = float(round(share * total))
            side[groups[(middle >= edge) & (middle < edge + wanted)]] = number
            edge += wanted
    for number, name in enumerate(shares, 1):  # a few large groups may have left a split empty
        spare = np.flatnonzero(side == 0)
        if not (side == number).any():
            if len(spare) < 2:
                raise UserError(f"too few different examples to hold some out for {name!r}; provide the splits")
            side[spare[sizes[spare].argmin()]] = number
    side_of_row = side[group.ravel()]
    return {name: rows[side_of_row == number] for number, name in enumerate(("train", *shares))}


def _split_fold(rows: Array, keys: Array, labels: Array, valid: float, options: Reading) -> dict[str, Array]:
    """Test on the rows of one fold, and split the others into training and validation."""
    folds = int((options.fold or "").partition("/")[2])
    is_test = _find_part(keys, labels, "fold", options.fold or "", options.split_seed)
    share = valid / (1 - 1 / folds)
    rest = _split_randomly(rows[~is_test], keys[~is_test], labels[~is_test], {"valid": share}, options.split_seed)
    return rest | {"test": rows[is_test]}


def _validate_part(
    sides: dict[str, Array], rows: Array, keys: Array, labels: Array, options: Reading
) -> dict[str, Array]:
    """Keep the test rows, and validate on one part of the others."""
    is_free = ~np.isin(rows, sides.get("test", ()))
    rows, keys, labels = rows[is_free], keys[is_free], labels[is_free]
    is_valid = _find_part(keys, labels, "valid_part", options.valid_part or "", options.split_seed)
    return sides | {"train": rows[~is_valid], "valid": rows[is_valid]}


def _find_part(keys: Array, labels: Array, name: str, part: str, seed: int) -> Array:
    """Return (N,) whether each row is in a part such as 2/5.

    Groups of rows are assigned to the parts in turn, class by class, in random order.
    """
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts or parts < 2:
        raise UserError(f"{name}={part}: write 1/5 to 5/5")
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) < parts:
        few, what = f"only {count(len(first), 'different example')}", "folds" if name == "fold" else "parts"
        raise FoldError(f"{name}={part}: there {'is' if len(first) == 1 else 'are'} {few}; use fewer {what}")
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(labels[first][order], kind="stable")]
    part_of_group = np.empty(len(first), dtype=np.int64)
    part_of_group[order] = np.arange(len(first)) % parts
    is_in_part: Array = part_of_group[group.ravel()] == number - 1
    return is_in_part


def _warn_of_shared_texts(source: Source, plan: TaskPlan, rows: dict[str, Array], notes: Notes) -> None:
    """Warn about texts in a test split that also occur in training."""
    chunks = [hash_texts(_to_text(frame)) for _, frame in source.chunks(plan.input)]
    hashes = np.concatenate(chunks)
    for name in [name for name in rows if name.startswith("test")]:
        number = int(np.isin(hashes[rows[name]], hashes[rows["train"]]).sum())
        if number:
            notes.warn(f"texts of {name!r} that also occur in training: {number} of {len(rows[name])}")


def cluster_texts(chunks: Iterable[pl.Series]) -> Array:
    """Return (N,) cluster numbers: texts that are nearly equal have the same number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    hashes, long, signatures, n = [], [], [], 0
    for texts in chunks:
        rows, signature = _sign_texts(texts)
        hashes.append(hash_texts(texts))
        long.append(rows + n)
        signatures.append(signature)
        n += len(texts)
    rows, sign, whole = np.concatenate(long), np.concatenate(signatures), np.concatenate(hashes)
    del long, signatures, hashes  # large for millions of texts
    edges = [np.stack(_pair_equal(whole))]
    for band in range(BANDS):
        key = sign[:, ROWS * band].astype(np.uint64) << np.uint64(32) | sign[:, ROWS * band + 1]
        first, second = _pair_equal(key)
        near = (sign[first] == sign[second]).sum(1) >= MIN_AGREEING
        edges.append(np.stack([rows[first[near]], rows[second[near]]]))
    one, other = np.concatenate(edges, 1)
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(n, n))
    return connected_components(graph, directed=False)[1]


def _pair_equal(keys: Array) -> tuple[Array, Array]:
    """Return (E,), (E,) pairs of positions with equal keys: the first position of a key, and each later one."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    partner = first[group]
    later = np.flatnonzero(partner != np.arange(len(keys)))
    return partner[later], later


def hash_texts(texts: pl.Series) -> Array:
    """Return (N,) a hash of each text that ignores case, punctuation and spaces."""
    letters = texts.fill_null("").str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", "")
    return letters.hash(0).to_numpy()


def _sign_texts(texts: pl.Series) -> tuple[Array, Array]:
    """Return the indices (L,) of texts that are long enough, and their MinHashes (L, BANDS * ROWS)."""
    words = texts.fill_null("").str.to_lowercase().str.extract_all(WORDS)
    lengths = words.list.len().to_numpy().astype(np.int64)
    long = np.flatnonzero(lengths >= MIN_WORDS)
    signatures = np.empty((len(long), BANDS * ROWS), dtype=np.uint32)
    if not len(long):
        return long, signatures
    h = words.explode(empty_as_null=False).hash(1).to_numpy()  # (words of all texts,)
    s = h[:-2] * np.uint64(SHINGLE[0]) + h[1:-1] * np.uint64(SHINGLE[1]) + h[2:] * np.uint64(SHINGLE[2])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    # A shingle must not reach into the next text: [start, end - 2) of each text is every other segment.
    bounds = np.stack([starts[long], starts[long] + lengths[long] - 2], 1).ravel()
    random = np.random.default_rng(0).integers(1, 1 << 61, (BANDS * ROWS, 2), dtype=np.uint64)
    mixed = np.zeros(len(s) + 1, dtype=np.uint64)  # one more, so that the last bound is a valid index
    for k, (a, b) in enumerate(random):
        np.multiply(s, a | np.uint64(1), out=mixed[:-1])
        np.add(mixed, b, out=mixed)
        signatures[:, k] = np.minimum.reduceat(mixed, bounds)[::2] >> np.uint64(32)
    return long, signatures

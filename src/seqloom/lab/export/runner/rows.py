"""Encode rows as arrays, as training did, with numpy alone. This file is a part of every exported run.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

PAD, UNKNOWN, START, END = range(4)  # the first ids of every vocabulary
FIRST_ID, UNKNOWN_LETTER, FIRST_LETTER = 4, 1, 2
Row = Any  # an input, or a dict of columns
About = dict[str, Any]  # a part of model.json
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class RowError(ValueError):
    """A row that cannot be read; the message says what to give instead."""


class RowEncoder(Protocol):
    """Encodes a row as the inputs of the model."""

    def encode(self, row: Row) -> Arrays: ...


def make_encoder(about: About, folder: Path) -> RowEncoder:
    """Return the encoder that a description names."""
    return ENCODERS[about["type"]](about, folder)


def read_column(row: Row, name: str) -> Row:
    """Return a column of a row; the row itself if it is not a dict."""
    if not isinstance(row, dict):
        return row
    if name not in row:
        raise RowError(f"no column {name!r}; it has {', '.join(map(str, row))}")
    return row[name]


class Text:
    """Words, characters or bytes of a text, or a list of tokens."""

    def __init__(self, about: About, folder: Path) -> None:
        self.about = about
        self.ids = {word: k for k, word in enumerate(about["words"], FIRST_ID)}
        self.pattern = re.compile(about["pattern"])  # pattern of a word
        self.letters = about.get("letters")
        self.letter_ids = {letter: k for k, letter in enumerate(self.letters or "", FIRST_LETTER)}

    def encode(self, row: Row) -> Arrays:
        """Return ids (T,) and, if the model reads them, letters (T, C)."""
        tokens = self.split(read_column(row, self.about["column"]))
        ids = tokens if self.about["unit"] == "bytes" else [self.ids.get(t, UNKNOWN) for t in tokens]
        arrays = {"x": np.array(ids + [END] * self.about["end"], dtype=np.int64)}
        if self.letters is not None:
            arrays["letters"] = self.spell(tokens)
        return arrays

    def split(self, value: Row) -> list[Any]:
        """Return the tokens of a text; bytes as ids."""
        unit, lowercase = self.about["unit"], self.about["lowercase"]
        if unit == "tokens":
            tokens = value.split() if isinstance(value, str) else value
            if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
                raise RowError(f"{str(value)[:40]!r} is not a list of tokens; give words separated by blanks")
            return [t.lower() for t in tokens] if lowercase else tokens
        if not isinstance(value, str):
            raise RowError(f"{str(value)[:40]!r} is not a text; give a string")
        text = value.lower() if lowercase else value
        if unit == "bytes":
            return [byte + FIRST_ID for byte in text.encode()]
        return self.pattern.findall(text) if unit == "words" else list(text)

    def spell(self, tokens: list[str]) -> Array:
        """Return the letter ids of each token; of a long token, those of both ends."""
        size = self.about["word_letters"]
        half, table = size // 2, np.zeros((len(tokens), size), dtype=np.int64)
        for k, word in enumerate(tokens):
            some = word if len(word) <= size else word[:half] + word[-half:]
            table[k, : len(some)] = [self.letter_ids.get(letter, UNKNOWN_LETTER) for letter in some]
        return table


class Subwords:
    """Pieces of words; needs the package tokenizers."""

    def __init__(self, about: About, folder: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise SystemExit("this model reads subwords; install tokenizers: pip install tokenizers") from None
        self.about, self.tokenizer = about, Tokenizer.from_file(str(folder / about["file"]))

    def encode(self, row: Row) -> Arrays:
        """Return ids (T,)."""
        text = read_column(row, self.about["column"])
        if not isinstance(text, str):
            raise RowError(f"{str(text)[:40]!r} is not a text; give a string")
        ids = self.tokenizer.encode(text.lower() if self.about["lowercase"] else text, add_special_tokens=False).ids
        return {"x": np.array(ids + [END] * self.about["end"], dtype=np.int64)}


class Joined:
    """Several texts in sequence."""

    def __init__(self, about: About, folder: Path) -> None:
        self.columns, self.inner = about["columns"], make_encoder(about["inner"], folder)

    def encode(self, row: Row) -> Arrays:
        """Return ids (T,)."""
        if not isinstance(row, dict):
            raise RowError(f"give an object with the columns {', '.join(self.columns)}")
        parts = [self.inner.encode(read_column(row, name))["x"] for name in self.columns]
        if not any(map(len, parts)):
            return {"x": np.zeros(0, dtype=np.int64)}
        ids = [np.append(part, END) for part in parts[:-1]]
        return {"x": np.concatenate([*ids, parts[-1]]).astype(np.int64)}


def read_numbers(value: Row, what: str) -> Array:
    """Return an array of numbers; None is missing."""
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise RowError(f"{str(value)[:40]} is not {what}; give numbers as JSON") from None


def standardise(values: Array, scale: About) -> Array:
    """Return standardised values with NaN for missing ones."""
    present = np.where(np.isfinite(values), values, np.nan)
    return (present - np.array(scale["mean"])) / np.array(scale["deviation"])


class Series:
    """Steps of numbers."""

    def __init__(self, about: About, folder: Path) -> None:
        self.about = about

    def encode(self, row: Row) -> Arrays:
        """Return features (T, D)."""
        columns, wide = self.about["columns"], self.about["wide"]
        if isinstance(row, dict):
            parts = [read_numbers(read_column(row, name), "a number or a list of numbers") for name in columns]
            if len({part.shape[:1] for part in parts}) > 1:
                raise RowError(f"the columns {', '.join(columns)} have different lengths; give each as many steps")
            values = np.stack(parts, -1) if wide or len(columns) > 1 else parts[0]
        else:
            values = read_numbers(row, "a list of numbers")
        width = 1 if wide else max(self.about["width"], len(columns))
        if wide and values.size != len(columns):
            raise RowError(f"{values.size} numbers, training had {len(columns)}")
        values = values.reshape(-1, 1) if wide or values.ndim == 1 else values
        if values.ndim != 2 or (len(values) and values.shape[1] != width):
            raise RowError(f"shape {values.shape}; give steps of {width} numbers")
        z = standardise(values.reshape(-1, width), self.about["scale"])
        gaps = np.isnan(z)
        masks = gaps[:, np.array(self.about["scale"]["missing"], dtype=bool)]
        return {"x": np.concatenate([np.where(gaps, 0, z), masks], 1).astype(np.float32)}


class PastTable:
    """The past of a forecast, and the future of the columns that are known."""

    def __init__(self, about: About, folder: Path) -> None:
        self.about = about

    def encode(self, row: Row) -> Arrays:
        """Return features (T, D) and, if some are known ahead, their future (S, F)."""
        about = self.about
        columns, known, names = about["columns"], about["known"], about["categories"]
        ahead = about["horizon"] if known else 0
        if not isinstance(row, dict):
            if known or names:
                raise RowError(f"give an object with the columns {', '.join(columns)}")
            table = read_numbers(row, "a list of steps")
            table = table.reshape(-1, len(columns)) if table.ndim == 1 and len(columns) == 1 else table
            if table.ndim != 2 or table.shape[1] != len(columns):
                raise RowError(f"the row has shape {table.shape}; give one list per step, of {', '.join(columns)}")
            row = {name: table[:, k].tolist() for k, name in enumerate(columns)}
        lists = {name: read_column(row, name) for name in columns}
        steps = len(lists[about["targets"][0]])
        for name, values in lists.items():
            expected = steps + (ahead if name in known else 0)
            if not isinstance(values, list) or len(values) != expected:
                raise RowError(f"column {name!r}: give a list of {expected} values")
        total = steps + ahead
        numbers = [name for name in columns if name not in names]
        values = np.full((total, len(numbers)), np.nan)
        for k, name in enumerate(numbers):
            values[: len(lists[name]), k] = read_numbers(lists[name], "a list of numbers")
        filled = standardise(fill_gaps(values, about["season"]), about["scale"])
        masks = ~np.isfinite(values[:, np.array(about["scale"]["missing"], dtype=bool)])
        flags = [
            [k < len(lists[name]) and str(lists[name][k]) == value for k in range(total)]
            for name, choices in names.items()
            for value in choices
        ]
        parts = [np.nan_to_num(filled), masks, *(np.array(flag)[:, None] for flag in flags)]
        x = np.concatenate(parts, 1).astype(np.float32)
        arrays = {"x": x[max(0, steps - about["lookback"]) : steps]}
        if known:
            arrays["future"] = x[steps:, about["known_features"]]
        return arrays


def fill_gaps(values: Array, season: int) -> Array:
    """Replace missing values with those of the season before, or else of the step before."""
    filled = np.where(np.isfinite(values), values, np.nan)
    for row in np.flatnonzero(np.isnan(filled).any(1)).tolist():
        for back in (season, 1):
            if row >= back:
                filled[row] = np.where(np.isnan(filled[row]), filled[row - back], filled[row])
    return filled


ENCODERS: dict[str, Callable[[About, Path], RowEncoder]] = {
    "text": Text,
    "subwords": Subwords,
    "joined": Joined,
    "series": Series,
    "table": PastTable,
}

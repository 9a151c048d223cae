"""Texts and lists of tokens as ids of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.task import END, PAD, SPECIALS, START, UNKNOWN, Tokens

Array = np.ndarray[Any, Any]
HAN = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}"  # scripts without spaces between words
WORDS = rf"</?\w[^<>]*>|[{HAN}]|[\w--[{HAN}]]+(?:['\u2019][\w--[{HAN}]]+)*|[^\w\s]"  # a markup tag is one word
FIRST_ID = len(SPECIALS)  # the first id that is not special
BYTES = 256
MIN_WORDS, MAX_LETTERS = 3.0, 12.0  # with fewer words per text, or longer words, the unit is characters


class TextCoder:
    """Encode words, characters or bytes of a text, or the tokens of a list; frequent ones have small ids."""

    def __init__(
        self,
        column: str,
        unit: str,
        size: int,
        min_count: int = 1,
        lowercase: bool = False,
        end: bool = False,
        words: Sequence[str] = (),
    ) -> None:
        self.column, self.unit, self.size, self.end = column, unit, size, end
        self.min_count, self.lowercase = min_count, lowercase
        self._set_words([*words])

    def _set_words(self, words: list[str]) -> None:
        self.words = words
        self._enum = pl.Enum([*SPECIALS, *words])

    @property
    def space(self) -> Tokens:
        return Tokens(FIRST_ID + (BYTES if self.unit == "bytes" else len(self.words)), self.unit)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        if self.unit == "bytes":
            return
        total: pl.DataFrame | None = None
        for frame in frames:
            counts = self._split(frame[self.column]).explode(empty_as_null=False).alias("w").value_counts()
            total = counts if total is None else pl.concat([total, counts]).group_by("w").agg(pl.col("count").sum())
        if total is None:
            raise UserError(f"column {self.column!r} has no training rows")
        frequent = total.filter((pl.col("count") >= self.min_count) & ~pl.col("w").is_in(SPECIALS)).drop_nulls()
        self._set_words(frequent.sort("count", "w", descending=[True, False])["w"].head(self.size - FIRST_ID).to_list())

    def _split(self, texts: pl.Series) -> pl.Series:
        """Split texts into lists of strings; a missing text gives an empty list."""
        if self.unit == "tokens":
            lists = texts.fill_null([])
            return lists.list.eval(pl.element().str.to_lowercase()) if self.lowercase else lists
        texts = texts.fill_null("")
        texts = texts.str.to_lowercase() if self.lowercase else texts
        return texts.str.extract_all(WORDS) if self.unit == "words" else texts.str.extract_all(r"(?s).")

    def split_text(self, text: str | Sequence[str]) -> list[str]:
        """Split a text, or a list of tokens, into the pieces that `encode` gives an id."""
        column = pl.Series([list(text)], dtype=pl.List(pl.String)) if self.unit == "tokens" else pl.Series([str(text)])
        return [str(piece) for piece in self._split(column)[0]]

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        texts = frame[self.column]
        if self.unit == "bytes":
            full = texts.fill_null("")
            full = full.str.to_lowercase() if self.lowercase else full
            data = np.frombuffer("".join(full).encode(), dtype=np.uint8).astype(np.int32) + FIRST_ID
            return self._add_end(data, full.str.len_bytes().to_numpy())
        pieces = self._split(texts)
        flat = pieces.explode(empty_as_null=False)
        known = flat.cast(self._enum, strict=False).to_physical().cast(pl.Int32).fill_null(UNKNOWN).to_numpy()
        ids = np.where(known < FIRST_ID, UNKNOWN, known).astype(np.int32)  # a text may contain the word "<pad>"
        return self._add_end(ids, pieces.list.len().to_numpy())

    def _add_end(self, ids: Array, lengths: Array) -> tuple[Array, Array]:
        lengths = lengths.astype(np.int64)
        return (np.insert(ids, np.cumsum(lengths), END), lengths + 1) if self.end else (ids, lengths)

    def decode(self, ids: Sequence[int]) -> str:
        stop = next((i for i, k in enumerate(ids) if k == END), len(ids))
        regular = [k for k in ids[:stop] if k not in (PAD, START)]
        if self.unit == "bytes":
            return bytes(k - FIRST_ID for k in regular if k >= FIRST_ID).decode("utf-8", "replace")
        words = [self.words[k - FIRST_ID] if k >= FIRST_ID else SPECIALS[k] for k in regular]
        return ("" if self.unit == "characters" else " ").join(words)

    def state(self) -> dict[str, Any]:
        names = ("column", "unit", "size", "min_count", "lowercase", "end", "words")
        return {"coder": "text"} | {name: getattr(self, name) for name in names}


def guess_unit(texts: pl.Series) -> str:
    """Return "characters" if words are few or long, or the script has no spaces; else "words"."""
    full = texts.drop_nulls().head(2_000)
    words = float(full.str.extract_all(r"\S+").list.len().mean() or 0)  # type: ignore[arg-type]
    letters = float(full.str.len_chars().mean() or 0)  # type: ignore[arg-type]
    return "characters" if words < MIN_WORDS or letters / max(words, 1) > MAX_LETTERS else "words"

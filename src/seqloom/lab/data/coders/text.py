"""Text and lists of tokens as ids of a vocabulary, taken apart by polars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.task import END, PAD, SPECIALS, START, UNKNOWN, Tokens

Array = np.ndarray[Any, Any]
HAN = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}"  # scripts that put no spaces between words
WORDS = rf"</?\w[^<>]*>|[{HAN}]|[\w--[{HAN}]]+(?:['\u2019][\w--[{HAN}]]+)*|[^\w\s]"  # a mark-up tag is one word
FIRST = len(SPECIALS)
BYTES = 256
AUTO = {"words": 3.0, "letters": 12.0}  # fewer words a text, or longer words, are read as characters


class TextCoder:
    """Words, characters or bytes of a text, or the tokens of a list, by how often training has them."""

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
        self._know([*words])

    def _know(self, words: list[str]) -> None:
        self.words = words
        self._enum = pl.Enum([*SPECIALS, *words])

    @property
    def space(self) -> Tokens:
        return Tokens(FIRST + (BYTES if self.unit == "bytes" else len(self.words)), self.unit)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        if self.unit == "bytes":
            return
        total: pl.DataFrame | None = None
        for frame in frames:
            counted = self._pieces(frame[self.column]).explode(empty_as_null=False).alias("w").value_counts()
            total = counted if total is None else pl.concat([total, counted]).group_by("w").agg(pl.col("count").sum())
        if total is None:
            raise UserError(f"column {self.column!r} has no training rows")
        kept = total.filter((pl.col("count") >= self.min_count) & ~pl.col("w").is_in(SPECIALS)).drop_nulls()
        self._know(kept.sort("count", "w", descending=[True, False])["w"].head(self.size - FIRST).to_list())

    def _pieces(self, texts: pl.Series) -> pl.Series:
        """Lists of strings; nothing is an empty list."""
        if self.unit == "tokens":
            lists = texts.fill_null([])
            return lists.list.eval(pl.element().str.to_lowercase()) if self.lowercase else lists
        texts = texts.fill_null("")
        texts = texts.str.to_lowercase() if self.lowercase else texts
        return texts.str.extract_all(WORDS) if self.unit == "words" else texts.str.extract_all(r"(?s).")

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        texts = frame[self.column]
        if self.unit == "bytes":
            full = texts.fill_null("")
            full = full.str.to_lowercase() if self.lowercase else full
            data = np.frombuffer("".join(full).encode(), dtype=np.uint8).astype(np.int32) + FIRST
            return self._ended(data, full.str.len_bytes().to_numpy())
        pieces = self._pieces(texts)
        flat = pieces.explode(empty_as_null=False)
        known = flat.cast(self._enum, strict=False).to_physical().cast(pl.Int32).fill_null(UNKNOWN).to_numpy()
        ids = np.where(known < FIRST, UNKNOWN, known).astype(np.int32)  # a text may hold the word "<pad>"
        return self._ended(ids, pieces.list.len().to_numpy())

    def _ended(self, ids: Array, lengths: Array) -> tuple[Array, Array]:
        lengths = lengths.astype(np.int64)
        return (np.insert(ids, np.cumsum(lengths), END), lengths + 1) if self.end else (ids, lengths)

    def decode(self, ids: Sequence[int]) -> str:
        stop = next((i for i, k in enumerate(ids) if k == END), len(ids))
        kept = [k for k in ids[:stop] if k not in (PAD, START)]
        if self.unit == "bytes":
            return bytes(k - FIRST for k in kept if k >= FIRST).decode("utf-8", "replace")
        words = [self.words[k - FIRST] if k >= FIRST else SPECIALS[k] for k in kept]
        return ("" if self.unit == "characters" else " ").join(words)

    def state(self) -> dict[str, Any]:
        names = ("column", "unit", "size", "min_count", "lowercase", "end", "words")
        return {"coder": "text"} | {name: getattr(self, name) for name in names}


def likely_unit(texts: pl.Series) -> str:
    """Characters where words are few or long, or the script has no spaces; else words."""
    full = texts.drop_nulls().head(2_000)
    words = float(full.str.extract_all(r"\S+").list.len().mean() or 0)  # type: ignore[arg-type]
    letters = float(full.str.len_chars().mean() or 0)  # type: ignore[arg-type]
    return "characters" if words < AUTO["words"] or letters / max(words, 1) > AUTO["letters"] else "words"

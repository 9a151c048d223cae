"""Texts and lists of tokens as ids of a vocabulary: words, characters, bytes, subwords; several texts of a row.

Subwords are learned by `tokenizers`: byte-pair encoding (Sennrich, Haddow and Birch 2016, arXiv 1508.07909) and the
unigram model (Kudo 2018, arXiv 1804.10959).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError, require
from seqloom.lab.data.coders.coder import Coder, restore_coder
from seqloom.lab.data.task import END, PAD, SPECIALS, START, UNKNOWN, Tokens

Array = np.ndarray[Any, Any]
HAN = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}"  # scripts without spaces between words
WORDS = rf"</?\w[^<>]*>|[{HAN}]|[\w--[{HAN}]]+(?:['\u2019][\w--[{HAN}]]+)*|[^\w\s]"  # a markup tag is one word
FIRST_ID = len(SPECIALS)  # the first id that is not special
BYTES = 256
MIN_WORDS, MAX_LETTERS = 3.0, 12.0  # with fewer words per text, or longer words, the unit is characters


class TextCoder(Coder, key="text"):
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


def guess_unit(texts: pl.Series) -> str:
    """Return "characters" if words are few or long, or the script has no spaces; else "words"."""
    full = texts.drop_nulls().head(2_000)
    words = float(full.str.extract_all(r"\S+").list.len().mean() or 0)  # type: ignore[arg-type]
    letters = float(full.str.len_chars().mean() or 0)  # type: ignore[arg-type]
    return "characters" if words < MIN_WORDS or letters / max(words, 1) > MAX_LETTERS else "words"


class SubwordCoder(Coder, key="subwords"):
    """Encode texts with a tokenizer of `tokenizers`, trained on the training rows."""

    def __init__(
        self,
        column: str,
        unit: str,
        size: int,
        lowercase: bool = False,
        end: bool = False,
        tokenizer: Mapping[str, Any] | None = None,
    ) -> None:
        Tokenizer = require("tokenizers", f"unit={unit!r}", "subwords").Tokenizer
        self.column, self.unit, self.size, self.lowercase, self.end = column, unit, size, lowercase, end
        self._tokenizer: Any = None if tokenizer is None else Tokenizer.from_str(json.dumps(tokenizer))

    @property
    def space(self) -> Tokens:
        return Tokens(self._tokenizer.get_vocab_size() if self._tokenizer else len(SPECIALS), self.unit)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        common: Any = {"vocab_size": self.size, "special_tokens": list(SPECIALS), "show_progress": False}
        unknown = SPECIALS[UNKNOWN]
        if self.unit == "bpe":
            self._tokenizer = Tokenizer(models.BPE(unk_token=unknown))
            trainer: Any = trainers.BpeTrainer(min_frequency=2, **common)
        else:
            self._tokenizer = Tokenizer(models.Unigram())
            trainer = trainers.UnigramTrainer(unk_token=unknown, **common)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        )
        self._tokenizer.decoder = decoders.Metaspace()
        texts = (text for frame in frames for text in self._prepare(frame[self.column]))
        self._tokenizer.train_from_iterator(texts, trainer)
        if self.unit == "unigram":
            self._tokenizer = Tokenizer.from_str(_sort_pieces(self._tokenizer.to_str()))

    @property
    def tokenizer(self) -> dict[str, Any]:
        """The trained tokenizer as JSON."""
        tokenizer: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return tokenizer

    def _prepare(self, texts: pl.Series) -> list[str]:
        texts = texts.fill_null("")
        return (texts.str.to_lowercase() if self.lowercase else texts).to_list()

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        encodings = self._tokenizer.encode_batch_fast(self._prepare(frame[self.column]), add_special_tokens=False)
        rows = [np.array([*e.ids, END] if self.end else e.ids, dtype=np.int32) for e in encodings]
        return np.concatenate(rows) if rows else np.empty(0, np.int32), np.array([len(r) for r in rows], np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        stop = next((i for i, k in enumerate(ids) if k == END), len(ids))
        return str(self._tokenizer.decode(list(ids[:stop])))


def _sort_pieces(saved: str) -> str:
    """Sort pieces by score, then by name: training orders equal scores differently from run to run."""
    tokenizer = json.loads(saved)
    vocabulary = tokenizer["model"]["vocab"]
    rest = sorted(vocabulary[len(SPECIALS) :], key=lambda piece: (-round(piece[1], 6), piece[0]))
    tokenizer["model"]["vocab"] = vocabulary[: len(SPECIALS)] + rest
    return json.dumps(tokenizer)


class JoinedTextCoder(Coder, key="joined"):
    """Encode the texts of several columns in sequence, with END between them.

    Args:
        columns: The columns, in the order in which their texts are read.
        inner: The coder of one text, or its `state()`.
    """

    def __init__(self, columns: Sequence[str], inner: Any) -> None:  # noqa: ANN401  # a coder or JSON
        self.columns = tuple(columns)
        self.inner = inner if isinstance(inner, TextCoder | SubwordCoder) else restore_coder(inner)

    @property
    def unit(self) -> str:
        """The unit of the inner coder."""
        return self.inner.unit

    @property
    def space(self) -> Tokens:
        return self.inner.space

    def _select(self, frame: pl.DataFrame, column: str) -> pl.DataFrame:
        return frame.select(pl.col(column).alias(self.inner.column))

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        def iterate() -> Iterator[pl.DataFrame]:
            for frame in frames:
                yield from (self._select(frame, column) for column in self.columns)

        self.inner.fit(iterate())

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        parts = [self.inner.encode(self._select(frame, column)) for column in self.columns]
        sizes = np.stack([lengths for _, lengths in parts], 1)  # (N, columns)
        sizes[:, :-1] += 1  # the separators
        ids = np.full(int(sizes.sum()), END, dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
        for k, (values, lengths) in enumerate(parts):
            first = np.repeat(starts[:, k] - (np.cumsum(lengths) - lengths), lengths)
            ids[first + np.arange(len(values))] = values
        lengths = sizes.sum(1)
        return ids, np.where(lengths < len(self.columns), 0, lengths)  # only separators: nothing to read

    def decode(self, ids: Sequence[int]) -> str:
        cuts = [-1, *(i for i, k in enumerate(ids) if k == END), len(ids)]
        return " | ".join(str(self.inner.decode(ids[a + 1 : b])) for a, b in pairwise(cuts))

"""Learned subwords: byte-pair encoding and the unigram model, by the library `tokenizers`.

Sennrich, Haddow and Birch 2016, arXiv 1508.07909; Kudo 2018, arXiv 1804.10959.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import require
from seqloom.lab.data.task import END, SPECIALS, UNKNOWN, Tokens

Array = np.ndarray[Any, Any]


class SubwordCoder:
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

        common: dict[str, Any] = {
            "vocab_size": self.size,
            "special_tokens": list(SPECIALS),
            "show_progress": False,
        }
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
        self._tokenizer.train_from_iterator(self._read_texts(frames), trainer)
        if self.unit == "unigram":
            self._tokenizer = Tokenizer.from_str(_sort_pieces(self._tokenizer.to_str()))

    def _read_texts(self, frames: Iterable[pl.DataFrame]) -> Iterator[str]:
        for frame in frames:
            yield from self._prepare(frame[self.column])

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

    def state(self) -> dict[str, Any]:
        names = ("column", "unit", "size", "lowercase", "end")
        tokenizer = json.loads(self._tokenizer.to_str())
        return {"coder": "subwords", "tokenizer": tokenizer} | {name: getattr(self, name) for name in names}


def _sort_pieces(saved: str) -> str:
    """Sort pieces by score, then by name: training orders equal scores differently from run to run."""
    tokenizer = json.loads(saved)
    vocabulary = tokenizer["model"]["vocab"]
    rest = sorted(vocabulary[len(SPECIALS) :], key=lambda piece: (-round(piece[1], 6), piece[0]))
    tokenizer["model"]["vocab"] = vocabulary[: len(SPECIALS)] + rest
    return json.dumps(tokenizer)

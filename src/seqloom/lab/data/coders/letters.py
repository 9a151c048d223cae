"""Encode the letters of each word, upper and lower case; this also works for words outside the vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.coder import Coder

Array = np.ndarray[Any, Any]
UNKNOWN_LETTER, FIRST_LETTER = 1, 2  # 0 is past the end of a word
WORD_LETTERS = 20  # letters per word; of a longer word, the first and the last ten
MOST_LETTERS = 5_000  # size of the alphabet: the most frequent letters
FEWEST_PER_WORD = 2.0  # on average; shorter tokens are letters themselves, as in Chinese


class LettersCoder(Coder, key="letters"):
    """Encode each token of a list as letter ids (WORD_LETTERS,), with 0 at the end; frequent letters have small ids."""

    def __init__(self, column: str, letters: str = "") -> None:
        self.column, self.letters = column, letters

    @property
    def size(self) -> int:
        """Number of letter ids."""
        return FIRST_LETTER + len(self.letters)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        counts: Counter[str] = Counter()
        for frame in frames:
            words = frame[self.column].explode(empty_as_null=False).drop_nulls().alias("w").value_counts()
            for word, n in words.iter_rows():
                counts.update(dict.fromkeys(word, n))
        frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))
        self.letters = "".join(frequent[:MOST_LETTERS])

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        """Return ids (sum of lengths, WORD_LETTERS) and lengths (rows,)."""
        lists = frame[self.column].fill_null([])
        flat = lists.explode(empty_as_null=False).fill_null("").to_numpy()
        words, inverse = np.unique(flat.astype(str), return_inverse=True)
        ids = {letter: i for i, letter in enumerate(self.letters, FIRST_LETTER)}
        table = np.zeros((len(words), WORD_LETTERS), dtype=np.int16)
        half = WORD_LETTERS // 2
        for row, word in enumerate(words.tolist()):
            some = word if len(word) <= WORD_LETTERS else word[:half] + word[-half:]
            table[row, : len(some)] = [ids.get(letter, UNKNOWN_LETTER) for letter in some]
        return table[inverse], lists.list.len().to_numpy().astype(np.int64)


def are_words(tokens: pl.Series) -> bool:
    """Return whether the tokens of lists are words, which have letters, rather than characters."""
    flat = tokens.explode(empty_as_null=False).drop_nulls()
    return len(flat) > 0 and float(flat.str.len_chars().mean() or 0) >= FEWEST_PER_WORD  # type: ignore[arg-type]

"""Texts as rows of word ids."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from seqloom.core.masks import make_mask
from seqloom.lab.studies.data.examples import Examples
from seqloom.lab.studies.data.place import find

WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?]")
MARK = re.compile(r"<[^<>]{1,9}>")  # <br />
PAD, OTHER = 0, 1  # ids; the words follow

Labelled = tuple[list[list[str]], list[int]]  # the words of each text, and its class


def imdb(split: str, words: int, every: int = 1) -> Labelled:
    """Every so many of the reviews of "train" or "test", their first words. Maas et al. 2011 (ACL, P11-1015)."""
    (file,) = find("imdb", f"{split}.jsonl.gz")
    return _read_labelled(file, words, every)


def names(letters: int) -> tuple[Labelled, list[str]]:
    """Surnames as letters, each once for a language, and the languages that they come from."""
    (file,) = find("names_nationality", "names.csv.gz")
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        pairs = sorted({(row["name"], row["language"]) for row in csv.DictReader(text)})
    languages = sorted({language for _, language in pairs})
    return ([list(name[:letters]) for name, _ in pairs], [languages.index(of) for _, of in pairs]), languages


def _read_labelled(file: Path, words: int, every: int = 1) -> Labelled:
    records = lines(file, every)
    return [split_words(r["text"], words) for r in records], [int(r["label"]) for r in records]


def lines(file: Path, every: int = 1) -> list[Any]:
    """A file of one JSON value a line: every so many of them."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in islice(text, 0, None, every)]


def split_words(text: str, words: int) -> list[str]:
    """In lower case, without marks and without most punctuation."""
    return WORD.findall(MARK.sub(" ", text.lower()))[:words]


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The most frequent words by id; equally frequent ones in their own order."""
    counted = Counter(word for text in texts for word in text)
    kept = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[: size - OTHER - 1]
    return {word: OTHER + 1 + i for i, (word, _) in enumerate(kept)}


def encode(labelled: Labelled, ids: dict[str, int], steps: int) -> Examples:
    """Padded at the end to `steps`; a text without words is one unknown word."""
    texts, classes = labelled
    rows = [[ids.get(word, OTHER) for word in text[:steps]] or [OTHER] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    x = torch.full((len(rows), steps), PAD)
    x[make_mask(lengths, steps)] = torch.tensor([i for row in rows for i in row])
    return Examples(x, lengths, torch.tensor(classes))

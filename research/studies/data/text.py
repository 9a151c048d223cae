"""Labelled texts as rows of word ids."""

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
from torch import Tensor

from research.studies.data.examples import LabelledRows
from research.studies.data.place import find
from seqloom.core.masks import make_mask

WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?]")
MARK = re.compile(r"<[^<>]{1,9}>")  # <br />
PAD, OTHER = 0, 1  # ids; the words follow
INTENTS = (
    "AddToPlaylist",
    "BookRestaurant",
    "GetWeather",
    "PlayMusic",
    "RateBook",
    "SearchCreativeWork",
    "SearchScreeningEvent",
)
SNIPS_FILES = ("train.jsonl.gz", "valid.jsonl.gz", "test.jsonl.gz")

Labelled = tuple[list[list[str]], list[int]]  # the words of each text, and its class


def imdb(split: str, words: int, every: int = 1) -> Labelled:
    """Return the first words of every `every`-th review of "train" or "test". Maas et al. 2011 (ACL, P11-1015)."""
    (file,) = find("imdb", f"{split}.jsonl.gz")
    return _read_labelled(file, words, every)


def names(letters: int) -> tuple[Labelled, list[str]]:
    """Return surnames as letters, each once per language, and the languages."""
    (file,) = find("names_nationality", "names.csv.gz")
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        pairs = sorted({(row["name"], row["language"]) for row in csv.DictReader(text)})
    languages = sorted({language for _, language in pairs})
    return ([list(name[:letters]) for name, _ in pairs], [languages.index(of) for _, of in pairs]), languages


def _read_labelled(file: Path, words: int, every: int = 1) -> Labelled:
    records = lines(file, every)
    return [split_words(r["text"], words) for r in records], [int(r["label"]) for r in records]


def lines(file: Path, every: int = 1) -> list[Any]:
    """Return every `every`-th JSON value of a file with one per line."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in islice(text, 0, None, every)]


def split_words(text: str, words: int) -> list[str]:
    """Return lower-case words without markup and most punctuation."""
    return WORD.findall(MARK.sub(" ", text.lower()))[:words]


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Return the ids of the most frequent words; ties are in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: size - OTHER - 1]
    return {word: OTHER + 1 + i for i, (word, _) in enumerate(words)}


def encode(labelled: Labelled, ids: dict[str, int], steps: int) -> LabelledRows:
    """Return ids padded at the end to `steps`; a text without words becomes one unknown word."""
    texts, classes = labelled
    rows = [[ids.get(word, OTHER) for word in text[:steps]] or [OTHER] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    x = torch.full((len(rows), steps), PAD)
    x[make_mask(lengths, steps)] = torch.tensor([i for row in rows for i in row])
    return LabelledRows(x, lengths, torch.tensor(classes))


def intents(size: int, steps: int, every: int, valid: int, test: int) -> dict[str, tuple[Tensor, ...]]:
    """Return words, intent and length of every request by split (SNIPS). Coucke et al. 2018, arXiv 1805.10190."""
    files = dict(zip(("train", "valid", "test"), find("snips", *SNIPS_FILES), strict=True))
    read = {split: lines(file, every if split == "train" else 1) for split, file in files.items()}
    ids = vocabulary((record["tokens"] for record in read["train"]), size)
    most = {"valid": valid, "test": test}
    parts: dict[str, tuple[Tensor, ...]] = {}
    for split, records in read.items():
        labelled = [r["tokens"] for r in records], [INTENTS.index(r["intent"]) for r in records]
        examples = encode(labelled, ids, steps).shuffle().part(0, most.get(split, len(records)))
        parts[split] = (examples.x, examples.y, examples.lengths)
    return parts

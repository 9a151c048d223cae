"""Texts that are to be written: framed by marks, with what they are written from."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.masks import make_mask
from seqloom.lab.studies.data.place import find
from seqloom.lab.studies.data.text import OTHER, WORD, lines, names, split_words, vocabulary
from seqloom.models.embed import Marks

MARKS = Marks()
UNKNOWN = 3  # after padding, start and stop
LANGUAGES, ATTRIBUTES = 18, 79  # of surnames, of restaurants
SIGN = re.compile(r"[\u4e00-\u9fff]|[a-z0-9]+|[,.?!\u3002\uff01\uff0c\uff1f]")

Rows = tuple[Tensor, ...]


def frame_texts(
    texts: Sequence[Sequence[str]], size: int, steps: int, counted: int | None = None
) -> tuple[Tensor, Tensor, list[str]]:
    """ids (N, steps), lengths and the words by id; longer texts are cut, and have no stop.

    The words are those of the first `counted` texts.
    """
    ids = vocabulary(texts[:counted], size - UNKNOWN + OTHER)
    known = ["<padding>", "<start>", "<stop>", "<unknown>", *ids]
    place = {word: i for i, word in enumerate(known)}
    rows = [[MARKS.start, *(place.get(w, UNKNOWN) for w in text), MARKS.stop][:steps] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    x = torch.full((len(rows), steps), MARKS.padding)
    x[make_mask(lengths, steps)] = torch.tensor([i for row in rows for i in row])
    return x, lengths, known


def poems(size: int, steps: int, every: int) -> tuple[Rows, list[str]]:
    """Tang poems that fit, sign by sign."""
    (file,) = find("chinese_poems", "tang_shi.jsonl.gz")
    texts = ["".join(record["lines"]) for record in lines(file, every)]
    x, lengths, words = frame_texts([text for text in texts if 20 <= len(text) <= steps - 2], size, steps)
    return (x, lengths), words


def surnames(size: int, steps: int) -> tuple[Rows, list[str], list[str]]:
    """Names letter by letter, each with its language as a one-hot row; and the languages."""
    (texts, y), languages = names(steps - 2)
    x, lengths, words = frame_texts(texts, size, steps)
    return (x, lengths, torch.nn.functional.one_hot(torch.tensor(y), len(languages)).float()), words, languages


def restaurants(size: int, steps: int, every: int) -> tuple[dict[str, Rows], list[str]]:
    """Sentences about restaurants, by split, each with its attributes as a row of zeros and ones.

    Novikova et al. 2017, arXiv 1706.09254.
    """
    splits = dict(zip(("train", "valid", "test"), find("e2e_nlg", *_E2E), strict=True))
    read = {split: _records(file)[:: every if split == "train" else 1] for split, file in splits.items()}
    kinds = sorted({kind for mr, _ in read["train"] for kind in mr})
    place = {kind: i for i, kind in enumerate(kinds)}
    texts = [text for records in read.values() for _, text in records]
    x, lengths, words = frame_texts(texts, size, steps, len(read["train"]))
    condition = torch.zeros(len(texts), ATTRIBUTES)
    for row, mr in enumerate(mr for records in read.values() for mr, _ in records):
        condition[row, [place[kind] for kind in mr if kind in place]] = 1
    counts = [len(records) for records in read.values()]
    parts = zip(*(t.split(counts) for t in (x, lengths, condition)), strict=True)
    return dict(zip(read, parts, strict=True)), words


_E2E = ("trainset.csv.gz", "devset.csv.gz", "testset_w_refs.csv.gz")


def _records(file: object) -> list[tuple[list[str], list[str]]]:
    with gzip.open(str(file), "rt", encoding="utf-8", newline="") as text:
        return [(row["mr"].split(", "), split_words(row["ref"], 80)) for row in csv.DictReader(text)]


def sentences(size: int, steps: int, every: int) -> tuple[Rows, list[str], list[str]]:
    """English sentences, each once, and a Chinese translation: source, target and the lengths of both."""
    (file,) = find("tatoeba_cmn_eng", "cmn.txt.gz")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        cells = [line.split("\t") for line in text]
    pairs = list({a: b for a, b, *_ in reversed(cells)}.items())[::every]  # of several translations the first
    source, n, english = frame_texts([WORD.findall(a.lower()) for a, _ in pairs], size, steps)
    target, m, chinese = frame_texts([SIGN.findall(b.lower()) for _, b in pairs], size, steps)
    return (source, target, n, m), english, chinese

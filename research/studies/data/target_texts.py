"""Texts that a model generates, between start and stop marks, with their inputs."""

from __future__ import annotations

import csv
import gzip
import html
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from research.studies.data.place import find
from research.studies.data.text import OTHER, WORD, lines, names, split_words, vocabulary
from seqloom.core.masks import make_mask
from seqloom.models.embed import Marks

MARKS = Marks()
UNKNOWN = 3  # id, after padding, start and stop
LANGUAGES, ATTRIBUTES = 18, 79  # classes of surnames, attributes of restaurants
SIGN = re.compile(r"[\u4e00-\u9fff]|[a-z0-9]+|[,.?!\u3002\uff01\uff0c\uff1f]")

Rows = tuple[Tensor, ...]
MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def frame_texts(
    texts: Sequence[Sequence[str]], size: int, steps: int, counted: int | None = None
) -> tuple[Tensor, Tensor, list[str]]:
    """Return ids (N, steps), lengths and the words by id; longer texts are cut and have no stop mark.

    The vocabulary comes from the first `counted` texts.
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
    """Return the Tang poems that fit, as characters."""
    (file,) = find("chinese_poems", "tang_shi.jsonl.gz")
    texts = ["".join(record["lines"]) for record in lines(file, every)]
    x, lengths, words = frame_texts([text for text in texts if 20 <= len(text) <= steps - 2], size, steps)
    return (x, lengths), words


def surnames(size: int, steps: int) -> tuple[Rows, list[str], list[str]]:
    """Return names as letters, each with its language as a one-hot row, and the languages."""
    (texts, y), languages = names(steps - 2)
    x, lengths, words = frame_texts(texts, size, steps)
    return (x, lengths, torch.nn.functional.one_hot(torch.tensor(y), len(languages)).float()), words, languages


def restaurants(size: int, steps: int, every: int) -> tuple[dict[str, Rows], list[str]]:
    """Return sentences about restaurants by split, each with its attributes as a row of zeros and ones.

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
    """Return English sentences, each once, and a Chinese translation: source, target and both lengths."""
    (file,) = find("tatoeba_cmn_eng", "cmn.txt.gz")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        cells = [line.split("\t") for line in text]
    pairs = list({a: b for a, b, *_ in reversed(cells)}.items())[::every]  # the first of several translations
    source, n, english = frame_texts([WORD.findall(a.lower()) for a, _ in pairs], size, steps)
    target, m, chinese = frame_texts([SIGN.findall(b.lower()) for _, b in pairs], size, steps)
    return (source, target, n, m), english, chinese


def multi30k(size: int, steps: int, pairs: int) -> tuple[dict[str, Rows], list[str], dict[str, list[str]]]:
    """Return source, target and both lengths by split, the English words, and the raw English text by split.

    Multi30k, German and English, in the authors' lower-cased tokens. Elliott et al. 2016, arXiv 1605.00459.
    """
    cut = {"train": pairs, "valid": None, "test": None}
    rows, words, counts = [], [], [0]
    for language in ("de", "en"):
        files = find("multi30k", *(f"tok/{name}.lc.norm.tok.{language}.gz" for name in MULTI30K_SPLITS.values()))
        texts = [[line.split() for line in _read_lines(file)][:n] for file, n in zip(files, cut.values(), strict=True)]
        counts = [len(part) for part in texts]
        x, lengths, known = frame_texts([text for part in texts for text in part], size, steps, counts[0])
        rows.append((x, lengths))
        words.append(known)
    (source, n), (target, m) = rows
    parts = zip(*(t.split(counts) for t in (source, target, n, m)), strict=True)
    raw = find("multi30k", *(f"raw/{MULTI30K_SPLITS[split]}.en.gz" for split in ("valid", "test")))
    raw_lines = {split: _read_lines(file) for split, file in zip(("valid", "test"), raw, strict=True)}
    return dict(zip(MULTI30K_SPLITS, parts, strict=True)), words[1], raw_lines


def _read_lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def join_tokens(words: list[str]) -> str:
    """Join tokens to text, as far as the 13a tokens of BLEU are affected."""
    text = re.sub(r" ([.,!?;:])", r"\1", html.unescape(" ".join(words)))
    return re.sub(r" '(s|t|re|ll|ve|d|m)\b", r"'\1", text)

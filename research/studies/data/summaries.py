"""Reviews of which one sentence is the summary: the one that shares most words with the others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from research.studies.data.place import find
from research.studies.data.text import MARK, OTHER, PAD, lines, split_words, vocabulary

SENTENCES = 8  # of a review, at most
SHORTEST, FEWEST = 4, 4  # words of a sentence, sentences of a review
END = re.compile(r"(?<=[.!?])\s+")
FILES = {"train": "train", "valid": "train", "test": "test"}

Parts = dict[str, tuple[Tensor, ...]]


def summaries(size: int, steps: int, every: int, valid: int, test: int) -> tuple[Parts, list[str]]:
    """Return words (N, steps), the summary's number, lengths, and the last word of each sentence (N, 8), by split.

    Sentences beyond the eighth or beyond `steps` words are cut; a missing one ends at -1.

    Args:
        size: Number of words in the vocabulary.
        steps: Words of a review.
        every: 2 halves the training rows, and so on.
        valid: Rows for validation, from the end of the training reviews.
        test: Rows for testing.
    """
    read: dict[str, list[list[list[str]]]] = {}
    for split, most in (("train", 0), ("test", test)):
        (file,) = find("imdb", f"{split}.jsonl.gz")
        step = every if split == "train" else 5  # the file is sorted by class
        texts = [split_sentences(record["text"], steps) for record in lines(file, step)]
        rows = [text for text in texts if len(text) >= FEWEST]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
        read[split] = [rows[i] for i in order][: most or len(rows)]
    read["valid"], read["train"] = read["train"][:valid], read["train"][valid:]
    weights = find_weights(read["train"])
    ids = vocabulary((word for text in read["train"] for word in text), size)
    words = ["<padding>", "<other>", *ids]
    return {split: _encode(texts, ids, weights, steps) for split, texts in read.items()}, words


def split_sentences(text: str, steps: int) -> list[list[str]]:
    """Return the words of the first sentences that together have at most `steps` words."""
    sentences: list[list[str]] = []
    for sentence in END.split(MARK.sub(" ", text)):
        words = split_words(sentence, steps)
        if len(words) < SHORTEST:
            continue
        if len(sentences) == SENTENCES or sum(map(len, sentences)) + len(words) > steps:
            break
        sentences.append(words)
    return sentences


def find_weights(texts: Sequence[Sequence[Sequence[str]]]) -> dict[str, float]:
    """Return the weight of each word, log(N / n): rare words say more about what a text is about."""
    counts = Counter(word for text in texts for word in {w for sentence in text for w in sentence})
    return {word: math.log(len(texts) / n) for word, n in counts.items()}


def find_summary(text: Sequence[Sequence[str]], weights: dict[str, float], rest: float) -> int:
    """Return the sentence with the largest cosine to the sum of the other sentences.

    Words have these weights; `rest` is the weight of a word without one.
    """
    counts = [Counter(sentence) for sentence in text]
    total = sum(counts, Counter[str]())
    best, place = -1.0, 0
    for i, count in enumerate(counts):
        others = total - count
        dot = sum(n * others[word] * weights.get(word, rest) ** 2 for word, n in count.items())
        norms = [math.sqrt(sum((n * weights.get(w, rest)) ** 2 for w, n in c.items())) for c in (count, others)]
        cosine = dot / (norms[0] * norms[1]) if all(norms) else 0.0
        best, place = (cosine, i) if cosine > best else (best, place)
    return place


def _encode(
    texts: Sequence[Sequence[Sequence[str]]], ids: dict[str, int], weights: dict[str, float], steps: int
) -> tuple[Tensor, ...]:
    x = torch.full((len(texts), steps), PAD)
    ends = torch.full((len(texts), SENTENCES), -1)
    for i, text in enumerate(texts):
        row = [ids.get(word, OTHER) for sentence in text for word in sentence]
        x[i, : len(row)] = torch.tensor(row)
        ends[i, : len(text)] = torch.tensor([len(sentence) for sentence in text]).cumsum(0) - 1
    rarest = max(weights.values(), default=1.0)
    y = torch.tensor([find_summary(text, weights, rarest) for text in texts])
    return x, y, ends.amax(1) + 1, ends

"""Multi30k, German and English (Elliott et al. 2016, arXiv 1605.00459): sentence pairs, batches and BLEU."""

from __future__ import annotations

import gzip
import html
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SPECIAL = (
    "<padding>",
    "<start>",
    "<stop>",
    "⁇",
)  # as models/decoding/marks.py; the last: unknown


class Vocabulary:
    def __init__(self, sentences: list[list[str]], at_least: int) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        self.words = [*SPECIAL, *sorted(word for word, n in counts.items() if n >= at_least)]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def read(self, sentence: list[str]) -> list[int]:
        return [self.ids.get(word, 3) for word in sentence]


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs on the device; lengths stay on the host, so that a batch needs no synchronisation."""

    source: Tensor  # (N, S)
    target: Tensor  # (N, T), framed
    lengths: list[tuple[int, int]]

    def batch(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        device = self.source.device
        s, t = zip(*(self.lengths[r] for r in rows), strict=True)
        at = torch.tensor(rows, device=device)
        n, m = torch.tensor(s, device=device), torch.tensor(t, device=device)
        return self.source[at, : max(s)], self.target[at, : max(t)], n, m

    def buckets(self, size: int, order: torch.Generator | None = None) -> list[list[int]]:
        """Return batches of rows of similar length, in random order; without `order` by length."""
        if order is None:
            rows = sorted(range(len(self.lengths)), key=lambda r: self.lengths[r])
            return [rows[i : i + size] for i in range(0, len(rows), size)]
        shuffled = torch.randperm(len(self.lengths), generator=order).tolist()
        batches = []
        for i in range(0, len(shuffled), 50 * size):
            pool = sorted(shuffled[i : i + 50 * size], key=lambda r: self.lengths[r])
            batches += [pool[j : j + size] for j in range(0, len(pool), size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=order).tolist()]


def sentences(data: Path, split: str, language: str, limit: int | None = None) -> list[list[str]]:
    return [line.split() for line in lines(data / "tok" / f"{split}.lc.norm.tok.{language}.gz")][:limit]


def lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def pairs(german: list[list[str]], english: list[list[str]], de: Vocabulary, en: Vocabulary, device: str) -> Pairs:
    source = [de.read(s) for s in german]
    target = [[1, *en.read(s), 2] for s in english]
    lengths = [(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    return Pairs(pad(source).to(device), pad(target).to(device), lengths)


def pad(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def text(words: list[str]) -> str:
    """Join tokens to text, as far as BLEU's tokenizer (13a) sees a difference."""
    joined = re.sub(r" ([.,!?;:])", r"\1", html.unescape(" ".join(words)))
    return re.sub(r" '(s|t|re|ll|ve|d|m)\b", r"'\1", joined)


def score(translations: list[list[str]], wanted: list[list[str]], raw: list[str]) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU

    bleu, tokens = BLEU(lowercase=True), BLEU(tokenize="none", force=True)
    return {
        "bleu": round(bleu.corpus_score([text(w) for w in translations], [raw]).score, 2),
        "signature": str(bleu.get_signature()),
        "bleu_of_tokens": round(
            tokens.corpus_score([" ".join(w) for w in translations], [[" ".join(w) for w in wanted]]).score, 2
        ),
        "signature_of_tokens": str(tokens.get_signature()),
    }

"""Multi30k: descriptions of pictures, German and English."""

from __future__ import annotations

import gzip
import html
import re
from pathlib import Path

from torch import Tensor

from seqloom.lab.studies.data.framed import frame_texts
from seqloom.lab.studies.data.place import find

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

Rows = tuple[Tensor, ...]


def multi30k(size: int, steps: int, pairs: int) -> tuple[dict[str, Rows], list[str], dict[str, list[str]]]:
    """By split source, target and both lengths; the English words; and by split the English text as it was.

    The authors' lower-cased tokens. Elliott et al. 2016, arXiv 1605.00459.
    """
    cut = {"train": pairs, "valid": None, "test": None}
    made, words, counts = [], [], [0]
    for language in ("de", "en"):
        files = find("multi30k", *(f"tok/{name}.lc.norm.tok.{language}.gz" for name in SPLITS.values()))
        texts = [[line.split() for line in _lines(file)][:n] for file, n in zip(files, cut.values(), strict=True)]
        counts = [len(part) for part in texts]
        x, lengths, known = frame_texts([text for part in texts for text in part], size, steps, counts[0])
        made.append((x, lengths))
        words.append(known)
    (source, n), (target, m) = made
    parts = zip(*(t.split(counts) for t in (source, target, n, m)), strict=True)
    raw = find("multi30k", *(f"raw/{SPLITS[split]}.en.gz" for split in ("valid", "test")))
    told = {split: _lines(file) for split, file in zip(("valid", "test"), raw, strict=True)}
    return dict(zip(SPLITS, parts, strict=True)), words[1], told


def _lines(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def join_tokens(words: list[str]) -> str:
    """Tokens put together again, as far as BLEU's own tokens (13a) see a difference."""
    text = re.sub(r" ([.,!?;:])", r"\1", html.unescape(" ".join(words)))
    return re.sub(r" '(s|t|re|ll|ve|d|m)\b", r"'\1", text)

"""Requests to a voice assistant, and what they want."""

from __future__ import annotations

from torch import Tensor

from seqloom.lab.studies.data.place import find
from seqloom.lab.studies.data.text import encode, lines, vocabulary

INTENTS = (
    "AddToPlaylist",
    "BookRestaurant",
    "GetWeather",
    "PlayMusic",
    "RateBook",
    "SearchCreativeWork",
    "SearchScreeningEvent",
)


def intents(size: int, steps: int, every: int, valid: int, test: int) -> dict[str, tuple[Tensor, ...]]:
    """Words, intent and length of every request, in the usual parts. Coucke et al. 2018, arXiv 1805.10190."""
    files = dict(zip(("train", "valid", "test"), find("snips", *_FILES), strict=True))
    read = {split: lines(file, every if split == "train" else 1) for split, file in files.items()}
    ids = vocabulary((record["tokens"] for record in read["train"]), size)
    most = {"valid": valid, "test": test}
    parts: dict[str, tuple[Tensor, ...]] = {}
    for split, records in read.items():
        labelled = [r["tokens"] for r in records], [INTENTS.index(r["intent"]) for r in records]
        made = encode(labelled, ids, steps).shuffle().part(0, most.get(split, len(records)))
        parts[split] = (made.x, made.y, made.lengths)
    return parts


_FILES = ("train.jsonl.gz", "valid.jsonl.gz", "test.jsonl.gz")

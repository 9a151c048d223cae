"""Store the word ids of film reviews in a small file, for machines without the reviews.

    python -m research review_ids --out imdb-ids.xz

The rows are those that the study `imdb` reads under the fair protocol, in its order: 24,877 training reviews of up to
200 words, of which 20,000 have an id, and the first 10,000 test reviews. A study that reads them trains and scores the
same tensors as one that reads the reviews.
"""

from __future__ import annotations

import io
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from research.record import build_parser
from research.studies import imdb
from research.studies.data.examples import LabelledRows
from research.studies.data.text import PAD
from seqloom.core.masks import make_mask

WORDS, VOCABULARY, TESTED = 200, 20_000, 10_000
# Ids have two bytes, so that a position is one of two.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 1, "pb": 1}]


def write_ids(file: Path, rows: dict[str, LabelledRows]) -> None:
    """Write ids, lengths and classes of "train" and "test"."""
    arrays = {}
    for split, one in rows.items():
        real = make_mask(one.lengths, one.x.shape[1])
        arrays[f"{split}_ids"] = one.x[real].numpy().astype("<u2")
        arrays[f"{split}_lengths"] = one.lengths.numpy().astype("u1")
        arrays[f"{split}_classes"] = one.y.numpy().astype("u1")
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    file.write_bytes(lzma.compress(data.getvalue(), filters=FILTERS))


def read_ids(file: Path) -> dict[str, LabelledRows]:
    """Return the rows of "train" and "test", padded to 200 words."""
    arrays = np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False)
    rows = {}
    for split in ("train", "test"):
        lengths = torch.from_numpy(arrays[f"{split}_lengths"]).long()
        x = torch.full((len(lengths), WORDS), PAD)
        x[make_mask(lengths, WORDS)] = torch.from_numpy(arrays[f"{split}_ids"].astype("i8"))
        rows[split] = LabelledRows(x, lengths, torch.from_numpy(arrays[f"{split}_classes"]).long())
    return rows


class StoredImdb(imdb.Imdb):
    """The study, with the ids of a file in place of the reviews."""

    file: Path

    def _read(self, every: int, size: int) -> dict[str, LabelledRows]:
        most = max(c.task["words"] for c in self.settings.conditions)
        if (every, size) != (1, VOCABULARY) or most > WORDS or self.settings.test > TESTED or self.protocol != "fair":
            raise ValueError(f"{self.file} has ids of {VOCABULARY:,} words, {WORDS} a review; omit --ids")
        held: dict[str, LabelledRows] = self.__dict__.setdefault("_stored", {})
        if not held:
            held |= read_ids(self.file)
        return held


StoredImdb.name = imdb.Imdb.name  # of the keys of its trials


def main() -> None:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--out", type=Path, required=True, help="the file")
    args = parser.parse_args()
    study = imdb.Imdb(replace(imdb.Imdb.full, conditions=(imdb.at(imdb.MEAN, 4, WORDS),)))
    rows = study._read(1, VOCABULARY)
    write_ids(args.out, {"train": rows["train"], "test": rows["test"].part(0, TESTED)})
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")

"""Folders of texts by class: the name of the folder is the label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.generated import generated, utf8

SUFFIX = ".txt"


def classes(path: Path) -> list[Path]:
    """Folders below this one that hold texts, by name."""
    return sorted(p for p in path.iterdir() if p.is_dir() and any(f.suffix == SUFFIX for f in p.iterdir()))


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    schema = {"text": pl.String, "label": pl.String, "file": pl.String}
    return generated(lambda: _texts(path), schema)


def _texts(path: Path) -> Iterator[dict[str, Any]]:
    for label in classes(path):
        for file in sorted(f for f in label.iterdir() if f.suffix == SUFFIX):
            yield {"text": utf8(file.read_bytes(), file), "label": label.name, "file": file.name}

"""Data sets by name through the Hugging Face library, where the user has it: "hf:imdb", "hf:glue:sst2"."""

from __future__ import annotations

from typing import Any

import polars as pl

from seqloom.core.errors import require

PREFIX = "hf:"


def scan(name: str) -> dict[str, tuple[str, pl.LazyFrame]]:
    """split -> (fingerprint, frame)."""
    datasets = require("datasets", f"{name}: reading from the Hugging Face hub")
    path, _, config = name.removeprefix(PREFIX).partition(":")
    found: Any = datasets.load_dataset(path, config or None)
    parts = found if isinstance(found, dict) else {"train": found}
    return {_split(split): (str(part._fingerprint), _frame(part)) for split, part in parts.items()}


def _split(name: str) -> str:
    return {"validation": "valid", "dev": "valid"}.get(name, name)


def _frame(part: Any) -> pl.LazyFrame:
    """Class ids become their names."""
    frame: pl.DataFrame = part.to_polars()
    for name, feature in part.features.items():
        names = getattr(feature, "names", None)
        if names and frame.schema[name].is_integer():
            frame = frame.with_columns(pl.col(name).replace_strict(dict(enumerate(names)), default=None))
    return frame.lazy()

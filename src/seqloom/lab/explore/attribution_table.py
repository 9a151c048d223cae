"""The contributions of every step of a whole data set, as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch

from seqloom.core.errors import UserError
from seqloom.lab.explore.contributions import choose_target, integrate_gradients, occlude
from seqloom.lab.explore.rows import HeldOutRow, list_rows
from seqloom.lab.explore.subject import Subject
from seqloom.lab.files import scratch

SUFFIXES = {".parquet": "write_parquet", ".csv": "write_csv"}
ALL_ROWS = 1_000_000_000


def check_table_path(path: Path) -> None:
    """Raise a UserError unless the path has the suffix of a table."""
    if path.suffix not in SUFFIXES:
        raise UserError(f"--out: {path} must end with {' or '.join(SUFFIXES)}")


def write_attributions(subject: Subject, path: Path, report: Callable[[int, int], None] | None = None) -> int:
    """Write one line per step of the run's held-out rows; return the number of rows.

    The columns are row, step, token, truth, output (the name of the explained output), value (of that output),
    occlusion and gradient (null if the layer reads several steps at once).

    Args:
        path: A file that ends with .parquet or .csv.
        report: Called with the number of finished rows and of all rows.
    """
    check_table_path(path)
    rows = list_rows(subject, ALL_ROWS)
    tables = []
    for number, row in enumerate(rows):
        tables.append(_explain_row(subject, number, row))
        if report is not None:
            report(number + 1, len(rows))
    table = pl.concat(tables)
    with scratch.write_atomically(path) as work:
        getattr(table, SUFFIXES[path.suffix])(work)
    return len(rows)


def _explain_row(subject: Subject, number: int, row: HeldOutRow) -> pl.DataFrame:
    example = subject.label(row.batch)
    n = len(example.steps)
    with subject.lock:
        with torch.no_grad():
            outputs = subject.compute_outputs(example.batch)
        target = choose_target(subject, outputs)

        def run(batch: Any) -> Any:  # noqa: ANN401  # a Batch and Outputs
            return subject.compute_outputs(batch, outputs.wanted)

        windows, effects = occlude(run, example, target, subject.deletes)
        gradients = integrate_gradients(run, subject.network, example, target)
    each = [effect for (a, b), effect in zip(windows, effects.tolist(), strict=True) for _ in range(a, b)]
    value = outputs.values[0] if target.step is None else outputs.values[0, target.step]
    fits = gradients is not None and len(gradients[0]) == n
    columns: dict[str, Any] = {
        "row": [number] * n,
        "step": range(n),
        "token": example.steps,
        "truth": [row.truth] * n,
        "output": [outputs.labels[target.output]] * n,
        "value": [float(value[target.output])] * n,
        "occlusion": each,
        "gradient": gradients[0].tolist() if fits and gradients is not None else [None] * n,
    }
    return pl.DataFrame(columns, schema_overrides={"gradient": pl.Float64})

"""The table as a person reads it."""

from __future__ import annotations

from typing import Any

from seqloom.lab.compare.table import Row, Table

MEGA = 1e6
FEW = 50  # validation rows on which nothing can be told apart


def leaderboard(table: Table) -> list[dict[str, Any]]:
    """Rows with the same headings, for the console and the report."""
    metric = table.metric
    named = {"accuracy": "accuracy", "span_f1": "span F1", "cer": "character errors", "mse": "MSE", "rmse": "RMSE"}
    name = named.get(metric.name, metric.name)
    rows: list[dict[str, Any]] = []
    for row in (r for r in table.rows if not r.left_out):
        one, many = row.latency or (None, None)
        rows.append(
            {
                "model": f"{row.label} (baseline)" if row.baseline else row.label,
                f"test {name}": _known(table, row),
                "against the first": _against(table, row),
                "validation": metric.shown(row.valid),
                "seeds": row.seeds or None,
                "parameters": row.parameters,
                "without tables": row.core,
                "training s": None if row.seconds is None else float(f"{row.seconds:.3g}"),
                "ms for 1": _milli(one),
                "ms for 64": _milli(many),
                "memory MB": None if row.memory is None else round(row.memory / MEGA, 1),
                "note": row.note or None,
            }
        )
    needless = ["without tables"] if all(r["parameters"] == r["without tables"] for r in rows) else []
    needless += [] if any(r["note"] for r in rows) else ["note"]
    return [{name: value for name, value in r.items() if name not in needless} for r in rows]


def _known(table: Table, row: Row) -> str | None:
    if row.test is None:
        return None
    return f"{table.metric.shown(row.test.mean)} +- {table.metric.apart(row.test.half)}"


def _against(table: Table, row: Row) -> str | None:
    """How far from the best trained model, and whether that is more than chance."""
    if row.test is None:
        return None
    if row.behind is None:
        return "first" if not row.baseline else None
    if not row.behind.real:
        return "even"
    ahead = (row.behind.mean > 0) == table.metric.higher
    metric = table.metric
    return f"{metric.apart(row.behind.mean)} +- {metric.apart(row.behind.half)} {'better' if ahead else 'worse'}"


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1000 * seconds:.3g}")


def caption(table: Table, seeds: int, valid: int | None) -> str:
    """How the numbers were made, and what to beware of."""
    less = "" if table.metric.higher else "; less is better"
    some = f"{seeds} seeds and over test" if seeds > 1 else "test"
    told = (
        f"Models are chosen on validation rows, and test rows read once{less}. +- is the 95% interval over {some} "
        "rows; a difference is paired over both, and 'even' is one that may be chance. Training, latency and "
        "memory are of one run in one thread."
    )
    if valid is not None and valid < FEW:
        told += f" There are only {valid} validation rows, so the choice is uncertain: --valid 0.3 sets more aside."
    left = [row.label for row in table.rows if row.left_out]
    return told + (f" Left out for lack of time: {', '.join(left)}." if left else "")

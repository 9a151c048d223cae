"""The results as text: the leaderboard, its caption, and a verdict."""

from __future__ import annotations

from typing import Any

from seqloom.lab.compare.baselines.registry import BLIND
from seqloom.lab.compare.results import Results, Row
from seqloom.lab.compare.significance import Estimate

MEGABYTE = 1e6
FEW_VALIDATION_ROWS = 50  # too few to rank models reliably


def build_leaderboard(results: Results) -> list[dict[str, Any]]:
    """Build the table for the console and the report; all rows have the same headings."""
    metric = results.metric
    rows: list[dict[str, Any]] = []
    for row in (r for r in results.rows if not r.left_out):
        one, many = row.latency or (None, None)
        rows.append(
            {
                "model": f"{row.label} (baseline)" if row.baseline else row.label,
                f"test {metric.title}": _format_test(results, row),
                "difference to best": _format_difference(results, row),
                "validation": metric.format(row.valid),
                "seeds": row.seeds or None,
                "parameters": row.parameters,
                "without embeddings": row.core,
                "training (s)": None if row.seconds is None else float(f"{row.seconds:.3g}"),
                "latency 1 (ms)": _milliseconds(one),
                "latency 64 (ms)": _milliseconds(many),
                "memory (MB)": None if row.memory is None else round(row.memory / MEGABYTE, 1),
                "note": row.note or None,
            }
        )
    redundant = ["without embeddings"] if all(r["parameters"] == r["without embeddings"] for r in rows) else []
    redundant += [] if any(r["note"] for r in rows) else ["note"]
    return [{name: value for name, value in r.items() if name not in redundant} for r in rows]


def _format_test(results: Results, row: Row) -> str | None:
    if row.test is None:
        return None
    return f"{results.metric.format(row.test.mean)} +- {results.metric.format_difference(row.test.half)}"


def _format_difference(results: Results, row: Row) -> str | None:
    """Format the difference to the best trained model, and whether it is significant."""
    if row.test is None:
        return None
    if row.behind is None:
        return "best" if not row.baseline else None
    if not row.behind.is_significant:
        return f"not significant ({_format_interval(results, row.behind)})"
    better = (row.behind.mean > 0) == results.metric.higher
    return f"{_format_lead(results, row.behind)} {'better' if better else 'worse'}"


def _format_lead(results: Results, difference: Estimate) -> str:
    format_ = results.metric.format_difference
    return f"{format_(difference.mean)} +- {format_(difference.half)}"


def _format_interval(results: Results, difference: Estimate) -> str:
    low, high = difference.mean - difference.half, difference.mean + difference.half
    return " to ".join(results.metric.format_difference(end, sign=True) for end in (low, high))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1000 * seconds:.3g}")


def caption(results: Results, seeds: int, valid: int | None) -> str:
    """Explain how the numbers were obtained, and what to beware of.

    Args:
        results: the results.
        seeds: number of seeds of the final trainings.
        valid: number of validation rows, if known.
    """
    direction = "" if results.metric.higher else " Lower is better."
    sources = "seeds and test rows" if seeds > 1 else "test rows"
    text = (
        f"Models are selected on the validation rows; the test rows are used once.{direction} +- is a 95% confidence "
        f"interval over {sources}. Differences to the best model are paired; one is significant if its interval "
        "excludes 0. Training time, latency (for 1 and for 64 sequences) and memory are those of one run on one thread."
    )
    if valid is not None and valid < FEW_VALIDATION_ROWS:
        text += f" With only {valid} validation rows the selection is uncertain; --valid 0.3 sets more aside."
    left_out = [row.label for row in results.rows if row.left_out]
    return text + (f" Left out for lack of time: {', '.join(left_out)}." if left_out else "")


def verdict(results: Results, finished: bool = True) -> str:
    """Say which model to use, and why; a lead counts only if its interval excludes 0."""
    if not finished:
        return "Interrupted: the table shows the results so far; there is no verdict yet."
    baseline = results.best_baseline
    if not results.models:
        return "No model was trained to the end" + (f"; the best baseline is {baseline.label}." if baseline else ".")
    best, *others = results.models
    if baseline is not None and not _is_better(results, best, baseline):
        return _recommend_baseline(results, best, baseline)
    above = "" if baseline is None else f" {best.label} beats {baseline.label} by {_lead(results, best, baseline)}."
    if not others:
        return f"{best.label} reaches {_score(results, best)}.{above}"
    equal = [row for row in others if not _is_better(results, best, row)]
    if not equal:
        cost = _relative_latency(best, others[0])
        return f"Use {best.label}: it leads {others[0].label} by {_lead(results, best, others[0])}{cost}.{above}"
    fastest = min([best, *equal], key=lambda row: row.latency or (float("inf"),) * 2)
    leader = "it" if fastest is best else f"{best.label} ({_score(results, best)})"
    return (
        f"Use {fastest.label} ({_score(results, fastest)}), the fastest of {len(equal) + 1} similar models: {leader} "
        f"has no significant lead over {_join([_name_with_interval(results, best, row) for row in equal])}.{above}"
    )


def _recommend_baseline(results: Results, best: Row, baseline: Row) -> str:
    model = f"the best model ({best.label}, {_score(results, best)})"
    if baseline.name in BLIND:
        return (
            f"Nothing was learned: {model} does not beat {baseline.label} ({_score(results, baseline)}). "
            "Give the models more time or more data."
        )
    if _is_better(results, baseline, best):
        return (
            f"Use {baseline.label}: it beats {model} by {_lead(results, baseline, best)}. "
            "The models may need more time or more data."
        )
    interval = _format_interval(results, results.difference(baseline, best))
    return (
        f"Use {baseline.label} ({_score(results, baseline)}): no significant difference to {model}; "
        f"95% interval {interval}{results.metric.unit}."
    )


def _is_better(results: Results, one: Row, other: Row) -> bool:
    difference = results.difference(one, other)
    return difference.is_significant and (difference.mean > 0) == results.metric.higher


def _lead(results: Results, one: Row, other: Row) -> str:
    return f"{_format_lead(results, results.difference(one, other))}{results.metric.unit}"


def _name_with_interval(results: Results, best: Row, row: Row) -> str:
    """Name a row with the interval of the best model's difference to it."""
    return f"{row.label} (95% interval {_format_interval(results, results.difference(best, row))})"


def _score(results: Results, row: Row) -> str:
    assert row.test is not None
    return f"{results.metric.title} {results.metric.format(row.test.mean)}"


def _relative_latency(one: Row, other: Row) -> str:
    if one.latency is None or other.latency is None or not other.latency[0]:
        return ""
    return f" at {one.latency[0] / other.latency[0]:.2g} times the latency"


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

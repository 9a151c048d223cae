"""The results as tables: five columns for a terminal, all of them for the report; and a caption."""

from __future__ import annotations

from typing import Any

from seqloom.core.plurals import count, list_some
from seqloom.lab.compare.choice import margin_of, state_rule
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.significance import Estimate
from seqloom.lab.stats.metrics import Metric

MEGABYTE = 1e6
FEW_VALIDATION_ROWS = 50  # too few to rank models reliably
LONGEST_LABEL = 32  # maximum characters of a model's label
BASELINE_MARK = "*"


def build_summary(results: Results) -> list[dict[str, Any]]:
    """Build the table for a terminal of 80 columns; all rows have the same headings."""
    metric = results.metric
    return [
        {
            "model": _shorten(row.label) + (f" {BASELINE_MARK}" if row.baseline else ""),
            metric.heading: _format_score(metric, row),
            "difference": _format_signed(metric, row.behind) if row.behind is not None else None,
            "seconds": None if row.seconds is None else f"{row.seconds:,.1f}",
            "verdict": _choose_word(results, row),
        }
        for row in results.rows
        if not row.left_out
    ]


def _shorten(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"...{label[3 - LONGEST_LABEL :]}"


def _format_score(metric: Metric, row: Row) -> str | None:
    """Return the test score, or the validation score in brackets."""
    if row.test is not None:
        return metric.format(row.test.mean)
    return None if row.valid is None else f"({metric.format(row.valid)})"


def _choose_word(results: Results, row: Row) -> str:
    if row.name == results.chosen:
        return "use this" if results.has_learned else "best yet"
    if row.test is None:
        return "failed" if row.note.startswith("failed") else "stopped"
    if row.behind is None:
        return ""
    if not row.behind.is_significant:
        return _name_insignificant(results, row)
    return "better" if (row.behind.mean > 0) == results.metric.higher else "worse"


def _name_insignificant(results: Results, row: Row) -> str:
    """Name a difference whose interval includes 0: similar within the margin, unclear beyond it or without interval."""
    assert row.behind is not None
    return "similar" if row.behind.has_interval and abs(row.behind.mean) <= margin_of(results, row) else "unclear"


def build_leaderboard(results: Results) -> list[dict[str, Any]]:
    """Build the table with all columns; all rows have the same headings."""
    metric = results.metric
    rows: list[dict[str, Any]] = []
    for row in (r for r in results.rows if not r.left_out):
        one, many = row.latency or (None, None)
        rows.append(
            {
                "model": f"{row.label} {BASELINE_MARK}" if row.baseline else row.label,
                f"test {metric.title}": _format_test(metric, row),
                "difference": _format_difference(results, row),
                "validation": metric.format(row.valid),
                "seeds" if results.folds is None else "folds": row.seeds or None,
                "parameters": row.parameters,
                "without embeddings": row.core,
                "training (s)": None if row.seconds is None else f"{row.seconds:,.1f}",
                "latency 1 (ms)": _milliseconds(one),
                "latency 64 (ms)": _milliseconds(many),
                "memory (MB)": None if row.memory is None else f"{row.memory / MEGABYTE:,.1f}",
                "note": None if _is_stopped(row) else row.note or None,
            }
        )
    redundant = ["without embeddings"] if all(r["parameters"] == r["without embeddings"] for r in rows) else []
    redundant += [] if any(r["note"] for r in rows) else ["note"]
    return [{name: value for name, value in r.items() if name not in redundant} for r in rows]


def _format_test(metric: Metric, row: Row) -> str | None:
    if row.test is None:
        return None
    return f"{metric.format(row.test.mean)}{_format_half(metric, row.test)}"


def _format_half(metric: Metric, one: Estimate) -> str:
    """Format the half-width of an interval, to follow its centre; "" if it is unknown."""
    return f" +- {metric.format_difference(one.half, half=one.half)}" if one.has_interval else ""


def _is_stopped(row: Row) -> bool:
    """Return whether a model was not tested because others were better after fewer steps."""
    return row.test is None and row.note.startswith("stopped")


def _format_difference(results: Results, row: Row) -> str | None:
    """Format the difference to the recommended row and whether it is significant, or when training was stopped."""
    if row.name == results.chosen:
        return "recommended" if results.has_learned else "best so far"
    if _is_stopped(row):
        return row.note
    if row.test is None or row.behind is None:
        return None
    if not row.behind.is_significant:
        return f"{_name_insignificant(results, row)} ({format_interval(results.metric, row.behind)})"
    better = (row.behind.mean > 0) == results.metric.higher
    return f"{format_lead(results.metric, row.behind)} {'better' if better else 'worse'}"


def _format_signed(metric: Metric, difference: Estimate) -> str:
    mean = metric.format_difference(difference.mean, sign=True, half=difference.half)
    return f"{mean if mean.startswith('-') else f'+{mean}'}{_format_half(metric, difference)}"


def format_lead(metric: Metric, difference: Estimate) -> str:
    """Format the size of a difference with its interval: 1.8 +- 0.4."""
    mean = metric.format_difference(difference.mean, half=difference.half)
    return f"{mean}{_format_half(metric, difference)}"


def format_interval(metric: Metric, difference: Estimate) -> str:
    """Format the interval of a difference: -0.2 to 0.6; "no interval" if it is unknown."""
    if not difference.has_interval:
        return "no interval"
    low, high = difference.mean - difference.half, difference.mean + difference.half
    return " to ".join(metric.format_difference(end, sign=True, half=difference.half) for end in (low, high))


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1000 * seconds:,.2f}"


def short_caption(results: Results) -> str:
    """Explain the table of the terminal, then the rule of the recommendation."""
    metric = results.metric
    lower = "" if metric.higher else ", lower is better"
    title = metric.title if metric.title == "chrF" else metric.title[0].upper() + metric.title[1:]
    parts = [f"{BASELINE_MARK} baseline. {title} of {results.tested}{lower}{_describe_folds(results)}"]
    if any(row.test is None and row.valid is not None for row in results.rows):
        parts.append("; in brackets, of the validation rows, for models that were stopped early")
    interval = "" if results.has_no_intervals else ", with a 95% interval"
    parts.append(f". Sorted by validation score; difference to the recommended row{interval}.")
    text = "".join([*parts, _list_left_out(results)])
    return "\n".join(line for line in (text, results.interval_note, state_rule(results)) if line)


def caption(results: Results, seeds: int, valid: int | None) -> str:
    """Explain how the numbers were obtained, and how to read them with caution.

    Args:
        valid: number of validation rows, if known.
    """
    direction = "" if results.metric.higher else " Lower is better."
    sources = "seeds and test rows" if seeds > 1 and results.folds is None else "test rows"
    interval = "" if results.has_no_intervals else f" +- is a 95% confidence interval over {sources}."
    few = f" {results.interval_note}" if results.interval_note else ""
    text = (
        f"{BASELINE_MARK} baseline. {state_rule(results)}{direction}{interval}{few} Rows are sorted by validation "
        "score. Differences to the recommended row are paired. If the interval includes 0, a row is similar within the "
        "margin, and unclear beyond it. Training time, latency (for 1 and for 64 sequences) and memory are those of "
        "one run on one thread."
    )
    if valid is not None and valid < FEW_VALIDATION_ROWS:
        more = "--borders 60/20/20" if results.example == "window" else "--valid 0.3"
        few = count(valid, f"validation {results.example}")
        if results.ranking_rows:
            of = (
                f"at {count(results.ranking_rows, 'window')}"
                if results.example == "window"
                else (f"by {results.ranking_rows:,} rows, each scored by a fit without it")
            )
            text += f" Baselines are ranked {of}."
        of = " of models" if results.ranking_rows else ""
        text += f" With only {few} the selection{of} is uncertain; {more} sets more aside."
    if results.folds is not None:
        text += f" Scores are those of {count(results.test_rows, 'row')}{_describe_folds(results)}. "
        text += "Learning rates and finalists were chosen in the first fold, whose models are kept."
    return text + _list_left_out(results)


def _describe_folds(results: Results) -> str:
    """Return a phrase with the number of folds, to follow a number of rows; "" without cross-validation."""
    if results.folds is None:
        return ""
    done, wanted = results.folds
    part = "" if done == wanted else f" (only {done} of them: no time for more)"
    return f", each predicted by a model that was trained without it: {wanted} folds{part}"


def _list_left_out(results: Results) -> str:
    left_out = [row.label for row in results.rows if row.left_out]
    return f" Left out for lack of time: {list_some(left_out)}." if left_out else ""

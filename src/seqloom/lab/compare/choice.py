"""Which row to recommend: a model that leads by more than a margin, otherwise the simpler one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqloom.lab.compare.baselines.registry import BLIND
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.significance import Estimate


@dataclass(frozen=True)
class ModelChoice:
    """The recommended row, and what it was compared with."""

    row: Row  # the recommended row; the best so far if nothing has learned
    trivial: Row | None  # the best baseline that ignores the input, if there is one
    rival: Row | None  # the best model if a baseline is recommended, or the best baseline if a model is
    # Models that the best model does not lead by more than the margin, if a model is recommended.
    similar: tuple[Row, ...]
    has_learned: bool  # whether the row leads the trivial one by more than the margin
    is_certain: bool  # whether that lead is significant


def choose_row(results: Results) -> ModelChoice | None:
    """Choose the row to recommend; None if nothing has a test score.

    The best model and the best baseline are those of the validation rows. The model is recommended if it leads the
    baseline by more than the margin on the test rows, and the fastest of the similar models instead of the best one.
    """
    trivial = min((row for row in results.baselines if row.name in BLIND), key=lambda row: row.rank, default=None)
    simple = min((row for row in results.baselines if row.name not in BLIND), key=lambda row: row.rank, default=None)
    best = results.models[0] if results.models else None
    if best is None and simple is None:
        return None if trivial is None else ModelChoice(trivial, trivial, None, (), False, False)
    similar: list[Row] = []
    rival = simple
    if best is None or (simple is not None and lead_of(results, best, simple).mean <= margin_of(results, best)):
        assert simple is not None
        row, rival = simple, best
    else:
        similar = [row for row in results.models[1:] if _is_similar(results, best, row, simple)]
        row = min([best, *similar], key=lambda row: row.latency or (float("inf"),) * 2)
    if trivial is None:
        return ModelChoice(row, None, rival, tuple(similar), True, True)
    lead = lead_of(results, row, trivial)
    has_learned = lead.mean > margin_of(results, row)
    return ModelChoice(row, trivial, rival, tuple(similar), has_learned, has_learned and lead.is_significant)


def state_rule(results: Results) -> str:
    """State the rule of `choose_row` in a sentence."""
    margin = f"{results.margin:g} " + ("percentage point" if results.metric.percent else "percent")
    if results.metric.percent and results.margin != 1:
        margin += "s"
    return (
        "The validation rows choose the best model and the best baseline, and the test rows decide between the two: "
        f"the model is recommended if it leads by more than {margin} (--margin), and of similar models the fastest."
    )


def mark_choice(results: Results) -> Results:
    """Return the results with the recommended row, and the differences of the others to it."""
    choice = choose_row(results)
    if choice is None:
        return results
    chosen = choice.row.name
    behind = {
        row.name: results.difference(row, choice.row)
        for row in results.rows
        if row.test is not None and row.name != chosen
    }
    rows = [replace(row, behind=behind.get(row.name)) for row in results.rows]
    return replace(results, rows=rows, chosen=chosen, has_learned=choice.has_learned)


def _is_similar(results: Results, best: Row, row: Row, simple: Row | None) -> bool:
    """Return whether a model is as good as the best one, and still leads the baseline."""
    lead, margin = lead_of(results, best, row), margin_of(results, best)
    if lead.mean > margin or (lead.is_significant and lead.mean > 0):
        return False
    return simple is None or lead_of(results, row, simple).mean > margin


def lead_of(results: Results, one: Row, other: Row) -> Estimate:
    """Estimate how much better a row is than another; positive is better, whatever the metric."""
    difference = results.difference(one, other)
    return difference if results.metric.higher else Estimate(-difference.mean, difference.half, difference.values)


def margin_of(results: Results, row: Row) -> float:
    """Return the margin in units of the metric: percentage points, or percent of the row's value."""
    assert row.test is not None
    return results.margin / 100 * (1.0 if results.metric.percent else abs(row.test.mean))

"""The recommendation in words."""

from __future__ import annotations

from seqloom.lab.compare.choice import ModelChoice, choose_row, lead_of, margin_of
from seqloom.lab.compare.leaderboard import format_interval, format_lead
from seqloom.lab.compare.rows import Results, Row

FEW_TEST_ROWS = 100  # with fewer, more rows are the first thing to try


def write_verdict(results: Results, finished: bool = True) -> str:
    """Say which model to use and why, or that nothing has learned and what to try."""
    if not finished and not results.rows:
        return "Interrupted before the first result."
    if not finished:
        return "Interrupted: the table shows the results so far; there is no verdict yet."
    choice = choose_row(results)
    if choice is None:
        return _join_sentences("Nothing could be trained or scored; the table has the reasons.", _more_time(results))
    if not choice.has_learned:
        return _say_nothing_learned(results, choice)
    text = _recommend_baseline(results, choice) if choice.row.baseline else _recommend_model(results, choice)
    more = _more_time(results) if results.is_short else ""
    return _join_sentences(text, _name_better_rows(results, choice), _doubt(results, choice), more)


def _say_nothing_learned(results: Results, choice: ModelChoice) -> str:
    trivial = choice.trivial
    assert trivial is not None
    if choice.row is trivial:
        text = f"Nothing has learned yet: only {trivial.label} ({_score(results, trivial)}) could be scored."
    else:
        is_behind = lead_of(results, choice.row, trivial).mean < 0
        text = (
            f"Nothing has learned yet: the best that reads its input, {choice.row.label} "
            f"({_score(results, choice.row)}), {'is behind' if is_behind else 'does not clearly beat'} "
            f"{trivial.label} ({_score(results, trivial)}), a trivial baseline."
        )
    rows = f"There are only {results.tested}, so more rows come first." if results.test_rows < FEW_TEST_ROWS else ""
    more = _more_time(results) or "Try more rows or a larger --budget."
    return _join_sentences(text, rows, more, "`seqloom look` shows which columns are input and target.")


def _recommend_baseline(results: Results, choice: ModelChoice) -> str:
    row, model = choice.row, choice.rival
    if model is None:
        why = "there was no time to train a model" if results.is_short else "no model was trained to the end"
        return f"Use {row.label} ({_score(results, row)}): {why}."
    lead = lead_of(results, row, model)
    other = f"the best model ({model.label}, {_score(results, model)})"
    if lead.is_significant and lead.mean > 0:
        return f"Use {row.label} ({_score(results, row)}): it is ahead of {other} by {_lead(results, row, model)}."
    interval = ""
    if lead.has_interval:
        ends = format_interval(results.metric, results.difference(model, row))  # the direction of the table
        interval = f"; 95% interval of its difference {ends}{results.metric.unit}"
    if lead.mean >= 0:
        return f"Use {row.label} ({_score(results, row)}): it is simpler, and {other} is no better{interval}."
    margin = f"{results.metric.format_difference(margin_of(results, model))}{results.metric.unit}"
    return (
        f"Use {row.label} ({_score(results, row)}): it is simpler, and the lead of {other} is within the margin of "
        f"{margin}{interval}."
    )


def _recommend_model(results: Results, choice: ModelChoice) -> str:
    best, *others = results.models
    row, similar = choice.row, choice.similar
    above = "" if choice.rival is None else _compare_with_baseline(results, row, choice.rival)
    if not others:
        return f"Use {row.label} ({_score(results, row)}).{above}"
    if not similar:
        cost = _relative_latency(best, others[0])
        verb = "leads" if _is_better(results, best, others[0]) else "is ahead of"
        lead = _lead(results, best, others[0])
        return f"Use {best.label} ({_score(results, best)}): it {verb} {others[0].label} by {lead}{cost}.{above}"
    leader = "it" if row is best else f"{best.label} ({_score(results, best)})"
    names = _join_names([_name_with_interval(results, best, one) for one in similar])
    fastest = f"the fastest of {len(similar) + 1} similar models"
    return f"Use {row.label} ({_score(results, row)}), {fastest}: {leader} has no significant lead over {names}.{above}"


def _compare_with_baseline(results: Results, row: Row, baseline: Row) -> str:
    lead = _lead(results, row, baseline)
    if _is_better(results, row, baseline):
        return f" {row.label} beats {baseline.label} by {lead}."
    return (
        f" {row.label} is ahead of {baseline.label} ({_score(results, baseline)}) by {lead}, which is not significant "
        f"with {results.tested}."
    )


def _name_better_rows(results: Results, choice: ModelChoice) -> str:
    """Name rows that lead the recommended one on the test rows although validation did not choose them."""
    better = [row for row in results.rows if row.test is not None and _is_clearly_better(results, row, choice.row)]
    if not better:
        return ""
    names = [f"{row.label} ({_score(results, row)}, by {_lead(results, row, choice.row)})" for row in better]
    verb = "is" if len(better) == 1 else "are"
    return (
        f"On the test rows {_join_names(names)} {verb} ahead of it, but the validation rows decide: "
        "score both on other data with `seqloom evaluate`."
    )


def _doubt(results: Results, choice: ModelChoice) -> str:
    """Return a warning if the recommended model is not significantly better than the trivial one."""
    if choice.is_certain or choice.trivial is None:
        return ""
    return (
        f"Its lead over {choice.trivial.label}, {_lead(results, choice.row, choice.trivial)}, is not significant with "
        f"{results.tested}; more rows would tell."
    )


def _more_time(results: Results) -> str:
    """Explain how little was trained, and what a larger budget would allow."""
    trained = ""
    if results.epochs is not None and results.epochs < 1 and results.models:
        trained = f"The models saw {results.epochs:.0%} of the training rows once. "
    return f"{trained}{results.more}.".strip() if results.more else trained.strip()


def _join_sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _is_better(results: Results, one: Row, other: Row) -> bool:
    lead = lead_of(results, one, other)
    return lead.is_significant and lead.mean > 0


def _is_clearly_better(results: Results, one: Row, other: Row) -> bool:
    return _is_better(results, one, other) and lead_of(results, one, other).mean > margin_of(results, other)


def _lead(results: Results, one: Row, other: Row) -> str:
    return f"{format_lead(results.metric, results.difference(one, other))}{results.metric.unit}"


def _name_with_interval(results: Results, best: Row, row: Row) -> str:
    """Name a row with the interval of the best model's difference to it."""
    difference = results.difference(best, row)
    ends = f" (95% interval {format_interval(results.metric, difference)})" if difference.has_interval else ""
    return f"{row.label}{ends}"


def _score(results: Results, row: Row) -> str:
    assert row.test is not None
    return f"{results.metric.title} {results.metric.format(row.test.mean)}"


def _relative_latency(one: Row, other: Row) -> str:
    if one.latency is None or other.latency is None or not other.latency[0]:
        return ""
    ratio = f"{one.latency[0] / other.latency[0]:.2g}"
    return " at the same latency" if ratio == "1" else f" at {ratio} times the latency"


def _join_names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""The generated parts of the decision on AttnRNN's form: the ablation as a table."""

from __future__ import annotations

from research.pages import study_pages
from research.pages.records import Row
from research.pages.study_pages import ORDER, VERDICTS

NAME = "ablation-fair"
NAMES = {
    "attn_rnn": "as it is",
    "uniform weights": "equal weights instead of attention",
    "gru": "GRU",
    "lstm": "LSTM",
    "ln_gru": "GRU with LayerNorm",
    "ln_lstm": "LSTM with LayerNorm",
}
FAILED = 0.3  # an error on adding above this, beside a seed below a third of it, is a training that failed


def ablation_table() -> str:
    """Return the errors of all variants by task; bold where the difference to AttnRNN is significant."""
    table: dict[str, dict[str, Row]] = {}
    for row in study_pages.load(NAME)["table"]:
        table.setdefault(row["model"], {})[row["condition"]] = row
    tasks = list(table["attn_rnn"])
    lines = [f"| | {' | '.join(tasks)} |", f"|---|{'--:|' * len(tasks)}"]
    for model, rows in table.items():
        cells = (describe(rows[task]) if task in rows else "-" for task in tasks)
        lines.append(f"| {NAMES.get(model, model)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def describe(row: Row) -> str:
    """Return an error, bold if it differs from AttnRNN's, with its learning rate if that is at the edge of the grid."""
    condition, model = row["condition"], row["model"]
    text = f"{row['error']:.3f}" if row["error"] < 0.1 else f"{row['error']:.2f}"
    if model != "attn_rnn":
        result = study_pages.find("ablation", condition, model)["result"]
        text = f"**{text}**" if VERDICTS.get(result, result) != ORDER[1] else text
    errors = [
        t["scores"]["error"]
        for t in study_pages.load(NAME)["rows"]
        if (t["condition"], t["model"], t["split"]) == (condition, model, "test") and not t["failed"]
    ]
    failed = sum(error > FAILED for error in errors) if min(errors) < FAILED / 3 and "adding" in condition else 0
    notes = [f"{failed} of {len(errors)} fail"] if failed else []
    edge = study_pages.edges(NAME).get((condition, model))
    notes += [f"rate {edge:g}"] if edge is not None else []
    return f"{text} ({', '.join(notes)})" if notes else text


def ablation_edges() -> str:
    """Return in how many pairs of task and model the best learning rate is at an end of the grid."""
    found = study_pages.count_edges(NAME) or "none"
    return f"Pairs of task and model whose best learning rate is the lowest or highest one tried: {found}.\n"


PARTS = (ablation_table, ablation_edges)

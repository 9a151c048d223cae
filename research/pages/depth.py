"""The table of the page on deep stacks, from the stored record; see generate.py."""

from __future__ import annotations

from research.pages.cell_map import find_records, select
from research.pages.records import format_command

NORMS = {"none": "no norm", "rms": "`rms`", "layer": "`layer`", "batch": "`batch`"}
CELLS = {"attn_rnn": "AttnRNN", "gru": "GRU", "lstm": "LSTM"}
RATES = (0.001, 0.003)
DEPTH = 8


def depth_table() -> str:
    """Return the validation losses of eight layers by norm, residual connections and learning rate."""
    record = find_records("depth-table")[-1]
    heads = " | ".join(f"{title}, {rate:g}" for title in CELLS.values() for rate in RATES)
    lines = ["", f"| between layers | {heads} |", "|---|" + "--:|" * len(CELLS) * len(RATES)]
    for way in ("plain", "residual"):
        for norm, words in NORMS.items():
            losses = []
            for cell in CELLS:
                rows = select(record, "names", f"{cell}-{DEPTH}-{norm}-{way}", "tune")
                for rate in RATES:
                    some = [row["valid"] for row in rows if row["rate"] == rate]
                    losses.append(f"{sum(some) / len(some):.3f}" if some else "-")
            lines.append(f"| {words}{', residual' * (way == 'residual')} | {' | '.join(losses)} |")
    names = {cell: f"{cell}-{DEPTH}-none-plain" for cell in CELLS}
    units = ", ".join(f"{title} {record['units'][names[cell]]}" for cell, title in CELLS.items())
    lines += ["", f"Units: {units}. `{format_command(record)}`, {record['date'][:10]}, "]
    lines[-1] += f"{record['hardware']['gpus'][0]['name']}; {record['note']}."
    return "\n".join([*lines, "", ""])


PARTS = (depth_table,)

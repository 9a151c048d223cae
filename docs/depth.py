"""The table of the page on deep stacks, from the stored record; see generate.py."""

from __future__ import annotations

from typing import Any

from cell_map import describe_scores, find_records, select

NORMS = {"none": "no norm", "rms": "`rms`", "layer": "`layer`", "batch": "`batch`"}
CELLS = {"attn_rnn": "AttnRNN", "gru": "GRU", "lstm": "LSTM"}
DEPTHS = (1, 2, 4, 8)


def depth_table() -> str:
    """Return one table per cell: accuracy by depth, norm and residual connections."""
    records = find_records("depth-table")
    if not records:
        return "\nNot measured yet.\n\n"
    record = records[-1]
    lines: list[str] = []
    for cell, title in CELLS.items():
        heads = " | ".join(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS)
        lines += ["", f"**{title}**", "", f"| between layers | {heads} |", "|---|" + "--:|" * len(DEPTHS)]
        for way in ("plain", "residual"):
            for norm, words in NORMS.items():
                scores = [describe_stack(record, cell, depth, norm, way) for depth in DEPTHS]
                lines.append(f"| {words}{', residual' * (way == 'residual')} | {' | '.join(scores)} |")
    units = ", ".join(
        f"{title} {'/'.join(str(record['units'][f'{cell}-{depth}-none-plain']) for depth in DEPTHS)}"
        for cell, title in CELLS.items()
    )
    lines += ["", f"Units with 1/2/4/8 layers: {units}. `{record['command']}`, {record['date'][:10]}, "]
    lines[-1] += f"{record['hardware']['gpus'][0]['name']}; {record['steps']:,} steps of {record['batch']} rows."
    return "\n".join([*lines, "", ""])


def describe_stack(record: dict[str, Any], cell: str, depth: int, norm: str, way: str) -> str:
    """Return the accuracy of a stack; one layer has nothing between layers."""
    if depth == 1 and (norm, way) != ("none", "plain"):
        return ""
    name = f"{cell}-{depth}-{norm}-{way}"
    known = any(row["cell"] == name for row in record["rows"])
    return describe_scores(select(record, "names", name, "final")) if known else "-"


PARTS = (depth_table,)

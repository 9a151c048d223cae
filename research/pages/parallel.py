"""The tables and the figure of docs/theory/parallel.md, from the stored records."""

from __future__ import annotations

import json
from pathlib import Path

from research.pages.records import RESULTS, Row, import_pyplot

FOLDER = RESULTS / "2026-11-19"
TYPES = {"float32": "float32", "bfloat16": "bf16"}
COLOURS = {"gru": "#0072b2", "attn_rnn": "#d55e00"}


LONG = 65_536  # steps of the sequence of the first table


def find_gains() -> tuple[float, float]:
    """Return the least and the largest gain of both passes of networks that were divided.

    GRU and LSTM in float32 are left out: as a whole they run on cuDNN up to 65,535 steps, and on slower kernels above.
    """
    slower = {("gru", "float32"), ("lstm", "float32")}
    rows = [r for r in read_rows("h200-parallel") if (r["cell"], r["type"]) not in slower and "failed" not in r]
    gains = [float(row["both_gain"]) for row in rows]
    return min(gains), max(gains)


def read_rows(name: str) -> list[Row]:
    rows: list[Row] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def _describe(row: Row) -> str:
    if "failed" in row:
        return "as a whole"
    return f"{row['chunk']:,}, {row['passes']}, {row['back']}" if row["chunk"] else "not tried"


def _show_gains(row: Row) -> str:
    times = [f"{row[f'{name}_whole_ms']:.1f} / {row[f'{name}_ms']:.1f}" for name in ("forward", "both")]
    return " | ".join([*times, f"{row['forward_gain']:.2f} / {row['both_gain']:.2f}"])


def parallel_tasks() -> str:
    """Return the table of trained networks, the smallest gains first."""
    lines = [
        "\n| task, cell, type | forward, ms: whole / chunks | both, ms | gain | chunk, passes, back "
        "| output's error: chunks / whole | gradient's error |",
        "|---|--:|--:|--:|---|--:|--:|",
    ]
    for row in sorted(read_rows("h200-parallel"), key=lambda row: float(row["both_gain"])):
        errors = [f"{row[kind]:.1e} / {row[f'whole_{kind}']:.1e}" for kind in ("error", "gradient_error")]
        name = f"{row['task']}, `{row['cell']}`, {TYPES[row['type']]}"
        lines.append(f"| {name} | {_show_gains(row)} | {_describe(row)} | {errors[0]} | {errors[1]} |")
    return "\n".join(lines) + "\n\n"


def parallel_shapes() -> str:
    """Return the table of untrained layers, the smallest gains first."""
    lines = [
        "\n| cell, T, B, H, type | forward, ms: whole / chunks | both, ms | gain | chunk, passes, back |",
        "|---|--:|--:|--:|---|",
    ]
    for row in sorted(read_rows("h200-parallel-shapes"), key=lambda row: float(row["both_gain"])):
        name = f"`{row['cell']}`, {row['T']:,}, {row['B']}, {row['H']}, {TYPES[row['type']]}"
        lines.append(f"| {name} | {_show_gains(row)} | {_describe(row)} |")
    return "\n".join(lines) + "\n\n"


def draw_passes(file: Path) -> None:
    """Draw the passes that chunks of 256 steps need during three trainings."""
    plt = import_pyplot()
    rows = read_rows("h200-parallel-course")
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
    for ax, task in zip(axes, ("text", "latch", "parity"), strict=True):
        for cell, colour in COLOURS.items():
            course = [(r["update"], r["passes"] or 10) for r in rows if r["task"] == task and r["cell"] == cell]
            ax.plot(*zip(*course, strict=True), ".-", color=colour, label={"gru": "GRU"}.get(cell, "AttnRNN"))
        ax.axhline(9, color="#999999", linewidth=0.8, linestyle=":")
        ax.set(title=task, xlabel="updates", ylim=(0, 11))
        ax.set_yticks([2, 4, 6, 8, 10], ["2", "4", "6", "8", "as a\nwhole"])
    axes[0].set_ylabel("passes")
    axes[1].legend(frameon=False, loc="center right")
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


PARTS = (parallel_tasks, parallel_shapes)

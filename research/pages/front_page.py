"""The table of the front page: what was measured, and beside each claim where it does not hold."""

from __future__ import annotations

import json
import re
import statistics

from research.pages import calls, compiled_cells, policies, speed, study_pages
from research.pages.records import GRU, RESULTS


def front_table() -> str:
    """Return the rows of the front page: a claim, its measure, and where it does not hold."""
    lines = ["| | measured | where it does not hold |", "|---|---|---|"]
    for name, measured, losses in (layers_row(), cells_row(), workloads_row(), lab_row(), attn_rnn_row()):
        lines.append(f"| {name} | {measured} | {losses} |")
    return "\n".join([*lines, ""])


def layers_row() -> tuple[str, str, str]:
    """Return the speed of GRU beside torch's on a GPU: types that do not depend on one version of cuDNN first."""
    parts = []
    for kind in ("float16", "float32", "bfloat16"):
        eager, graph = (list_ratios(kind, mode) for mode in speed.MODES)
        parts.append(f"{kind} {statistics.median(eager):.1f}x ({statistics.median(graph):.1f}x)")
    times = [t for row in speed.read_times().values() for key, t in row.items() if key[0] in speed.LAYERS]
    ratios = [t.ratio for t in times if t.ratio]
    below = sum(ratio < speed.SLOWER for ratio in ratios)
    return (
        "[Layers](docs/results/speed.md)",
        f"`GRU` beside `{GRU}`, H200, both passes, median over all sizes (as CUDA graphs): {', '.join(parts)}",
        f"{below} of {len(ratios)} ratios of GRU, LSTM and AttnRNN are below {speed.SLOWER}, the lowest "
        f"{min(ratios):.2f}; torch 2.11 has no kernel for all steps in bfloat16, so that lead may shrink",
    )


def list_ratios(kind: str, mode: str) -> list[float]:
    """Return the ratios of both passes of GRU over all sizes of a type."""
    places = [place for place in speed.read_times() if place.type == kind]
    return [ratio for place in places if (ratio := speed.find_ratio(place, "gru", mode, "both"))]


def cells_row() -> tuple[str, str, str]:
    """Return the speed of a GRU that is written as a cell and compiled."""
    times, _ = compiled_cells.compiled_rows()
    gru = {key: time for key, time in times.items() if key[0] == "gru" and "+" in key[4]}
    loop, torch, by_hand = (compiled_cells.compiled_ratios(gru, name) for name in ("any_loop", GRU, "gru_cpu"))
    rows, _ = compiled_cells.compiled_gpu_rows()
    gpu = [r["of_torch.nn.GRU"] for r in rows if (r["cell"], r["dtype"]) == ("leaky", "float32")]
    return (
        "[Own cells](docs/tutorials/own-cell.md)",
        f"a GRU written as a cell, one CPU core, both passes: {torch} as fast as `{GRU}`, {loop} its Python loop",
        f"{by_hand} our GRU written by hand; a leaky cell in float32 on an H200 takes up to {max(gpu):.1f} times as "
        f"long as `{GRU}`",
    )


def workloads_row() -> tuple[str, str, str]:
    """Return whole training steps with our layers in the place of torch's."""
    rows = calls.read_workloads()
    parts = []
    for kind in dict.fromkeys(row["precision"] for row in rows):
        ratios = [row["ours_ratio"] for row in rows if row["precision"] == kind]
        parts.append(f"{kind} {statistics.geometric_mean(ratios):.1f}x ({min(ratios):.2f} to {max(ratios):.1f})")
    slower: dict[str, list[float]] = {}
    for row in rows:
        if row["ours_ratio"] < min(1, row["control_ratio"]) - 0.03:
            slower.setdefault(row["workload"], []).append(row["ours_ratio"])
    losses = ", ".join(f"{name} {min(ratios):.2f}" for name, ratios in slower.items())
    lowest = min(min(policies.list_ratios(record, policies.SPEEDS[0])) for record in policies.read_records())
    return (
        "[Whole trainings](docs/results/speed.md#whole-training-steps)",
        f"{len({row['workload'] for row in rows})} training steps on an H200, our layer for torch's, geometric mean: "
        f"{', '.join(parts)}; [sb3-contrib's RecurrentPPO](docs/how-to/reinforcement-learning.md) at least "
        f"{lowest:.1f}x",
        f"slower: {losses}" if losses else "one GPU, torch 2.11",
    )


def lab_row() -> tuple[str, str, str]:
    """Return how often `compare` recommends a sequence model and how often a baseline."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in (RESULTS / "compare").glob("*.json")]
    models = [row["label"] for record in records for row in record["rows"] if not row["baseline"]]
    advised = [re.match(r"No real lead: (.+?) \(|(.+?) \(", record["verdict"]) for record in records]
    sequence = sum(found is not None and (found[1] or found[2]) in models for found in advised)
    return (
        "[Lab](docs/how-to/choose.md#ten-data-sets)",
        f"`compare` on {len(records)} public data sets, 10 minutes on 2 cores each: it recommends a sequence model on "
        f"{sequence}, a simpler baseline on {len(records) - sequence}",
        "not yet measured beside other tools on the same rows",
    )


def attn_rnn_row() -> tuple[str, str, str]:
    """Return how AttnRNN ended against a GRU in every stored condition."""
    rows = [row for _, row in study_pages.all_differences() if row["comparison"] == "attn_rnn - gru"]
    results = [row["result"] for row in rows]
    wins, losses = results.count("attn_rnn better"), results.count("attn_rnn worse")
    return (
        "[AttnRNN](docs/results/attn-rnn.md)",
        f"against a GRU of equal size and tuning in {len(rows)} conditions: {losses} losses, "
        f"{len(rows) - wins - losses} ties, {wins} wins",
        "not for short texts, nor for deep stacks",
    )


PARTS = (front_table,)

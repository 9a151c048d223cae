"""The tables of what a call costs over torch's, of single steps and of swapped layers, from the stored records."""

from __future__ import annotations

import json

from research.pages.records import RESULTS, Row

CALLS = {
    "H200": ("2026-11-18/h200-calls.json",),
    "Xeon, one core": tuple(  # a later one replaces what it has, too
        f"2026-11-18/avx512-calls-{name}.json"
        for name in ("gru", "lstm", "attn-rnn", "gru-2", "lstm-2", "attn-rnn-2", "attn-rnn-long")
    ),
    "Neoverse-N1, one core": ("2026-11-18/arm64-calls.json",),
}
STEPS = {"Xeon (AVX-512)": "2026-11-18/avx512-steps-4.json", "Neoverse-N1": "2026-11-18/arm64-steps-2.json"}
SWAPPED = {
    "H200": ("2026-11-18/h200-swapped-lstm-3.json",),
    "Xeon, one core": ("2026-11-18/avx512-swapped-lm-2.json", "2026-11-18/avx512-swapped-ppo-2.json"),
    "Neoverse-N1, one core": ("2026-11-18/arm64-swapped-lstm.json",),
}
WORKLOADS = ("2026-11-19/h200-workloads.json", "2026-11-19/h200-workloads-2.json")  # a later one replaces rows
TRAININGS = ("recurrent PPO", "language model")  # records may have parts of them, too
LIMITS = {"forward": 25, "both": 60}  # microseconds over torch's call


def read_record(name: str) -> Row:
    record: Row = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return record


def call_overheads() -> str:
    """Return the table of our calls minus torch's."""
    lines = []
    for machine, names in CALLS.items():
        rows = {(r["layer"], r["mode"], r["H"], r["T"]): r for name in names for r in read_record(name)["calls"]}
        layers = list(dict.fromkeys(key[0] for key in rows))
        steps = sorted({key[3] for key in rows})
        lines += [f"\n{machine}:\n", "| layer | pass | units | " + " | ".join(f"T = {T}" for T in steps) + " |"]
        lines.append("|---|---|--:|" + "--:|" * len(steps))
        for layer in layers:
            for mode, limit in LIMITS.items():
                for H in sorted({key[2] for key in rows}):
                    cells = [rows.get((layer, mode, H, T)) for T in steps]
                    lines.append(f"| {layer} | {mode} | {H} | " + " | ".join(_show(c, limit) for c in cells) + " |")
    return "\n".join(lines) + "\n\n"


def _show(row: Row | None, limit: float) -> str:
    """Return a cell: bold if it is over the limit by more than two layers of torch's differ."""
    if row is None:
        return ""
    over, chance = row["over_us"], abs(row.get("control_us", 0))
    return f"**{over:+.0f}**" if over > limit + chance else f"{over:+.0f}"


def single_steps() -> str:
    """Return the table of `step` and of a forward pass over one step."""
    lines = ["\n| machine | call | GRU | LSTM | AttnRNN |", "|---|---|--:|--:|--:|"]
    for machine, name in STEPS.items():
        rows = {r["layer"]: r for r in read_record(name)["steps"]}
        for call, key in (("`step`", "step_us"), ("a forward pass over one step", "forward_of_one_us")):
            cells = [rows[layer][key] for layer in ("GRU", "LSTM", "AttnRNN")]
            lines.append(f"| {machine} | {call} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")
    return "\n".join(lines) + "\n\n"


def swapped_layers() -> str:
    """Return the table of two trainings with nn.LSTM and with ours in its place."""
    lines = [
        "\n| training | machine | nn.LSTM, ms | seqloom.LSTM, ms | ratio of the best | median ratio | nn.LSTM twice |"
    ]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    for machine, names in SWAPPED.items():
        shown = set()
        for name in names:
            for r in read_record(name)["rows"]:
                if r["task"] in shown or r["task"] not in TRAININGS:
                    continue
                shown.add(r["task"])
                controls = [r[f"control_{k}"] for k in ("of_best", "median") if f"control_{k}" in r]
                worst = min(1, *controls, *(2 - c for c in controls)) if controls else 1
                ratios = [r[f"ratio_{k}"] for k in ("of_best", "median")]
                cells = [f"**{v:.3f}**" if v < worst else f"{v:.3f}" for v in ratios]
                cells.append(", ".join(f"{c:.3f}" for c in controls))
                times = f"{r['torch_ms']:.1f} | {r['seqloom_ms']:.1f}"
                lines.append(f"| {r['task']} | {machine} | {times} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def read_workloads() -> list[Row]:
    """Return the newest row of each workload and precision."""
    rows = (row for name in WORKLOADS for row in read_record(name)["rows"])
    return list({(row["workload"], row["precision"]): row for row in rows}.values())


def workloads() -> str:
    """Return the table of whole training steps with torch's layers and with ours, the smallest ratios first."""
    rows = read_workloads()
    names = list(dict.fromkeys(r["workload"] for r in rows))
    types = list(dict.fromkeys(r["precision"] for r in rows))
    found = {(r["workload"], r["precision"]): r for r in rows}
    names.sort(key=lambda name: min(found[name, kind]["ours_ratio"] for kind in types))
    lines = ["\n| workload | layer | " + " | ".join(types) + " |", "|---|---|" + "--:|" * len(types)]
    for name in names:
        cells = [_show_ratio(found[name, kind]) for kind in types]
        lines.append(f"| {name} | {found[name, types[0]]['about']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n"


def _show_ratio(row: Row) -> str:
    """Return torch's time, its time over ours, and in brackets that over its second side; bold where ours is slower."""
    ratio = f"{row['ours_ratio']:.2f}"
    shown = f"**{ratio}**" if row["ours_ratio"] < min(1, row["control_ratio"]) else ratio
    return f"{row['torch_ms']:.1f} ms, {shown} ({row['control_ratio']:.2f})"


PARTS = (call_overheads, single_steps, swapped_layers, workloads)

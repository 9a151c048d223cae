"""The tables of what a call costs over torch's, of single steps and of swapped layers, from the stored records."""

from __future__ import annotations

import json

from records import RESULTS, Row

CALLS = {
    "H200": ("2026-11-17/h200-calls-recorded-2.json",),
    "Xeon, one core": ("2026-11-18/avx512-calls.json",),
    "Neoverse-N1, one core": ("2026-11-18/arm64-calls.json",),
}
STEPS = {"Neoverse-N1": "2026-11-18/arm64-steps.json", "Xeon (AVX-512)": "2026-11-18/avx512-steps.json"}
SWAPPED = {
    "H200": ("2026-11-18/h200-swapped-lstm.json", "2026-11-18/h200-swapped-lstm-0.json"),  # the newest first
    "Xeon, one core": ("2026-11-18/avx512-swapped-lstm.json",),
    "Neoverse-N1, one core": ("2026-11-18/arm64-swapped-lstm.json",),
}
TRAININGS = ("recurrent PPO", "language model")  # records may have parts of them, too
LIMITS = {"forward": 25, "both": 60}  # microseconds over torch's call


def _read(name: str) -> Row:
    record: Row = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return record


def call_overheads() -> str:
    """Return the table of our calls minus torch's; the cells that miss their limit are bold."""
    lines = []
    for machine, names in CALLS.items():
        rows = {(r["layer"], r["mode"], r["H"], r["T"]): r["over_us"] for name in names for r in _read(name)["calls"]}
        layers = list(dict.fromkeys(key[0] for key in rows))
        steps = sorted({key[3] for key in rows})
        lines += [f"\n{machine}:\n", "| layer | pass | units | " + " | ".join(f"T = {T}" for T in steps) + " |"]
        lines.append("|---|---|--:|" + "--:|" * len(steps))
        for layer in layers:
            for mode, limit in LIMITS.items():
                for H in sorted({key[2] for key in rows}):
                    cells = [rows.get((layer, mode, H, T)) for T in steps]
                    shown = ["" if c is None else f"**{c:+.0f}**" if c > limit else f"{c:+.0f}" for c in cells]
                    lines.append(f"| {layer} | {mode} | {H} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n\n"


def single_steps() -> str:
    """Return the table of `step` and of a forward pass over one step."""
    lines = ["\n| machine | call | GRU | LSTM | AttnRNN |", "|---|---|--:|--:|--:|"]
    for machine, name in STEPS.items():
        rows = {r["layer"]: r for r in _read(name)["steps"]}
        for call, key in (("`step`", "step_us"), ("a forward pass over one step", "forward_of_one_us")):
            cells = [rows[layer][key] for layer in ("GRU", "LSTM", "AttnRNN")]
            lines.append(f"| {machine} | {call} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")
    return "\n".join(lines) + "\n\n"


def swapped_layers() -> str:
    """Return the table of two trainings with nn.LSTM and with ours in its place."""
    lines = ["\n| training | machine | nn.LSTM, ms | seqloom.LSTM, ms | ratio of the best | median ratio |"]
    lines.append("|---|---|--:|--:|--:|--:|")
    for machine, names in SWAPPED.items():
        shown = set()
        for name in names:
            for r in _read(name)["rows"]:
                if r["task"] in shown or r["task"] not in TRAININGS:
                    continue
                shown.add(r["task"])
                ratios = (f"**{r[k]:.2f}**" if r[k] < 1 else f"{r[k]:.2f}" for k in ("ratio_of_best", "ratio_median"))
                times = f"{r['torch_ms']:.1f} | {r['seqloom_ms']:.1f}"
                lines.append(f"| {r['task']} | {machine} | {times} | " + " | ".join(ratios) + " |")
    return "\n".join(lines) + "\n\n"


PARTS = (call_overheads, single_steps, swapped_layers)

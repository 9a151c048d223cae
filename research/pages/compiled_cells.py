"""The parts of the pages that show the speed of compiled cells, and the picture of the compiler; see generate.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.pages.records import GRU, RESULTS, Row, format_command, import_pyplot, span


def compiled_rows() -> tuple[dict[tuple[str, str, int, int, str], float], dict[str, Any]]:
    """Return microseconds per step by cell, kernel, hidden size, rows and pass, and the record they come from."""
    file = max(RESULTS.rglob("avx512-compiled-cells.json"))  # the newest: folders are named by date
    document = json.loads(file.read_text())
    keys = ("cell", "kernel", "hidden", "batch", "pass")
    times = {tuple(row[key] for key in keys): row["us_per_step"] for row in document["rows"]}
    for key in times:
        if key[1] == GRU:  # the same work beside every cell: what exceeds the least is noise
            times[key] = min(gru_times(document, key[2:]))
    return times, document  # type: ignore[return-value]


def gru_times(document: Row, shape: tuple[Any, ...]) -> list[float]:
    """Return torch.nn.GRU's microseconds per step for a hidden size, rows and a pass, once for every cell."""
    rows = [row for row in document["rows"] if row["kernel"] == GRU]
    return [row["us_per_step"] for row in rows if (row["hidden"], row["batch"], row["pass"]) == shape]


def compiled_table() -> str:
    """Return how many times as fast as others compiled cells are: the range over sizes and rows."""
    times, document = compiled_rows()
    lines = ["| cell | pass | against the loop | against the cell's own kernel | against `torch.nn.GRU` |"]
    lines += ["|---|---|--:|--:|--:|"]
    for cell, name in dict.fromkeys((key[0], key[4]) for key in times):
        here = {key: t for key, t in times.items() if key[0] == cell and key[4] == name}
        by_hand = sorted({key[1] for key in here} - {"any_loop", "any_compiled", GRU})
        columns = [compiled_ratios(here, *kernels) for kernels in (["any_loop"], by_hand, [GRU])]
        columns[1] += f" ({', '.join(f'`{kernel}`' for kernel in by_hand)})" if by_hand else "none"
        lines.append(f"| {cell} | {'both' if '+' in name else name} | {' | '.join(columns)} |")
    settings, hardware = document["settings"], document["hardware"]
    lines += ["", f"{document['date'][:10]}, {hardware['cpu']}, torch {document['versions']['torch']}, one thread, "]
    lines[-1] += (
        f"float32, {settings['length']} steps, seed {settings['seed']}; {settings['clock']}; {settings['note']}."
    )
    shapes = {(row["hidden"], row["batch"], row["pass"]) for row in document["rows"]}
    repeats = [gru_times(document, shape) for shape in shapes]
    noise = max(max(times) / min(times) for times in repeats)
    lines += [f"`torch.nn.GRU` was timed {len(repeats[0])} times at each shape; the least counts, the most was up to "]
    lines[-1] += (
        f"{noise:.1f} times as long. The other times were taken once, so take the ends of a range with that error."
    )
    return "\n".join([*lines, f"`{format_command(document)}`", ""])


def compiled_ratios(times: Mapping[tuple[str, str, int, int, str], float], *kernels: str) -> str:
    """Return the range of some kernels' time over the compiled one's."""
    own = {(k[2], k[3]): t for k, t in times.items() if k[1] == "any_compiled"}
    return span([t / own[k[2], k[3]] for k, t in times.items() if k[1] in kernels])


def compiled_gpu_rows() -> tuple[list[Row], Row]:
    """Return the newest times of compiled cells on a GPU, and the record they come from."""
    document = json.loads(max(RESULTS.rglob("*-compiled-gpu.json")).read_text())
    return document["rows"], document


def compiled_gpu_table() -> str:
    """Return microseconds per step of compiled cells on a GPU, forward / both passes, a table for each type."""
    rows, document = compiled_gpu_rows()
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        lines += [f"{dtype}:", "", *gpu_lines(rows, dtype), ""]
    gpu, torch = document["hardware"]["gpus"][0]["name"], document["versions"]["torch"]
    lines += [
        f"{document['date'][:10]}, {gpu}, torch {torch}, {document['length']} steps, seed {document['seed']}; the "
        f"fastest of {document['rounds']} rounds between CUDA events. A call of a small layer takes as long as the "
        "host needs to prepare it, so that times below about 5 microseconds for both passes say little about kernels."
    ]
    return "\n".join([*lines, f"`{format_command(document)}`", ""])


def compiled_gpu_short() -> str:
    """Return a part of the same numbers: 64 rows, two types."""
    rows = [row for row in compiled_gpu_rows()[0] if row["batch"] == 64]
    parts = [[f"{dtype}, 64 rows:", "", *gpu_lines(rows, dtype), ""] for dtype in ("bfloat16", "float32")]
    return "\n".join(line for part in parts for line in part)


def gpu_lines(rows: list[Row], dtype: str) -> list[str]:
    """Return the lines of a table of one type."""
    shapes = list(dict.fromkeys((row["hidden"], row["batch"]) for row in rows))
    several = len({batch for _, batch in shapes}) > 1
    heads = [f"{hidden} units, {batch} rows" if several else f"{hidden} units" for hidden, batch in shapes]
    lines = [f"| cell | {' | '.join(heads)} |", f"|---|{'--:|' * len(shapes)}"]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        mine = {(r["hidden"], r["batch"]): r for r in rows if (r["cell"], r["dtype"]) == (cell, dtype)}
        times = [f"{mine[s]['forward_us']:.1f} / {mine[s]['both_us']:.1f}" if s in mine else "" for s in shapes]
        lines.append(f"| {f'`{cell}`' if '.' in cell else cell} | {' | '.join(times)} |")
    return lines


def draw_stages(file: Path) -> None:
    """Draw the way of a step through the compiler."""
    plt = import_pyplot()

    own, ours, torch = "#d81b60", "#3949ab", "#e07b00"
    boxes = {
        "step": (3, 5.5, "your step, plain torch", own),
        "trace": (3, 4.4, "one graph: the step and\nautograd's derivative", ours),
        "before": (0.9, 3, "needs no state:\ntorch, all steps\nat once", torch),
        "forward": (3, 3, "needs the state:\nforward loop", ours),
        "reverse": (5.1, 3, "needs the carried\ngradient:\nreverse loop", ours),
        "machine": (3, 1.6, "programs of products and loops,\nrun by the CPU engine", ours),
        "after": (3, 0.4, "outputs, gradients of weights and\ninput: torch, all steps at once", torch),
    }
    arrows = ["step trace", "trace before", "trace forward", "trace reverse"]
    arrows += ["before machine", "forward machine", "reverse machine", "machine after"]
    figure, axis = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    axis.set(xlim=(0, 6), ylim=(0, 5.9))
    axis.axis("off")
    shape = {"boxstyle": "round,pad=0.5", "facecolor": "white", "linewidth": 1.5}
    texts = {
        name: axis.text(x, y, text, fontsize=10, va="center", ha="center", bbox=shape | {"edgecolor": colour})
        for name, (x, y, text, colour) in boxes.items()
    }
    for source, target in (arrow.split() for arrow in arrows):
        ends = {"patchA": texts[source].get_bbox_patch(), "patchB": texts[target].get_bbox_patch()}
        style = {"arrowstyle": "->", "color": "#777", "shrinkA": 2, "shrinkB": 2}
        axis.annotate("", boxes[target][:2], boxes[source][:2], arrowprops=style | ends)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


PARTS = (compiled_table, compiled_gpu_table, compiled_gpu_short)

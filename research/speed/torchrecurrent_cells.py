"""Compare the time of every cell with the same cell of torchrecurrent: forward and both passes of one layer.

python -m research torchrecurrent_cells --device cuda --dtypes bfloat16 float32 --prepare 12 --json FILE
python -m research torchrecurrent_cells --cells mgu lem star

Each row has milliseconds of both and their ratio, the kernel that ran ours, and the largest difference from our
reference loop in float32: of our outputs (`error`) and of the loop in the same type (`loop_error`). Rows are written as
they come. Cells that torchrecurrent has not are compared with our reference loop. `--prepare N` first compiles the
cells in N processes, which fill the cache; without it, the first call of each cell compiles, outside of the measured
time.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import seqloom
import seqloom.cells
from research.record import PROCESSOR, Stopwatch, build_parser, describe_run, measure, print_row, start_again
from seqloom.core.cell import Cell
from seqloom.tools.timing import time_call

try:
    import torchrecurrent
except ImportError:
    torchrecurrent = None

# Their name of each cell that both packages have: ours without underscores, in any case.
NAMES = {name.lower(): name for name in dir(torchrecurrent) if hasattr(torchrecurrent, f"{name}Cell")}
THEIRS = {name: NAMES[name.replace("_", "")] for name in sorted(Cell.registry) if name.replace("_", "") in NAMES}
OTHERS = ("slstm", "cfc", "ltc", "mogrifier_lstm", "orthogonal_rnn", "rhn", "sru", "qrnn", "mass_lstm", "m2rnn")
FAMOUS = ("rnn", "gru", "lstm")  # the scale of the rest
EARLY_STOP = 0.97  # of --limit


def build_run(layer: nn.Module, x: Tensor, dy: Tensor | None) -> Any:
    """Return a call of a layer's forward pass, or of both passes if `dy` is given."""

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        y = layer(x)[0]
        y.backward(dy)
        for p in layer.parameters():
            p.grad = None

    return forward if dy is None else both


def measure_cell(name: str, dtype: torch.dtype, settings: Any) -> dict[str, Any]:
    """Return the row of one cell."""
    T, B, H = settings.steps, settings.batch, settings.hidden
    torch.manual_seed(0)
    layer = seqloom.Recurrent(name, H, H).to(settings.device, dtype)
    x = torch.randn(T, B, H, device=settings.device, dtype=dtype)
    dy = torch.randn(T, B, H, device=settings.device, dtype=dtype)
    row: dict[str, Any] = {"cell": name, "dtype": str(dtype).removeprefix("torch.")}
    if settings.warm:
        for run in (build_run(layer, x, None), build_run(layer, x, dy)):
            run()
        return row
    try:
        for part, grad in (("forward", None), ("both", dy)):
            run = build_run(layer, x, grad)
            run()  # compiles
            row[f"{part}_ms"] = time_run(run, settings)
        row["kernel"] = str(seqloom.explain(layer, x)).splitlines()[0].partition(": ")[2]
        if settings.alone:
            return round_values(row)
        with torch.no_grad():
            exact = seqloom.Recurrent(name, H, H, kernel="loop").to(settings.device)
            exact.load_state_dict({n: p.float() for n, p in layer.state_dict().items()})
            loop = seqloom.Recurrent(name, H, H, kernel="loop").to(settings.device, dtype)
            loop.load_state_dict(layer.state_dict())
            truth = exact(x.float())[0]
            row["largest"] = float(truth.abs().max())
            row["error"] = float((layer(x)[0].float() - truth).abs().max())
            row["loop_error"] = float((loop(x)[0].float() - truth).abs().max())
    except Exception as error:  # the others must still be measured
        row["failed"] = f"{type(error).__name__}: {error}"[:300]
        return row
    kind = getattr(torchrecurrent, THEIRS[name], None) if name in THEIRS else None
    other = kind(H, H) if kind else seqloom.Recurrent(name, H, H, kernel="loop")
    row["against"] = "torchrecurrent" if kind else "our loop"
    other = other.to(settings.device, dtype)
    for part, grad in (("forward", None), ("both", dy)):
        run = build_run(other, x, grad)
        row[f"{part}_theirs_ms"] = time_run(run, settings)
        row[f"{part}_ratio"] = row[f"{part}_theirs_ms"] / row[f"{part}_ms"]
    return round_values(row)


def time_run(run: Any, settings: Any) -> float:
    """Return the milliseconds of a call: the fastest of some rounds."""
    if not settings.own_time:
        return 1e3 * min(time_call(run, settings.device) for _ in range(settings.rounds))
    return 1e3 * min(measure(run, clock=PROCESSOR) for _ in range(settings.rounds))


def round_values(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}


def prepare(names: list[str], settings: Any) -> None:
    """Compile all cells in several processes that share the cache."""
    own = ["--device", settings.device, "--dtypes", *settings.dtypes, "--steps", str(settings.steps)]
    own += ["--batch", str(settings.batch), "--hidden", str(settings.hidden), "--warm"]
    parts = [names[i :: settings.prepare] for i in range(settings.prepare)]
    started = [subprocess.Popen([*start_again(), *own, "--cells", *part]) for part in parts if part]
    for process in started:
        process.wait()


def summarise_times(record: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the content of src/seqloom/lab/bench/cell_times.json, from a record of this command.

    Args:
        record: The record.
        dtype: The type whose rows to take.
    """
    steps, machine = record["steps"], record["hardware"]
    rows = [row for row in record["rows"] if row["dtype"] == dtype and "both_ms" in row]
    on = ", ".join(gpu["name"] for gpu in machine["gpus"]) or f"one thread of {machine['cpu']}"
    on += f" ({record['note']})" if "note" in record else ""
    return {
        "us_per_step": {row["cell"]: round(1e3 * row["both_ms"] / steps, 2) for row in rows},
        "about": f"{record['batch']} rows, {steps} steps, {record['hidden']} inputs and units, {dtype}, {on}",
        "source": {"command": record["command"], "date": record["date"]},
    }


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--cells", nargs="*", default=None)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1, help="the fastest of so many is taken")
    parser.add_argument("--own-time", action="store_true", help="the process's own time, for a CPU that others use too")
    parser.add_argument("--prepare", type=int, default=0, help="compile in this many processes first")
    parser.add_argument("--warm", action="store_true", help="compile only")
    parser.add_argument("--alone", action="store_true", help="time ours only, by default of every cell")
    parser.add_argument("--limit", type=float, default=float("inf"), help="stop after this many seconds")
    parser.add_argument("--resume", type=Path, help="record of an earlier run: its cells are not timed again")
    settings = parser.parse_args()
    begun = Stopwatch()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    default = sorted(Cell.registry) if settings.alone else [*THEIRS, *OTHERS, *FAMOUS]
    names = default if settings.cells is None else settings.cells
    rows: list[dict[str, Any]] = json.loads(settings.resume.read_text())["rows"] if settings.resume else []
    timed = {(row["cell"], row["dtype"]) for row in rows}
    if settings.prepare:
        prepare([name for name in names if any((name, dtype) not in timed for dtype in settings.dtypes)], settings)
        print(f"compiled in {begun.seconds:.0f} s", flush=True)
    record = {} if settings.warm else describe_run(steps=settings.steps, batch=settings.batch, hidden=settings.hidden)
    for dtype in settings.dtypes:
        for name in (name for name in names if (name, dtype) not in timed):
            if begun.seconds > EARLY_STOP * settings.limit:
                break
            try:
                rows.append(measure_cell(name, getattr(torch, dtype), settings))
            except Exception as error:
                rows.append({"cell": name, "dtype": dtype, "failed": f"{type(error).__name__}: {error}"[:300]})
            print_row(rows[-1])
            if settings.json and not settings.warm:
                settings.json.parent.mkdir(parents=True, exist_ok=True)
                settings.json.write_text(json.dumps(record | {"rows": rows}, indent=0) + "\n")
    for dtype in settings.dtypes:
        ratios = sorted(r["both_ratio"] for r in rows if r["dtype"] == dtype and r.get("against") == "torchrecurrent")
        if ratios:
            print(f"{dtype}: median ratio of both passes {ratios[len(ratios) // 2]:.1f}, least {ratios[0]:.1f}")

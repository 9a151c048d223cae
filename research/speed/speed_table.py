"""Time layers against torch.nn on a GPU, eagerly and as CUDA graphs: python -m research speed_table [--json FILE].

Microseconds per step of one layer (input = hidden) for every type, hidden size and batch, forward and both passes; in
float32 also of torch's layers with tf32 forbidden, which are as exact as ours; with `--others` then also of FlashRNN,
torchrecurrent and a compiled loop. Layers of one shape are timed in turns, three calls in a row each (one if it takes
over 5 ms), after a dozen calls to warm up: some launches are recorded after three. The median of the rounds counts.
Every kernel is checked against float64 first and not timed if it is more than twice as far from it as the reference
loop in its own type. The record is written as it grows, so a run that is stopped loses nothing; batches come one after
another in the order given, each in all types and sizes.

Compiling and checking takes longer than timing and needs no GPU of its own: `--only-check --json CHECK` does it alone,
`--checked CHECK` takes what it found.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import random
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import seqloom
from research.record import Stopwatch, build_parser, measure, print_row, write_record
from research.speed.other_layers import LOOP_STEPS, LOOPS, OTHERS
from seqloom.tools.explain import explain

TYPES = {  # type of the numbers, whether products may be tf32
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
}
CELLS = {"attn_rnn": seqloom.AttnRNN, "gru": seqloom.GRU, "lstm": seqloom.LSTM}
NORMALISED = {"ln_gru": seqloom.LNGRU, "ln_lstm": seqloom.LNLSTM}  # timed if --cells names them
BASELINES = {"torch.nn.GRU": nn.GRU, "torch.nn.LSTM": nn.LSTM}
EXACT = {"torch.nn.GRU without tf32": nn.GRU, "torch.nn.LSTM without tf32": nn.LSTM}  # timed in float32
SEED = 0
CALLS = 3  # in a row: what the host does before a call overlaps with the one before it
LONG_CALL = 5e-3  # seconds: one call is enough
MOST_ROUNDS, OTHERS_ROUNDS = 25, 3
WARM_CALLS, WARM_SECONDS = 12, 0.05  # before a layer is timed: so many calls, fewer of long ones
LEAST_CALLS = 5  # but at least so many: passes are recorded after three calls
TF32_EPS = 2.0**-10
FAR = "times as far from float64"
CHECK_STEPS, CHECK_ROWS = 48, 64  # steps and most rows of a check; shorter trainings are cuDNN's by choice
PREPARE_STEPS = 128  # long enough for every choice that depends on the length


def main() -> None:
    args = read_arguments()
    torch.manual_seed(SEED)
    if args.only_check:
        check_all(args)
    else:
        time_all(args)


def read_arguments() -> argparse.Namespace:
    parser = build_parser(__doc__)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--cells", default=",".join(CELLS), help="of seqloom; torch's GRU and LSTM run beside them")
    parser.add_argument("--kernels", default="auto", help="of seqloom's layers: auto, or names such as cuda,grid,aten")
    parser.add_argument("--hidden", default="64,128,256,512,1024")
    parser.add_argument("--batch", default="16,64,256,1")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--modes", default="eager,graph")
    parser.add_argument("--rounds", type=int, default=3, help="at least")
    parser.add_argument("--seconds", type=float, default=0.2, help="short calls have more rounds, up to this time")
    parser.add_argument("--others", action="store_true", help="time layers of other packages, too, after all of ours")
    parser.add_argument("--others-batch", default="16", help="rows of layers of other packages")
    parser.add_argument(
        "--without",
        type=Path,
        nargs="*",
        default=[],
        help="records of stopped runs to go on from: what they have is left out",
    )
    parser.add_argument("--only-check", action="store_true", help="compile and check; time nothing")
    parser.add_argument("--checked", type=Path, help="record of a run with --only-check: nothing is checked again")
    parser.add_argument("--draws", type=int, default=3, help="weights that every kernel is checked with; 0: no check")
    parser.add_argument("--processes", type=int, default=12, help="that compile and check kernels first; 0: none")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.hidden, args.batch, args.others_batch = (
        [int(n) for n in text.split(",")] for text in (args.hidden, args.batch, args.others_batch)
    )
    args.types, args.cells, args.kernels, args.modes = (
        text.split(",") for text in (args.types, args.cells, args.kernels, args.modes)
    )
    return args


def time_all(args: argparse.Namespace) -> None:
    """Time the layers of every shape; write the record as it grows."""
    rows: list[dict[str, Any]] = []
    known = json.loads(args.checked.read_text()) if args.checked else None
    refused = known["refused"] if known else check_all(args) if args.processes else []
    refused = [problem for problem in refused if FAR in problem["why"]]  # what cannot run fails again
    how = {"length": args.length, "seed": SEED} | ({"checked": len(known["checked"])} if known else {})
    ours = [(cell, kernel) for cell in args.cells for kernel in args.kernels]
    layers = [*((baseline, "cuDNN") for baseline in BASELINES), *ours]
    shapes = [(*shape, layers) for shape in itertools.product(args.modes, args.batch, args.types, args.hidden)]
    if args.others:
        places = itertools.product(args.modes, args.others_batch, args.types, args.hidden)
        shapes += [(*shape, [(other, "") for other in OTHERS]) for shape in places]
    before = [json.loads(file.read_text()) for file in args.without]
    refused += [problem for record in before for problem in record["refused"] if problem not in refused]
    done = {read_shape(row) for record in before for row in record["rows"] if row["pass"] == "both"}
    for mode, batch, name, hidden, wanted in shapes:
        if (mode, name, hidden, batch, wanted[0][0] in OTHERS) in done:
            continue
        lost = False
        try:
            rows += time_layer(args, mode, name, hidden, batch, wanted, refused)
        except torch.AcceleratorError:  # an illegal access, for example: nothing runs any more in this process
            traceback.print_exc()
            lost = True
        write_record(args.json, **how, finished=False, refused=refused, rows=rows)
        if lost:
            sys.exit("the GPU is lost to this process: go on with --without")
        if mode == "graph":
            torch.cuda.empty_cache()  # of the graphs that are gone
    write_record(args.json, **how, finished=True, refused=refused, rows=rows)


def read_shape(row: dict[str, Any]) -> tuple[str, str, int, int, bool]:
    return row["mode"], row["type"], row["hidden"], row["batch"], row["layer"] in OTHERS


def allow_tf32(allowed: bool) -> None:
    """Set what the types "float32" (torch's defaults) and "tf32" mean."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = True


def check_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile and check all kernels in several processes; return those that are wrong or cannot run."""
    tasks = list(itertools.product(args.types, args.cells, args.kernels, args.hidden))
    tasks.sort(key=lambda task: (-task[3], task))  # the longest first
    if args.others:
        tasks += [(name, other, "", hidden) for other in OTHERS for name in args.types for hidden in args.hidden]
    job = partial(check_layer, args)
    found: list[dict[str, Any]] = []
    checked: list[str] = []
    with multiprocessing.get_context("spawn").Pool(max(1, args.processes)) as pool:
        for task, problems in pool.imap_unordered(job, tasks):
            found += problems
            checked.append(" ".join(map(str, task)))
            print("checked", *task, *problems, file=sys.stderr, flush=True)
            if args.only_check:
                write_record(args.json, checked=checked, finished=len(checked) == len(tasks), refused=found)
    return found


Task = tuple[str, str, str, int]  # type, layer, kernel, units


def check_layer(args: argparse.Namespace, task: Task) -> tuple[Task, list[dict[str, Any]]]:
    """Compile the kernels of one layer for all batches; return what is wrong with its outputs or gradients."""
    name, cell, kernel, hidden = task
    allow_tf32(TYPES[name][1])
    problems = []
    for batch in args.others_batch if cell in OTHERS else args.batch:
        why = ""
        try:
            if cell in OTHERS:
                compile_other(cell, TYPES[name][0], args.device, hidden, batch)
            else:
                why = check_kernel(cell, kernel, TYPES[name][0], args.device, hidden, batch, args.draws)
        except Exception as error:  # the table names what it lacks
            why = f"{type(error).__name__}: {str(error)[-300:]}"
        if why and cell not in OTHERS:  # others fail again where they are timed
            problems.append(
                {"type": name, "cell": cell, "kernel": kernel, "hidden": hidden, "batch": batch, "why": why}
            )
    return task, problems


def compile_other(cell: str, dtype: torch.dtype, device: str, hidden: int, batch: int) -> None:
    """Fill the caches of compilers; a loop over a compiled step needs two steps for that."""
    layer, x = build(cell, dtype, device, hidden, batch, PREPARE_STEPS)
    x = x[:2] if cell in LOOPS else x
    with torch.no_grad():
        layer(x)
    layer(x)[0].sum().backward()


def check_kernel(cell: str, kernel: str, dtype: torch.dtype, device: str, hidden: int, batch: int, draws: int) -> str:
    """Run the kernels of one shape, compare them with float64; return what is wrong, or nothing."""
    layer, x = build(cell, dtype, device, hidden, batch, PREPARE_STEPS, kernel=kernel)
    with torch.no_grad():
        layer(x)
    layer(x)[0].sum().backward()
    rows = min(batch, CHECK_ROWS)
    # float32 may be tf32 in torch's own kernels, by torch's default
    if not draws or any(name_kernel(layer, part).endswith("_aten") for part in (x, x[:CHECK_STEPS, :rows])):
        return ""
    found = [compare_with_loop(cell, kernel, dtype, device, hidden, rows) for _ in range(draws)]
    worst = max(statistics.geometric_mean(ratios) for ratios in zip(*found, strict=True))
    return "" if worst <= 2 else f"{worst:.2f} {FAR} as the loop with {rows} rows"


def compare_with_loop(cell: str, kernel: str, dtype: torch.dtype, device: str, hidden: int, rows: int) -> list[float]:
    """Return the kernel's distance from float64 over the loop's, for outputs and each gradient."""
    layer, x = build(cell, dtype, device, hidden, rows, CHECK_STEPS, kernel=kernel)
    runs = []
    for other, numbers in ((kernel, dtype), ("loop", dtype), ("loop", torch.float64)):
        own = (CELLS | NORMALISED)[cell](hidden, hidden, kernel=other, device=device, dtype=numbers)
        own.load_state_dict(layer.state_dict())
        tokens = x.detach().to(numbers).requires_grad_()
        y = own(tokens)[0]
        pull = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape).to(dtype).to(numbers)
        runs.append([y.detach(), *torch.autograd.grad(y, [tokens, *own.parameters()], pull)])
    # torch multiplies a single row exactly where tf32 is allowed
    tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    eps = TF32_EPS if tf32 else torch.finfo(dtype).eps
    return [compare_errors(*parts, eps) for parts in zip(*runs, strict=True)]


def compare_errors(ours: Tensor, loop: Tensor, exact: Tensor, eps: float) -> float:
    """Return the ratio of two distances from float64, each at least a last bit of every number."""
    last_bit = eps * max(float(exact.norm()), 1e-30)
    far, near = (float((t.double() - exact).norm()) for t in (ours, loop))
    return max(far, last_bit) / math.hypot(near, last_bit)


def build(
    cell: str, dtype: torch.dtype, device: str, hidden: int, batch: int, length: int, **more: Any
) -> tuple[nn.Module, Tensor]:
    """Return a layer and its input, (length, batch, hidden)."""
    if cell in OTHERS:
        layer, length = OTHERS[cell](hidden, device=device, dtype=dtype), LOOP_STEPS if cell in LOOPS else length
    else:
        layer = (CELLS | NORMALISED | BASELINES | EXACT)[cell](hidden, hidden, device=device, dtype=dtype, **more)
    return layer, torch.randn(length, batch, hidden, device=device, dtype=dtype, requires_grad=True)


def time_layer(
    args: argparse.Namespace,
    mode: str,
    name: str,
    hidden: int,
    batch: int,
    wanted: list[tuple[str, str]],
    refused: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield the times of one shape for the wanted layers and kernels."""
    dtype, tf32 = TYPES[name]
    allow_tf32(tf32)
    wrong = {
        (r["type"], r["cell"], r["kernel"], r["hidden"], r["batch"]) for r in refused if r.get("mode", mode) == mode
    }
    layers = [(cell, kernel) for cell, kernel in wanted if (name, cell, kernel, hidden, batch) not in wrong]
    if (name, mode) == ("float32", "eager") and wanted[0][0] in BASELINES:
        layers += [(cell, "cuDNN") for cell in EXACT]
    for pass_ in ("forward", "both"):
        calls: dict[tuple[str, str, int], Callable[[], float]] = {}
        for cell, kernel in layers:
            more = {"kernel": kernel} if cell in CELLS | NORMALISED else {}
            begin = Stopwatch()
            try:
                layer, x = build(cell, dtype, args.device, hidden, batch, args.length, **more)
                call = partial(run_forward if pass_ == "forward" else run_both, layer, x, torch.ones_like(x))
                if cell in EXACT:
                    call = partial(run_without_tf32, call)
                if mode == "graph":
                    call = record_graph(call)
                seconds = warm_up(call, args.device)
                print(f"{cell} {pass_}: prepared in {begin.seconds:.1f} s", file=sys.stderr, flush=True)
            except Exception as error:  # the other layers are timed
                where = {"type": name, "cell": cell, "kernel": kernel, "hidden": hidden, "batch": batch}
                refused.append(where | {"mode": mode, "pass": pass_, "why": f"{type(error).__name__}: {error}"[:300]})
                traceback.print_exc()
                if args.device == "cuda":
                    torch.cuda.synchronize()
                continue
            timed = partial(measure, call, 1 if seconds > LONG_CALL else CALLS, args.device)
            calls[cell, name_kernel(layer, x, pass_ == "both") if more else kernel, len(x)] = timed
        times: dict[tuple[str, str, int], list[float]] = {key: [] for key in calls}
        begin, rounds, turns = Stopwatch(), 0, [*calls.items()]
        while rounds < args.rounds or (rounds < MOST_ROUNDS and begin.seconds < args.seconds):
            rounds += 1
            random.Random(rounds).shuffle(turns)  # nobody is always after the same one
            for key, timed in turns:
                if rounds <= OTHERS_ROUNDS or key[0] not in OTHERS:
                    times[key].append(timed())
        for (cell, kernel, steps), values in times.items():
            us = round(1e6 * statistics.median(values) / steps, 4)
            row = {"type": name, "hidden": hidden, "batch": batch, "mode": mode, "pass": pass_}
            row |= {"layer": cell, "kernel": kernel, "us_per_step": us, "rounds": len(values)}
            row |= {} if steps == args.length else {"steps": steps}
            print_row(row)
            yield row


def warm_up(call: Callable[[], object], device: str) -> float:
    """Call until everything is compiled, prepared and recorded; return the seconds of the last call."""
    begin, calls, seconds = Stopwatch(), 0, 0.0
    while calls < LEAST_CALLS or (calls < WARM_CALLS and begin.seconds < WARM_SECONDS):
        seconds = measure(call, 1, device)
        calls += 1
    return seconds


def run_forward(layer: nn.Module, x: Tensor, dy: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def run_both(layer: nn.Module, x: Tensor, dy: Tensor) -> None:
    y = layer(x)[0]
    torch.autograd.grad(y, [x, *layer.parameters()], dy)


def run_without_tf32(call: Callable[[], object]) -> None:
    torch.backends.cudnn.allow_tf32 = False
    try:
        call()
    finally:
        torch.backends.cudnn.allow_tf32 = True


def name_kernel(layer: nn.Module, x: Tensor, needs_gradients: bool = True) -> str:
    with torch.set_grad_enabled(needs_gradients):
        return str(explain(layer, x).kernels[0])


def record_graph(call: Callable[[], object]) -> Callable[[], object]:
    """Record a call as a CUDA graph; return what replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay(kept: object = call) -> None:  # the graph reads the layer's memory but does not keep it
        graph.replay()

    return replay

"""Time and memory of linear recurrences: this package's kernels and flash-linear-attention's.

    python -m research linear_recurrences --device cuda --json out.json
    python -m research linear_recurrences --device cuda --check --json out.json     (errors against the definition)
    python -m research linear_recurrences --device cpu --json out.json       (its naive forms, in torch)

On a GPU in bfloat16 with 8 heads of 128 x 128, forward and both passes; on a CPU in float32 with one thread and 4
heads of 128 x 128: forward, both passes (torch's products), a single step of the recurrence, and a single step of a
whole layer with its projections, convolution, norm and gate. flash-linear-attention is taken from the Python path.
"""

from __future__ import annotations

import gc
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from research.record import PROCESSOR, build_parser, describe_run, measure, time_best
from seqloom import GatedDeltaNet
from seqloom.kernels.linear import flash
from seqloom.kernels.linear.bound import run_step
from seqloom.kernels.linear.dispatch import run_linear
from seqloom.kernels.linear.job import make_job

ROUNDS = 4  # on a CPU: processor time of the fastest call
FORMS = ("gated_delta", "delta", "scalar", "channel")
CHECKED = (150, 256)  # steps; the first is no multiple of a chunk


def draw(form: str, T: int, heads: int, size: int, device: str, dtype: torch.dtype) -> dict[str, Tensor | None]:
    """Return q, k, v and the gates of a form."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, T, heads, size, device=device) for _ in range(3))
    k = F.normalize(k, dim=-1)
    gate = torch.rand(1, T, heads, size if form == "channel" else 1, device=device)
    decay = None if form == "delta" else -0.1 * gate
    beta = torch.rand(1, T, heads, device=device) if "delta" in form else None
    parts = {"q": q * size**-0.5, "k": k, "v": v}
    return {name: t.to(dtype) for name, t in parts.items()} | {"decay": decay, "beta": beta}


def time_gpu(call: Callable[[], None], rounds: int = 10) -> tuple[float, float]:
    """Return milliseconds of the fastest call and the most bytes that one allocated above its inputs."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    times = [1e3 * measure(call, device="cuda") for _ in range(rounds)]
    return min(times), float(torch.cuda.max_memory_allocated() - held)


def run_gpu(file: Path, heads: int, size: int, lengths: list[int], forms: Sequence[str] = FORMS) -> None:
    """Time the kernels "chunk" and "fla" of this package, and flash-linear-attention's own functions."""
    rows: list[dict[str, object]] = []
    for form in forms:
        for T in lengths:
            for backward in (False, True):
                for row in time_form(form, T, heads, size, backward):
                    rows.append(row)
                    print(row, flush=True)
                    write(file, rows)


def time_form(form: str, T: int, heads: int, size: int, backward: bool) -> Iterator[dict[str, object]]:
    """Yield a row for every kernel."""
    p = draw(form, T, heads, size, "cuda", torch.bfloat16)
    leaves = [t.requires_grad_(backward) for t in p.values() if t is not None]

    def run(call: Callable[[], Tensor]) -> None:
        y = call()
        if backward:
            torch.autograd.grad(y, leaves, torch.ones_like(y))

    def run_job(kernel: str) -> Tensor:
        return run_linear(make_job(p["q"], p["k"], p["v"], p["decay"], beta=p["beta"]), kernel)[0]

    reference = None
    calls = {kernel: partial(run_job, kernel) for kernel in ("chunk", "fla")}
    for name, call in {**calls, "fla itself": partial(call_fla, form, p)}.items():
        row: dict[str, object] = {"form": form, "T": T, "backward": backward, "kernel": name}
        try:
            y = call().detach().float()
            reference = y if reference is None else reference
            row["difference"] = float((y - reference).abs().max() / reference.abs().max())
            row["ms"], row["bytes"] = time_gpu(partial(run, call))
        except Exception as error:  # a missing package or too little memory: the others go on
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        torch.cuda.empty_cache()
        yield row


def limit_configs(most: int) -> None:
    """Let Triton choose among at most so many configurations of a kernel: to compile all of them takes minutes."""
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def prune_more(self: Autotuner, settings: dict[str, object]) -> list[object]:
        configs = prune(self, settings)
        usual = [c for c in configs if c.num_warps == 4 and c.num_stages in (2, 3)]
        some = usual or configs
        return some[:: -(-len(some) // most)]  # small and large tiles

    Autotuner.prune_configs = prune_more


def check_gpu(file: Path, heads: int, size: int, forms: Sequence[str]) -> None:
    """Compare the kernels with the definition in float64: outputs, last state and all gradients."""
    rows: list[dict[str, object]] = []
    for form in forms:
        for T in CHECKED:
            for flags in ("", "lengths", "resets"):
                for row in check_form(form, T, heads, size, flags):
                    rows.append(row)
                    print(row, flush=True)
                    write(file, rows)


def check_form(form: str, T: int, heads: int, size: int, flags: str) -> Iterator[dict[str, object]]:
    """Yield the errors of the kernels "chunk" and "fla" on two rows with a first state, in bfloat16."""
    torch.manual_seed(1)
    p = {
        name: None if t is None else torch.cat([t, t.flip(1)])
        for name, t in draw(form, T, heads, size, "cuda", torch.bfloat16).items()
    }
    p["state"] = torch.randn(2, heads, size, size, device="cuda")
    lengths = torch.tensor([T, T - 37], device="cuda") if flags == "lengths" else None
    reset = torch.rand(2, T, device="cuda") < 0.02 if flags == "resets" else None
    weights = torch.randn(2, T, heads, size, device="cuda")
    names = [name for name, t in p.items() if t is not None]

    def run(kernel: str, wide: bool) -> Iterator[tuple[str, Tensor]]:
        leaves = {
            name: p[name].detach().to(torch.float64 if wide else p[name].dtype).requires_grad_() for name in names
        }
        parts = {name: leaves.get(name) for name in ("decay", "state", "beta")}
        job = make_job(leaves["q"], leaves["k"], leaves["v"], **parts, lengths=lengths, reset=reset)
        y, state = run_linear(job, kernel)
        mask = 1 if lengths is None else (torch.arange(T, device="cuda") < lengths[:, None])[..., None, None]
        yield from {"y": y * mask, "last state": state}.items()
        loss = (y * (weights * mask)).sum() + state.sin().sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        yield from zip((f"d {name}" for name in names), gradients, strict=True)

    exact = {name: t.detach() for name, t in run("recurrent", wide=True)}
    for kernel in ("chunk", "fla"):
        errors: dict[str, float] = {}
        row: dict[str, object] = {"form": form, "T": T, "flags": flags, "kernel": kernel, "errors": errors}
        try:
            for name, t in run(kernel, wide=False):
                errors[name] = float((t.detach().double() - exact[name]).norm() / exact[name].norm())
        except Exception as error:  # the other kernel and the other forms go on
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
        yield row


def call_fla(form: str, p: dict[str, Tensor | None]) -> Tensor:
    """Call flash-linear-attention's own function."""
    functions = flash._load()
    if isinstance(functions, str):
        raise RuntimeError(functions)
    q, k, v = p["q"], p["k"], p["v"]
    beta = None if p["beta"] is None else p["beta"].to(v.dtype)
    if form == "delta":
        return functions[form](q, k, v, beta, scale=1.0)[0]
    decay = p["decay"] if form == "channel" else p["decay"].squeeze(-1)
    if form == "gated_delta":
        return functions[form](q, k, v, decay, beta, scale=1.0)[0]
    return functions[form](q, k, v, decay, scale=1.0)[0]


def run_cpu(file: Path, heads: int, size: int, T: int) -> None:
    """Time the engine, the chunks and flash-linear-attention's naive forms of the gated delta rule on one thread."""
    torch.set_num_threads(1)
    p = draw("gated_delta", T, heads, size, "cpu", torch.float32)
    decay, beta = p["decay"].squeeze(-1), p["beta"]
    calls: dict[str, Callable[[], object]] = {
        name: lambda name=name: run_linear(make_job(p["q"], p["k"], p["v"], decay, beta=beta), name)
        for name in ("cpu", "chunk", "recurrent")
    }
    try:
        naive = importlib.import_module("fla_naive")
    except ImportError:
        naive = None
        print("fla_naive.py, a copy of fla/ops/gated_delta_rule/naive.py, is not on the path")
    if naive is not None:
        calls["fla naive chunk"] = lambda: naive.naive_chunk_gated_delta_rule(
            p["q"], p["k"], p["v"], decay, beta, scale=1.0
        )
        calls["fla naive recurrent"] = lambda: naive.naive_recurrent_gated_delta_rule(
            p["q"], p["k"], p["v"], beta, decay, scale=1.0
        )
    one = {name: t[:, :1].contiguous() for name, t in p.items() if t is not None}
    state = torch.randn(1, heads, size, size)
    parts = (one["q"], one["k"], one["v"], one["decay"], None, one["beta"], state)
    layer = GatedDeltaNet(heads * size, heads).eval()
    x = torch.randn(1, heads * size)
    with torch.no_grad():
        before = layer.step(x)[1]
        if run_step(*parts) is None:
            print("this engine has no bound step; the first row of steps says nothing")
    inner = torch.randn(1, layer.W_o.in_features)

    def run_job() -> object:
        return run_linear(make_job(*parts[:5], state, beta=one["beta"]))

    def multiply() -> object:
        return [w(x) for w in (layer.W_qkv, layer.W_a, layer.W_b, layer.W_g)], layer.W_o(inner)

    steps: dict[str, Callable[[], object]] = {
        "cpu, one step": lambda: run_step(*parts),
        "cpu, one step as a job": run_job,
        "one step of a layer": lambda: layer.step(x, before),
        "products of a layer's step": multiply,
    }
    leaves = [t.detach().clone().requires_grad_() for t in (p["q"], p["k"], p["v"], decay, beta)]

    def train(run: Callable[..., Tensor]) -> None:
        y = run(*leaves)
        torch.autograd.grad(y, leaves, torch.ones_like(y))

    both: dict[str, Callable[[], object]] = {
        "chunk, both passes": lambda: train(lambda q, k, v, g, b: run_linear(make_job(q, k, v, g, beta=b), "chunk")[0])
    }
    if naive is not None:
        both["fla naive chunk, both passes"] = lambda: train(
            lambda q, k, v, g, b: naive.naive_chunk_gated_delta_rule(q, k, v, g, b, scale=1.0)[0]
        )
    best = dict.fromkeys((*calls, *both, *steps), float("inf"))
    for _ in range(ROUNDS):  # in turn: other programs disturb all alike
        with torch.no_grad():
            for name, call in calls.items():
                best[name] = min(best[name], time_best(call, 1, 3 if name == "cpu" else 1, PROCESSOR))
            for name, call in steps.items():
                best[name] = min(best[name], time_best(call, 50, 20, PROCESSOR))
        for name, call in both.items():
            best[name] = min(best[name], time_best(call, 1, 1, PROCESSOR))
    lengths = {name: 1 if name in steps else T for name in best}
    rows: list[dict[str, object]] = [
        {"T": lengths[name], "kernel": name, "us_per_token": 1e6 * seconds / lengths[name]}
        for name, seconds in best.items()
    ]
    for row in rows:
        print(row)
    write(file, rows)


def write(file: Path, rows: list[dict[str, object]]) -> None:
    """Write the rows so far, so that a run that is stopped loses little."""
    file.write_text(json.dumps(describe_run(seed=0, rows=rows), indent=1) + "\n")


def main() -> None:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=Path("linear_recurrences.json"))
    parser.add_argument("--heads", type=int, default=0)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--check", action="store_true", help="compare the kernels with the definition")
    parser.add_argument("--configs", type=int, default=0, help="compile so many configurations of each Triton kernel")
    given = parser.parse_args()
    if given.configs:
        limit_configs(given.configs)
    if given.check:
        check_gpu(given.json, given.heads or 8, given.size, given.forms)
    elif given.device == "cuda":
        run_gpu(given.json, given.heads or 8, given.size, given.lengths, given.forms)
    else:
        run_cpu(given.json, given.heads or 4, given.size, given.lengths[0] if given.lengths[0] != 2048 else 1024)

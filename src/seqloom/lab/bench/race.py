"""Time whole layers, input projection included, against each other in one process, shape by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.kernels.registry import ANY, KERNELS, find_kernel
from seqloom.lab.bench.settings import BenchSettings
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools import doctor, testing
from seqloom.tools.explain import explain
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import Library, Run, capture_graph, peak_bytes, time_call

GRU = "torch.nn.GRU"
AXES = ("threads", "dtype", "length", "hidden", "batch")
PASSES = ("forward", "forward+backward")
CHECK_FAILED = "check failed: "  # prefix of Timing.reason

Data = tuple[Tensor, Tensor, Tensor | None]
Check = Callable[[str, type[Cell], str, torch.dtype], str]


@dataclass(frozen=True)
class Timing:
    """The time of one layer for one shape and pass."""

    cell: str
    kernel: str  # the one that ran, or the requested one if none ran
    library: str  # library behind a kernel of torch: "cuDNN", "oneDNN", "ATen"; else empty
    device: str
    dtype: str
    hidden: int
    batch: int
    length: int
    threads: int
    pass_: str
    us_per_step: float | None = None
    ratio_to_gru: float | None = None  # above 1: faster than torch.nn.GRU
    graph_us_per_step: float | None = None  # on a GPU, as a CUDA graph: without host time
    graph_ratio_to_gru: float | None = None  # against torch.nn.GRU as a CUDA graph
    saved_bytes: int | None = None  # saved by the forward pass for the backward pass
    peak_bytes: int | None = None  # peak memory of one call, on a GPU
    reason: str = ""  # why there is no time, or what was not checked

    def with_time(self, seconds: float | None, gru: float | None, graph: str = "") -> Timing:
        """Return a copy with the time per step and its ratio to torch.nn.GRU; `graph` is a prefix of the fields."""
        if seconds is None:
            return self
        values = {"us_per_step": 1e6 * seconds / self.length, "ratio_to_gru": gru and gru / seconds}
        return replace(self, **{graph + name: value for name, value in values.items()})  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        result = self.reason if self.us_per_step is None else f"{self.us_per_step:.2f} us/step"
        return f"{self.cell}, {self.kernel}, H={self.hidden} B={self.batch} T={self.length} {self.pass_}: {result}"


def list_shapes(settings: BenchSettings) -> list[tuple[Any, ...]]:
    """Return every combination of shape and pass, as (threads, dtype, length, hidden, batch, pass)."""
    return list(product(*(getattr(settings, name) for name in AXES), PASSES))


def time_layers(
    settings: BenchSettings,
    kinds: Mapping[str, type[Cell]],
    before: Callable[[str], None],
    check: Check | None = None,
) -> Iterator[Timing]:
    """Yield the time of every cell with every kernel and of the other libraries' layers, shape by shape.

    Args:
        before: Called with a label before each shape.
        check: The result of `remember_checks`, if several calls shall check each kernel once.

    Raises:
        UserError: If the device is cuda and there is none.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device; use --device cpu")
    check = check or remember_checks()
    for threads, dtype, length, hidden, batch, pass_ in list_shapes(settings):
        before(f"H={hidden} B={batch} T={length} {pass_}")
        blank = Timing("", "", "", settings.device, dtype, hidden, batch, length, threads, pass_)
        with use_one_thread(), _allow_tf32(dtype == "tf32"):  # flushes denormals, which would slow some layers down
            torch.set_num_threads(threads)
            timings = _race(settings, kinds, blank, check)
        yield from timings


def remember_checks() -> Check:
    """Return a function that checks a kernel against the reference loop, once per cell, device and type."""
    return cache(_check)


@contextmanager
def _allow_tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class _PaddedLayer(nn.Module):
    """Run any layer from padded to padded sequences; ragged input is packed for layers of torch.nn.

    A layer without support for lengths computes the padding too.
    """

    def __init__(self, layer: nn.Module, lengths: Tensor | None) -> None:
        super().__init__()
        self.layer = layer
        self.lengths = lengths if lengths is None or isinstance(layer, Recurrent) else lengths.cpu()

    def forward(self, x: Tensor) -> Tensor:
        if self.lengths is None or not isinstance(self.layer, Recurrent | nn.RNNBase):
            return self.layer(x)[0]
        if isinstance(self.layer, Recurrent):
            return self.layer(x, lengths=self.lengths)[0]
        packed = pack_padded_sequence(x, self.lengths, batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def _race(settings: BenchSettings, kinds: Mapping[str, type[Cell]], blank: Timing, check: Check) -> list[Timing]:
    """Time all layers for one shape, alternating between them, so that disturbances affect all alike."""
    entries: dict[tuple[str, str], tuple[Timing, Run | None]] = {}
    data = _data(settings, blank)
    for cell, kernel in [*product(kinds, settings.kernels), *((name, "torch") for name in rivals())]:
        row, call = _prepare(replace(blank, cell=cell, kernel=kernel), kinds.get(cell), check, data)
        entries.setdefault((row.cell, row.kernel), (row, call))  # "auto" and a name may select the same kernel
    racing = {key: run for key, (_, run) in entries.items() if run}
    best = _time_rounds(settings, racing)
    rows = {key: row.with_time(best.get(key), best.get((GRU, "torch"))) for key, (row, _) in entries.items()}
    if settings.device == "cuda":
        best = _time_rounds(settings, {key: graph for key, run in racing.items() if (graph := capture_graph(run))})
        rows = {key: row.with_time(best.get(key), best.get((GRU, "torch")), "graph_") for key, row in rows.items()}
    return list(rows.values())


def _time_rounds(settings: BenchSettings, racing: Mapping[tuple[str, str], Run]) -> dict[tuple[str, str], float]:
    best = dict.fromkeys(racing, float("inf"))
    for _ in range(settings.rounds):
        for key, run in racing.items():
            best[key] = min(best[key], time_call(run, settings.device))
    return best


def _prepare(row: Timing, kind: type[Cell] | None, check: Check, data: Data) -> tuple[Timing, Run | None]:
    """Return the row without its time, and the call to time, or None if it cannot run."""
    (x, dy, lengths), training = data, row.pass_ != PASSES[0]
    try:
        layer = _layer(kind, row, x.dtype)
        padded = _PaddedLayer(layer, lengths)
        with torch.set_grad_enabled(training):
            if isinstance(layer, Recurrent):
                row = replace(row, kernel=explain(layer, x, lengths=lengths).kernels[0])
            else:
                row = replace(row, kernel=getattr(layer, "kernel", row.kernel))
            if row.kernel.endswith("torch") or any(k.name == row.kernel and k.uses_torch for k in KERNELS):
                with Library() as library:
                    padded(x)
                row = replace(row, library=library.name)
        if kind is not None:
            row = replace(row, reason=check(row.kernel, kind, row.device, x.dtype))
        elif lengths is not None and not isinstance(layer, nn.RNNBase):
            row = replace(row, reason="does not support lengths: computes the padding too")
        if row.reason.startswith(CHECK_FAILED):
            return row, None
        if training:
            row = replace(row, saved_bytes=saved_bytes(padded, x))
        run = partial(_pass, padded, x, [x, *layer.parameters()], dy if training else None)
        run()  # warm-up
        row = replace(row, peak_bytes=peak_bytes(run, row.device))
    except Exception as error:  # a kernel that cannot run becomes a row with the reason
        return replace(row, reason=" ".join(str(error).split()) or type(error).__name__), None
    return row, run


def _data(settings: BenchSettings, blank: Timing) -> Data:
    """Return the input, the gradient of the output, and the lengths, from the longest to one step."""
    noise = torch.Generator(settings.device).manual_seed(0)
    shape = (2, blank.batch, blank.length, blank.hidden)
    numbers = torch.float32 if blank.dtype == "tf32" else getattr(torch, blank.dtype)
    x, dy = torch.randn(shape, generator=noise, device=settings.device).to(numbers)
    lengths = torch.linspace(blank.length, 1, blank.batch).round().long().to(settings.device)
    return x.requires_grad_(), dy, lengths if settings.ragged else None


def _layer(kind: type[Cell] | None, row: Timing, dtype: torch.dtype) -> nn.Module:
    size: dict[str, Any] = dict(input_size=row.hidden, hidden_size=row.hidden, batch_first=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = rivals()[row.cell](**size) if kind is None else Recurrent(kind, kernel=row.kernel, **size)
    return layer.to(row.device, dtype)


def _check(kernel: str, kind: type[Cell], device: str, dtype: torch.dtype) -> str:
    """Return "" if the kernel is correct, or CHECK_FAILED with the reason."""
    known = find_kernel(kernel)
    if known.uses_torch or known.cell == ANY:  # the doctor checks torch's own code and the reference loop
        verdict = doctor.run_self_test(kernel, device)
        if verdict.failed:
            return CHECK_FAILED + verdict.self_test.removeprefix("FAILED: ")
        return verdict.self_test.replace("skipped", "not checked").removesuffix("ok")
    try:
        with _allow_tf32(False):  # products with a single row ignore tf32, so the loop would be more exact
            testing.check_kernel(kernel, kind, dtype, device)
    except Exception as error:
        return CHECK_FAILED + " ".join(str(error).split())
    return ""


def _pass(layer: nn.Module, x: Tensor, leaves: Sequence[Tensor], dy: Tensor | None) -> None:
    with torch.set_grad_enabled(dy is not None):
        y = layer(x)
    if dy is not None:
        torch.autograd.grad(y, leaves, dy, allow_unused=True)


@cache
def rivals() -> dict[str, Callable[..., nn.Module]]:
    """Return the layers of torch.nn and of installed libraries by name.

    Each is a function of (input_size, hidden_size, batch_first) that returns a layer from (B, T, D) to (B, T, H) and a
    state.
    """
    layers: dict[str, Callable[..., nn.Module]] = {f"torch.nn.{k.__name__}": k for k in (nn.RNN, nn.GRU, nn.LSTM)}
    if find_spec("torchrecurrent"):
        layers["torchrecurrent.MGU"] = import_module("torchrecurrent").MGU  # one gate: the fastest of its gated layers
    if find_spec("flashrnn"):
        layers["flashrnn.LSTM"] = FlashLSTM
    return layers


class FlashLSTM(nn.Module):
    """FlashRNN's LSTM function (Poeppel et al. 2024, arXiv 2412.07752) as a layer with one head."""

    def __init__(self, input_size: int, hidden_size: int, batch_first: bool) -> None:
        super().__init__()
        self.project = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.R = nn.Parameter(torch.randn(4, 1, hidden_size, hidden_size) / hidden_size**0.5)
        self.b = nn.Parameter(torch.zeros(4, 1, hidden_size))

    @property
    def kernel(self) -> str:
        return "cuda_fused" if self.b.is_cuda else "vanilla"

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flashrnn = import_module("flashrnn").flashrnn
        Wx = self.project(x).unflatten(-1, self.b.shape)  # (B, T, 4, 1, H)
        dtype = str(x.dtype).removeprefix("torch.")
        states, last = flashrnn(Wx, self.R, self.b, function="lstm", backend=self.kernel, dtype=dtype)
        return states[0].squeeze(-2), last


def tabulate(settings: BenchSettings, timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return the timings as table rows; settings with a single value are in the caption instead."""
    several = [name for name in ("threads", "dtype") if len(getattr(settings, name)) > 1]
    last = ["reason"] if any(row.reason for row in timings) else []
    on_gpu = settings.device == "cuda"
    return [
        {"cell": row.cell, "kernel": f"{row.kernel} ({row.library})" if row.library else row.kernel}
        | {name: getattr(row, name) for name in several}
        | {"H": row.hidden, "B": row.batch, "T": row.length, "pass": row.pass_.removeprefix("forward") or "forward"}
        | {"us/step": row.us_per_step, "x nn.GRU": row.ratio_to_gru}
        | ({"graph us/step": row.graph_us_per_step, "graph x nn.GRU": row.graph_ratio_to_gru} if on_gpu else {})
        | {"saved MB": None if row.saved_bytes is None else row.saved_bytes / 1e6}
        | ({"peak MB": None if row.peak_bytes is None else row.peak_bytes / 1e6} if on_gpu else {})
        | {name: getattr(row, name) for name in last}
        for row in timings
    ]


def describe_setup(settings: BenchSettings, facts: Mapping[str, Any] | None = None) -> str:
    """Return the caption: machine, versions, method and command.

    Args:
        facts: "versions" and "hardware" of the doctor where it was timed; by default those of this machine.
    """
    facts = facts or describe_machine()
    versions, here = facts["versions"], facts["hardware"]
    machine = here["gpus"][0]["name"] if settings.device == "cuda" else f"{here['cpu']}, {here['instructions']}"
    how = "median call of the best" if settings.device == "cuda" else "fastest call"
    graph = "graph: the same call recorded as a CUDA graph; " if settings.device == "cuda" else ""
    ragged = "ragged: lengths from T to 1, packed and padded for torch.nn; " if settings.ragged else ""
    return (
        f"{machine}, {count(here['cores'], 'core')}; threads: {settings.join('threads')}; {settings.join('dtype')}; "
        f"torch {versions['torch']}, seqloom {versions.get('seqloom') or 'from source'}, python {versions['python']}\n"
        f"+backward: forward and backward; whole layers, input size = H; {ragged}denormals flushed on the CPU; "
        f"{how} of {settings.rounds} rounds that alternate between the layers; "
        f"{graph}x nn.GRU: speed relative to torch.nn.GRU, above 1 is faster\n"
        f"{settings.command()}"
    )


def describe_machine() -> dict[str, Any]:
    """Return versions and hardware of this machine, as a document stores them."""
    return {"versions": doctor.versions(), "hardware": doctor.hardware()}


def build_document(settings: BenchSettings, timings: Sequence[Timing], finished: bool = True) -> dict[str, Any]:
    """Return timings, settings, versions and hardware as a JSON document."""
    return {
        "command": settings.command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings.model_dump(mode="json"),
        "versions": doctor.versions(),
        "hardware": doctor.hardware() | {"denormals": "flushed"},
        "finished": finished,
        "rows": [row.as_dict() for row in timings],
    }

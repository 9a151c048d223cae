"""Layers against each other, shape after shape: whole layers, input projection included, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
from seqloom.kernels.registry import ANY, KERNELS, find_kernel
from seqloom.lab.bench.settings import BenchSettings
from seqloom.lab.training.cpu import use_one_thread
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools import doctor, testing
from seqloom.tools.explain import explain
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import Library, Run, capture_graph, peak_bytes, time_call

GRU = "torch.nn.GRU"
AXES = ("threads", "dtype", "length", "hidden", "batch")
PASSES = ("forward", "forward+backward")
RED = "check failed: "

Data = tuple[Tensor, Tensor, Tensor | None]
Check = Callable[[str, type[Cell], str, torch.dtype], str]


@dataclass(frozen=True)
class Row:
    """One layer, one shape, one pass."""

    cell: str
    kernel: str  # the one that ran; where none did, the one asked for
    library: str  # whose fused code that is, where it is torch's: "cuDNN", "oneDNN", "ATen"
    device: str
    dtype: str
    hidden: int
    batch: int
    length: int
    threads: int
    pass_: str
    us_per_step: float | None = None
    ratio_to_gru: float | None = None  # above 1: faster than torch.nn.GRU
    graph_us_per_step: float | None = None  # on a GPU, recorded as a CUDA graph: without the host's time
    graph_ratio_to_gru: float | None = None  # to torch.nn.GRU recorded likewise
    saved_bytes: int | None = None  # between forward and backward
    peak_bytes: int | None = None  # of a call, on a GPU
    reason: str = ""  # why there is no time, or what is not known of the kernel

    def timed(self, seconds: float | None, gru: float | None, graph: str = "") -> Row:
        if seconds is None:
            return self
        found = {"us_per_step": 1e6 * seconds / self.length, "ratio_to_gru": gru and gru / seconds}
        return replace(self, **{graph + name: value for name, value in found.items()})  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        found = self.reason if self.us_per_step is None else f"{self.us_per_step:.2f} us/step"
        return f"{self.cell}, {self.kernel}, H={self.hidden} B={self.batch} T={self.length} {self.pass_}: {found}"


def grid(settings: BenchSettings) -> list[tuple[Any, ...]]:
    """Every shape with every pass, the first axis slowest."""
    return list(product(*(getattr(settings, name) for name in AXES), PASSES))


def rows(settings: BenchSettings, kinds: Mapping[str, type[Cell]], before: Callable[[str], None]) -> Iterator[Row]:
    """Every cell with every kernel, then other libraries' layers, for one shape and pass after the other."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here; use --device cpu")
    check = cache(_check)
    for threads, dtype, length, hidden, batch, pass_ in grid(settings):
        before(f"H={hidden} B={batch} T={length} {pass_}")
        blank = Row("", "", "", settings.device, dtype, hidden, batch, length, threads, pass_)
        with use_one_thread(), _products_of_19_bits(dtype == "tf32"):  # denormals would slow whoever meets them
            torch.set_num_threads(threads)
            found = _race(settings, kinds, blank, check)
        yield from found


@contextmanager
def _products_of_19_bits(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class _Padded(nn.Module):
    """A layer from padded sequences to padded sequences: torch.nn's have to pack them where they are ragged.

    A layer that knows no lengths goes through the padding, too.
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


def _race(settings: BenchSettings, kinds: Mapping[str, type[Cell]], blank: Row, check: Check) -> list[Row]:
    """Round after round, each layer in its turn, so that what slows the machine slows all of them."""
    found: dict[tuple[str, str], tuple[Row, Run | None]] = {}
    data = _data(settings, blank)
    for cell, asked in [*product(kinds, settings.kernels), *((name, "torch") for name in rivals())]:
        row, call = _enter(replace(blank, cell=cell, kernel=asked), kinds.get(cell), check, data)
        found.setdefault((row.cell, row.kernel), (row, call))  # "auto" and a name may mean the same
    racing = {key: run for key, (_, run) in found.items() if run}
    best = _best(settings, racing)
    rows = {key: row.timed(best.get(key), best.get((GRU, "torch"))) for key, (row, _) in found.items()}
    if settings.device == "cuda":
        best = _best(settings, {key: graph for key, run in racing.items() if (graph := capture_graph(run))})
        rows = {key: row.timed(best.get(key), best.get((GRU, "torch")), "graph_") for key, row in rows.items()}
    return list(rows.values())


def _best(settings: BenchSettings, racing: Mapping[tuple[str, str], Run]) -> dict[tuple[str, str], float]:
    best = dict.fromkeys(racing, float("inf"))
    for _ in range(settings.rounds):
        for key, run in racing.items():
            best[key] = min(best[key], time_call(run, settings.device))
    return best


def _enter(row: Row, kind: type[Cell] | None, check: Check, data: Data) -> tuple[Row, Run | None]:
    """The row with all but its time, and the call to be timed if there is to be one."""
    (x, dy, lengths), training = data, row.pass_ != PASSES[0]
    try:
        layer = _layer(kind, row, x.dtype)
        padded = _Padded(layer, lengths)
        with torch.set_grad_enabled(training):
            if kind is not None:
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
            row = replace(row, reason="takes no lengths: the padding was computed, too")
        if row.reason.startswith(RED):
            return row, None
        if training:
            row = replace(row, saved_bytes=saved_bytes(padded, x))
        run = partial(_pass, padded, x, [x, *layer.parameters()], dy if training else None)
        run()  # to warm up
        row = replace(row, peak_bytes=peak_bytes(run, row.device))
    except Exception as error:  # a kernel that cannot run is a row too
        return replace(row, reason=" ".join(str(error).split()) or type(error).__name__), None
    return row, run


def _data(settings: BenchSettings, blank: Row) -> Data:
    """Input, gradient of the output, and lengths from the longest to one step."""
    noise = torch.Generator(settings.device).manual_seed(0)
    shape = (2, blank.batch, blank.length, blank.hidden)
    numbers = torch.float32 if blank.dtype == "tf32" else getattr(torch, blank.dtype)
    x, dy = torch.randn(shape, generator=noise, device=settings.device).to(numbers)
    lengths = torch.linspace(blank.length, 1, blank.batch).round().long().to(settings.device)
    return x.requires_grad_(), dy, lengths if settings.ragged else None


def _layer(kind: type[Cell] | None, row: Row, dtype: torch.dtype) -> Any:
    size: dict[str, Any] = dict(input_size=row.hidden, hidden_size=row.hidden, batch_first=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = rivals()[row.cell](**size) if kind is None else Recurrent(kind, kernel=row.kernel, **size)
    return layer.to(row.device, dtype)


def _check(kernel: str, kind: type[Cell], device: str, dtype: torch.dtype) -> str:
    """ "" for a kernel that may be timed, RED and the reason for one that may not."""
    known = find_kernel(kernel)
    if known.uses_torch or known.cell == ANY:  # the doctor checks torch's own code, and the reference
        verdict = doctor.run_self_test(kernel, device)
        if verdict.failed:
            return RED + verdict.self_test.removeprefix("FAILED: ")
        return verdict.self_test.replace("skipped", "not checked").removesuffix("ok")
    try:
        with _products_of_19_bits(False):  # of which a single row's product makes no use: the loop would be the better
            testing.check_kernel(kernel, kind, dtype, device)
    except Exception as error:
        return RED + " ".join(str(error).split())
    return ""


def _pass(layer: nn.Module, x: Tensor, leaves: Sequence[Tensor], dy: Tensor | None) -> None:
    with torch.set_grad_enabled(dy is not None):
        y = layer(x)
    if dy is not None:
        torch.autograd.grad(y, leaves, dy, allow_unused=True)


@cache
def rivals() -> dict[str, Callable[..., nn.Module]]:
    """By name: input_size, hidden_size, batch_first -> a layer from (B, T, D) to (B, T, H) and a state."""
    found: dict[str, Callable[..., nn.Module]] = {f"torch.nn.{k.__name__}": k for k in (nn.RNN, nn.GRU, nn.LSTM)}
    if find_spec("torchrecurrent"):
        found["torchrecurrent.MGU"] = import_module("torchrecurrent").MGU  # one gate: the quickest of its gated ones
    if find_spec("flashrnn"):
        found["flashrnn.LSTM"] = FlashLSTM
    return found


class FlashLSTM(nn.Module):
    """FlashRNN's LSTM (Poeppel et al. 2024, arXiv 2412.07752), which is a function, as a layer with one head."""

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

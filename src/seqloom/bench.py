"""How fast the layers are beside torch.nn's: whole layers, input projection included, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seqloom import doctor, testing
from seqloom.cell import Cell
from seqloom.explain import explain
from seqloom.layers.recurrent import Recurrent
from seqloom.measure import saved_bytes
from seqloom.settings import Bench
from seqloom.timing import Library, Run, peak_bytes, seconds
from seqloom.training.small import small_models_on_cpu

TORCH: dict[str, type[nn.RNNBase]] = {f"torch.nn.{kind.__name__}": kind for kind in (nn.RNN, nn.GRU, nn.LSTM)}
GRU = "torch.nn.GRU"
SELF_TESTED = ("_aten", "any_scan", "any_loop")  # by the doctor: torch's own code, and the reference
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
    saved_bytes: int | None = None  # between forward and backward
    peak_bytes: int | None = None  # of a call, on a GPU
    reason: str = ""  # why there is no time, or what is not known of the kernel

    def timed(self, seconds: float | None, gru: float | None) -> Row:
        if seconds is None:
            return self
        return replace(self, us_per_step=1e6 * seconds / self.length, ratio_to_gru=gru and gru / seconds)

    def as_dict(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        found = self.reason if self.us_per_step is None else f"{self.us_per_step:.2f} us/step"
        return f"{self.cell}, {self.kernel}, H={self.hidden} B={self.batch} T={self.length} {self.pass_}: {found}"


def grid(settings: Bench) -> list[tuple[Any, ...]]:
    """Every shape with every pass, the first axis slowest."""
    return list(product(*(getattr(settings, name) for name in AXES), PASSES))


def rows(settings: Bench, kinds: Mapping[str, type[Cell]], before: Callable[[str], None]) -> Iterator[Row]:
    """Every cell with every kernel, then torch.nn's layers, for one shape and pass after the other."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    check = cache(_check)
    for threads, dtype, length, hidden, batch, pass_ in grid(settings):
        before(f"H={hidden} B={batch} T={length} {pass_}")
        blank = Row("", "", "", settings.device, dtype, hidden, batch, length, threads, pass_)
        with small_models_on_cpu():  # denormals would slow whoever meets them
            torch.set_num_threads(threads)
            found = _race(settings, kinds, blank, check)
        yield from found


class _Padded(nn.Module):
    """A layer from padded sequences to padded sequences: torch.nn's have to pack them where they are ragged."""

    def __init__(self, layer: nn.Module, lengths: Tensor | None) -> None:
        super().__init__()
        self.layer = layer
        self.lengths = lengths if lengths is None or isinstance(layer, Recurrent) else lengths.cpu()

    def forward(self, x: Tensor) -> Tensor:
        if self.lengths is None:
            return self.layer(x)[0]
        if isinstance(self.layer, Recurrent):
            return self.layer(x, lengths=self.lengths)[0]
        packed = pack_padded_sequence(x, self.lengths, batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def _race(settings: Bench, kinds: Mapping[str, type[Cell]], blank: Row, check: Check) -> list[Row]:
    """Round after round, each layer in its turn, so that what slows the machine slows all of them."""
    found: dict[tuple[str, str], tuple[Row, Run | None]] = {}
    data = _data(settings, blank)
    for cell, asked in [*product(kinds, settings.kernels), *((name, "torch") for name in TORCH)]:
        row, call = _enter(replace(blank, cell=cell, kernel=asked), kinds.get(cell), check, data)
        found.setdefault((row.cell, row.kernel), (row, call))  # "auto" and a name may mean the same
    racing = {key: run for key, (_, run) in found.items() if run}
    best = dict.fromkeys(racing, float("inf"))
    for _ in range(settings.rounds):
        for key, run in racing.items():
            best[key] = min(best[key], seconds(run, settings.device))
    gru = best.get((GRU, "torch"))
    return [row.timed(best.get(key), gru) for key, (row, _) in found.items()]


def _enter(row: Row, kind: type[Cell] | None, check: Check, data: Data) -> tuple[Row, Run | None]:
    """The row with all but its time, and the call to be timed if there is to be one."""
    (x, dy, lengths), training = data, row.pass_ != PASSES[0]
    try:
        layer = _layer(kind, row, x.dtype)
        padded = _Padded(layer, lengths)
        with torch.set_grad_enabled(training):
            if kind is not None:
                row = replace(row, kernel=explain(layer, x, lengths=lengths).kernels[0])
            if row.kernel.endswith(("torch", "_aten")):
                with Library() as library:
                    padded(x)
                row = replace(row, library=library.name)
        if kind is not None:
            row = replace(row, reason=check(row.kernel, kind, row.device, x.dtype))
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


def _data(settings: Bench, blank: Row) -> Data:
    """Input, gradient of the output, and lengths from the longest to one step."""
    noise = torch.Generator().manual_seed(0)
    shape = (2, blank.batch, blank.length, blank.hidden)
    x, dy = torch.randn(shape, generator=noise).to(settings.device, getattr(torch, blank.dtype))
    lengths = torch.linspace(blank.length, 1, blank.batch).round().long().to(settings.device)
    return x.requires_grad_(), dy, lengths if settings.ragged else None


def _layer(kind: type[Cell] | None, row: Row, dtype: torch.dtype) -> Any:
    size: dict[str, Any] = dict(input_size=row.hidden, hidden_size=row.hidden, batch_first=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = TORCH[row.cell](**size) if kind is None else Recurrent(kind, kernel=row.kernel, **size)
    return layer.to(row.device, dtype)


def _check(kernel: str, kind: type[Cell], device: str, dtype: torch.dtype) -> str:
    """ "" for a kernel that may be timed, RED and the reason for one that may not."""
    if kernel.endswith(SELF_TESTED):
        verdict = doctor.verdict(kernel, device)
        if verdict.failed:
            return RED + verdict.self_test.removeprefix("FAILED: ")
        return verdict.self_test.replace("skipped", "not checked").removesuffix("ok")
    try:
        testing.check_kernel(kernel, kind, dtype, device)
    except Exception as error:
        return RED + " ".join(str(error).split())
    return ""


def _pass(layer: nn.Module, x: Tensor, leaves: Sequence[Tensor], dy: Tensor | None) -> None:
    with torch.set_grad_enabled(dy is not None):
        y = layer(x)
    if dy is not None:
        torch.autograd.grad(y, leaves, dy, allow_unused=True)


def table(settings: Bench, found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as they are printed; what is the same in all of them stands in the caption."""
    several = [name for name in ("threads", "dtype") if len(getattr(settings, name)) > 1]
    last = ["reason"] if any(row.reason for row in found) else []
    return [
        {"cell": row.cell, "kernel": f"{row.kernel} ({row.library})" if row.library else row.kernel}
        | {name: getattr(row, name) for name in several}
        | {"H": row.hidden, "B": row.batch, "T": row.length, "pass": row.pass_}
        | {"us/step": row.us_per_step, "x nn.GRU": row.ratio_to_gru}
        | {"saved MB": None if row.saved_bytes is None else row.saved_bytes / 1e6}
        | ({"peak MB": None if row.peak_bytes is None else row.peak_bytes / 1e6} if row.device == "cuda" else {})
        | {name: getattr(row, name) for name in last}
        for row in found
    ]


def caption(settings: Bench) -> str:
    """What ran where, and how it was timed."""
    versions, here = doctor.versions(), doctor.hardware()
    machine = here["gpus"][0]["name"] if settings.device == "cuda" else f"{here['cpu']}, {here['instructions']}"
    how = "median call in the best" if settings.device == "cuda" else "fastest call"
    given = "ragged: lengths from T to 1, torch.nn packs and pads them; " if settings.ragged else ""
    return (
        f"{machine}, {here['cores']} cores; threads: {settings.words('threads')}; {settings.words('dtype')}; "
        f"torch {versions['torch']}, seqloom {versions['seqloom']}, python {versions['python']}\n"
        f"whole layers, input size = H; {given}denormals flushed on the CPU; {how} of {settings.rounds} rounds, "
        "in which every layer has its turn; x nn.GRU above 1 is faster than torch.nn.GRU\n"
        f"{settings.command()}"
    )


def document(settings: Bench, found: Sequence[Row], finished: bool = True) -> dict[str, Any]:
    """Everything that a reader needs to believe the times, and to take them again."""
    return {
        "command": settings.command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings.model_dump(mode="json"),
        "versions": doctor.versions(),
        "hardware": doctor.hardware() | {"denormals": "flushed"},
        "finished": finished,
        "rows": [row.as_dict() for row in found],
    }

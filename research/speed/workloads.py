"""Train whole models with torch.nn's recurrent layers and with ours: python -m research workloads [--device cuda].

Each workload is what people train: embedding, recurrent layers, head, loss, optimiser (AdamW, fused on a GPU), in
float32 and under autocast in bfloat16 and float16, with torch's defaults. All sides start from the same weights and
take turns in one process, part by part; the time is that of the whole step. torch takes part twice: the ratio of its
two sides, the control, says how much chance makes. A ratio above 1 means that ours is faster. Losses are compared.
Ragged batches are packed for torch and given `lengths` for ours.

`--prepare N` first compiles the kernels in N processes. `--layers` times single layers instead, by torch, by cuDNN
behind our call, and by our own kernels, where a choice between the two is to be made.
"""

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import seqloom
from research.record import Stopwatch, build_parser, print_row, start_again, take_plain_step, write_record
from seqloom.kernels import heuristics

WORDS = 10_000
PRECISIONS = ("float32", "bfloat16", "float16")  # the last two under autocast
WARM_STEPS = 5  # recorded passes are there after three


class Layers:
    """The recurrent layers of one side."""

    def __init__(self, home: Any) -> None:
        self.LSTM, self.GRU, self.is_torch = home.LSTM, home.GRU, home is nn


def run_ragged(layer: nn.Module, x: Tensor, lengths: Tensor, on_host: Tensor) -> tuple[Tensor, Any]:
    """Run a layer over rows (T, B, D) of different lengths, as its users would; `on_host` are the lengths, too."""
    if isinstance(layer, nn.RNNBase) and not hasattr(layer, "cells"):
        y, state = layer(pack_padded_sequence(x, on_host, enforce_sorted=False))
        return pad_packed_sequence(y, total_length=len(x))[0], state
    return layer(x, lengths=lengths)


class Sequence(nn.Module):
    """Tokens or numbers (T, B[, D]) to classes or numbers, of every step or of the last."""

    def __init__(self, layers: Layers, cell: str, sizes: tuple[int, int, int], out: int, **settings: Any) -> None:
        super().__init__()
        words, width, hidden = sizes
        self.is_last = settings.pop("is_last", False)
        self.enter = nn.Embedding(words, width) if words else nn.Identity()
        self.layer = getattr(layers, cell)(width, hidden, **settings)
        self.head = nn.Linear(hidden * (1 + settings.get("bidirectional", False)), out)

    def forward(self, x: Tensor, lengths: Tensor | None = None, on_host: Tensor | None = None) -> Tensor:
        x = self.enter(x)
        y, _ = self.layer(x) if lengths is None else run_ragged(self.layer, x, lengths, on_host)
        if self.is_last:
            y = y[-1] if lengths is None else y[lengths - 1, torch.arange(len(lengths), device=y.device)]
        return self.head(y)


class Translator(nn.Module):
    """A ragged source (T, B) to the words of a target, with dot attention if `attends`."""

    def __init__(self, layers: Layers, cell: str, width: int, hidden: int, attends: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.attends = attends
        self.encoder = getattr(layers, cell)(width, hidden // (1 + attends), bidirectional=attends)
        self.decoder = getattr(layers, cell)(width, hidden)
        self.head = nn.Linear(hidden * (1 + attends), WORDS)

    def forward(self, x: Tensor, y: Tensor, lengths: Tensor, on_host: Tensor) -> Tensor:
        read, state = run_ragged(self.encoder, self.source(x), lengths, on_host)
        if not self.attends:
            return self.head(self.decoder(self.target(y), state)[0])
        out, _ = self.decoder(self.target(y))
        out, read = out.transpose(0, 1), read.transpose(0, 1)
        past = torch.arange(read.shape[1], device=read.device) >= lengths[:, None]
        scores = (out @ read.transpose(1, 2)).masked_fill(past[:, None], -torch.inf)
        return self.head(torch.cat([out, scores.softmax(-1) @ read], -1)).transpose(0, 1)


class Towers(nn.Module):
    """Sessions (T, B) of items and candidates (B, n) to scores."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.items = nn.Embedding(WORDS, 64)
        self.session, self.candidate = layers.GRU(64, 100), nn.Sequential(nn.Linear(64, 100), nn.ReLU())
        self.join = nn.Linear(100, 100)

    def forward(self, x: Tensor, candidates: Tensor, lengths: Tensor, on_host: Tensor) -> Tensor:
        _, state = run_ragged(self.session, self.items(x), lengths, on_host)
        return (self.candidate(self.items(candidates)) @ self.join(state[0]).unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Workload:
    """A model and a batch of it.

    Attributes:
        about: The layer and the batch, in words.
        make: Returns the model of a side.
        batch: Returns what the model takes and the right answers.
        loss: Of scores and answers; cross entropy if omitted.
        batches: How many batches, each of a shape of its own, a side goes through again and again.
        first: Steps whose time is measured apart: kernels prepare new shapes.
    """

    about: str
    make: Callable[[Layers], nn.Module]
    batch: Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = field(
        default=lambda y, to: F.cross_entropy(y.flatten(0, -2), to.flatten())
    )
    batches: int = 1
    first: int = 0


def words(T: int, B: int, device: torch.device, of: int = WORDS) -> Tensor:
    return torch.randint(of, (T, B), device=device)


def ragged(T: int, B: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return lengths, the longest T, on the device and on the host."""
    n = torch.randint(T // 4, T + 1, (B,))
    n[0] = T
    return n.to(device), n


def tokens(T: int, B: int, of: int = WORDS) -> Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]:
    return lambda device: ((words(T, B, device, of),), words(T, B, device, of))


def numbers(T: int, B: int, D: int, classes: int) -> Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]:
    return lambda device: ((torch.randn(T, B, D, device=device),), words(T, B, device, classes))


def last(T: int, B: int, D: int, classes: int) -> Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]:
    return lambda device: ((torch.randn(T, B, D, device=device),), torch.randint(classes, (B,), device=device))


def ragged_tokens(T: int, B: int, out: int, *, is_last: bool = False) -> Callable[[torch.device], Any]:
    def make(device: torch.device) -> tuple[tuple[Any, ...], Tensor]:
        lengths = ragged(T, B, device)
        return (words(T, B, device), *lengths), words(1 if is_last else T, B, device, out)

    return make


def any_length(device: torch.device, out: int, B: int) -> tuple[tuple[Any, ...], Tensor]:
    T = int(torch.randint(5, 61, ()))
    return (words(T, B, device),), words(T, B, device, out)


def pairs(T: int, B: int) -> Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]:
    return lambda device: ((words(T, B, device), words(T, B, device), *ragged(T, B, device)), words(T, B, device))


def sessions(T: int, B: int, n: int) -> Callable[[torch.device], tuple[tuple[Any, ...], Tensor]]:
    return lambda device: (
        (words(T, B, device), words(B, n, device), *ragged(T, B, device)),
        torch.randint(n, (B,), device=device),
    )


def mean_square(y: Tensor, to: Tensor) -> Tensor:
    return F.mse_loss(y.float(), to.float())


WORKLOADS = {
    "bytes": Workload(
        "LSTM 2 x 256, T = 2,048, B = 16",
        lambda of: Sequence(of, "LSTM", (256, 256, 256), 256, num_layers=2),
        tokens(2048, 16, 256),
    ),
    "speech": Workload(
        "two directions, GRU 4 x 512, T = 800, B = 32",
        lambda of: Sequence(of, "GRU", (0, 80, 512), 64, num_layers=4, bidirectional=True),
        numbers(800, 32, 80, 64),
    ),
    "PPO update": Workload(
        "LSTM 256, T = 128, B = 32",
        lambda of: Sequence(of, "LSTM", (0, 64, 256), 8),
        numbers(128, 32, 64, 8),
    ),
    "large language model": Workload(
        "LSTM 3 x 1,024, T = 128, B = 64",
        lambda of: Sequence(of, "LSTM", (WORDS, 1024, 1024), WORDS, num_layers=3),
        tokens(128, 64),
    ),
    "series": Workload(
        "GRU 64, T = 720, B = 128",
        lambda of: Sequence(of, "GRU", (0, 7, 64), 96, is_last=True),
        lambda device: ((torch.randn(720, 128, 7, device=device),), torch.randn(128, 96, device=device)),
        mean_square,
    ),
    "music": Workload(
        "GRU 128, T = 4,096, B = 4", lambda of: Sequence(of, "GRU", (128, 128, 128), 128), tokens(4096, 4, 128)
    ),
    "language model": Workload(
        "LSTM 2 x 650, T = 35, B = 20, dropout",
        lambda of: Sequence(of, "LSTM", (WORDS, 650, 650), WORDS, num_layers=2, dropout=0.5),
        tokens(35, 20),
    ),
    "audio dual path": Workload(
        "two directions, LSTM 128, T = 100, B = 1,000",
        lambda of: Sequence(of, "LSTM", (0, 64, 128), 64, bidirectional=True),
        lambda device: ((torch.randn(100, 1000, 64, device=device),), torch.randn(100, 1000, 64, device=device)),
        mean_square,
    ),
    "tagger": Workload(
        "two directions, LSTM 2 x 400, T = 30, B = 32",
        lambda of: Sequence(of, "LSTM", (WORDS, 100, 400), 45, num_layers=2, bidirectional=True),
        lambda device: ((words(30, 32, device),), words(30, 32, device, 45)),
    ),
    "ragged tagger": Workload(
        "two directions, LSTM 2 x 400, T up to 30, B = 32",
        lambda of: Sequence(of, "LSTM", (WORDS, 100, 400), 45, num_layers=2, bidirectional=True),
        ragged_tokens(30, 32, 45),
    ),
    "tagger, other lengths": Workload(
        "two directions, LSTM 2 x 400, T of 5 to 60, B = 32",
        lambda of: Sequence(of, "LSTM", (WORDS, 100, 400), 45, num_layers=2, bidirectional=True),
        lambda device: any_length(device, 45, 32),
        batches=1000,
        first=150,
    ),
    "tagger, any shape": Workload(
        "two directions, LSTM 2 x 400, T of 5 to 60, B of 16 to 47",
        lambda of: Sequence(of, "LSTM", (WORDS, 100, 400), 45, num_layers=2, bidirectional=True),
        lambda device: any_length(device, 45, int(torch.randint(16, 48, ()))),
        batches=1000,
        first=150,
    ),
    "translation": Workload(
        "GRU, encoder 2 directions of 256, decoder 512, attention, T up to 25, B = 64",
        lambda of: Translator(of, "GRU", 256, 512, True),
        pairs(25, 64),
    ),
    "seq2seq": Workload(
        "LSTM 512, encoder and decoder, T up to 20, B = 128",
        lambda of: Translator(of, "LSTM", 256, 512, False),
        pairs(20, 128),
    ),
    "sentiment": Workload(
        "GRU 128, T up to 60, B = 64, last state",
        lambda of: Sequence(of, "GRU", (WORDS, 100, 128), 5, is_last=True),
        ragged_tokens(60, 64, 5, is_last=True),
    ),
    "recommender": Workload("GRU 100, sessions of up to 20 items, B = 512, two towers", Towers, sessions(20, 512, 50)),
    "keywords": Workload(
        "GRU 2 x 128, T = 98, B = 128, last state",
        lambda of: Sequence(of, "GRU", (0, 40, 128), 35, num_layers=2, is_last=True),
        last(98, 128, 40, 35),
    ),
    "sensors": Workload(
        "LSTM 64, T = 12, B = 256, last state",
        lambda of: Sequence(of, "LSTM", (0, 9, 64), 6, is_last=True),
        last(12, 256, 9, 6),
    ),
}
SMALL = ("language model", "tagger", "ragged tagger", "translation", "sentiment", "recommender", "keywords", "sensors")


class Side:
    """One model in training; a call makes one step and returns the loss."""

    def __init__(self, load: Workload, layers: Layers, device: torch.device, precision: str) -> None:
        self.model, self.load, self.device = load.make(layers).to(device), load, device
        self.amp = None if precision == "float32" else getattr(torch, precision)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), fused=device.type == "cuda")
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp == torch.float16)
        torch.manual_seed(1)
        self.batches = [load.batch(device) for _ in range(load.batches)]
        self.steps = 0

    def __call__(self) -> Tensor:
        given, right = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        with torch.autocast(self.device.type, self.amp) if self.amp else nullcontext():
            loss = self.load.loss(self.model(*given), right)
        take_plain_step(loss, self.optimiser, scaler=self.scaler)
        return loss.detach()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_sides(calls: list[Callable[[], object]], device: torch.device, seconds: float) -> list[list[float]]:
    """Return the milliseconds of a call of each side, part by part; the sides take turns for so many seconds."""
    for _ in range(WARM_STEPS):
        for call in calls:
            call()
    wait(device)
    began = Stopwatch()
    for call in calls:
        call()
    wait(device)
    many = max(1, math.ceil(0.02 * len(calls) / began.seconds))  # parts of 20 ms
    times: list[list[float]] = [[] for _ in calls]
    began, part = Stopwatch(), 0
    while part < 3 or began.seconds < seconds:
        for i in [(part + k) % len(calls) for k in range(len(calls))]:
            start = Stopwatch()
            for _ in range(many):
                calls[i]()
            wait(device)
            times[i].append(1e3 * start.seconds / many)
        part += 1
    return times


def time_steps(side: Side, steps: int, device: torch.device) -> float:
    """Return the milliseconds of a step, for the next ones of a side."""
    wait(device)
    began = Stopwatch()
    for _ in range(steps):
        side()
    wait(device)
    return 1e3 * began.seconds / steps


def summarize(times: list[list[float]], names: list[str]) -> dict[str, float]:
    """Return the median time of each side, and the first's relative to each other, part by part."""
    row = {f"{name}_ms": round(statistics.median(one), 3) for name, one in zip(names, times, strict=True)}
    for name, one in zip(names[1:], times[1:], strict=True):
        row[f"{name}_ratio"] = round(statistics.median(a / b for a, b in zip(times[0], one, strict=True)), 3)
    return row


def compare(name: str, precision: str, given: argparse.Namespace) -> dict[str, object]:
    """Return the times of a workload: torch, ours, and torch once more."""
    load, device = WORKLOADS[name], torch.device(given.device)
    torch.manual_seed(0)
    sides = [Side(load, Layers(home), device, precision) for home in (nn, seqloom, nn)]
    for side in sides[1:]:
        side.model.load_state_dict(sides[0].model.state_dict())
        side.batches = sides[0].batches
    first = []
    for side in sides:
        torch.manual_seed(2)
        first.append(float(side()))
    row: dict[str, object] = {"workload": name, "about": load.about, "precision": precision}
    if load.first:
        for side, of in zip(sides, ("torch", "ours", "control"), strict=True):
            row[f"first_{of}_ms"] = round(time_steps(side, load.first, device), 3)
    row |= summarize(time_sides(list(sides), device, given.seconds), ["torch", "ours", "control"])
    return row | {"torch_loss": round(first[0], 5), "our_loss": round(first[1], 5)}


def list_layers(given: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Yield cell, units, rows, steps, precision and whether it trains, of single layers."""
    for precision, cell, H in product(given.precisions, ("GRU", "LSTM"), given.units):
        for B, T, train in product(given.rows, given.steps, (True, False)):
            yield cell, H, B, T, precision, train


def compare_layer(case: tuple[Any, ...], given: argparse.Namespace, *, times_it: bool = True) -> dict[str, object]:
    """Return the times of one layer in eager calls: torch's, cuDNN behind our call, and our kernels."""
    cell, H, B, T, precision, train = case
    device, amp = torch.device("cuda"), None if precision == "float32" else getattr(torch, precision)
    x = torch.randn(T, B, H, device=device, requires_grad=train)
    calls: list[Callable[[], object]] = []

    def add(make: Callable[..., nn.Module], **settings: Any) -> None:
        layer = make(H, H, **settings).to(device)
        weights = [*layer.parameters(), x]

        def call() -> None:
            with torch.autocast("cuda", amp) if amp else nullcontext(), torch.set_grad_enabled(train):
                y, _ = layer(x)
            if train:
                torch.autograd.backward(y, torch.ones_like(y))
                for w in weights:
                    w.grad = None

        calls.append(call)

    add(getattr(nn, cell))
    add(getattr(seqloom, cell), kernel="aten")
    row: dict[str, object] = dict(zip(("cell", "units", "rows", "steps", "precision", "trains"), case, strict=True))
    with mock.patch.object(heuristics, "CUDNN_FASTER", ()):
        add(getattr(seqloom, cell))
        calls[2]()
    if not times_it:
        return row
    return row | summarize(time_sides(calls, device, given.seconds), ["torch", "cudnn", "own"])


def prepare(given: argparse.Namespace) -> None:
    """Compile the kernels of everything in several processes, which fill the cache."""
    words = sys.argv[1:]
    own = [w for i, w in enumerate(words) if not w.startswith("--json") and words[max(0, i - 1)] != "--json"]
    started = [subprocess.Popen([*start_again(), *own, "--part", str(i)]) for i in range(given.prepare)]
    for process in started:
        process.wait()


def compile_part(given: argparse.Namespace, cases: list[Any]) -> None:
    """Run every case of this process's part once."""
    for case in cases[given.part :: given.prepare]:
        if given.layers:
            compare_layer(case, given, times_it=False)
        else:
            side = Side(WORKLOADS[case[0]], Layers(seqloom), torch.device(given.device), case[1])
            time_steps(side, 1 + side.load.first, side.device)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--workloads", nargs="*", help="some of them; default: all on a GPU, the small ones on a CPU")
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a workload, after its warm-up")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin none after so many seconds")
    parser.add_argument("--prepare", type=int, default=0, help="compile in so many processes first")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--layers", action="store_true", help="single layers, on a GPU")
    parser.add_argument("--units", nargs="*", type=int, default=[64, 128, 256, 512, 1024])
    parser.add_argument("--rows", nargs="*", type=int, default=[4, 32, 256])
    parser.add_argument("--steps", nargs="*", type=int, default=[1, 4, 10, 20, 35])
    given = parser.parse_args()
    is_gpu = given.device == "cuda"
    given.precisions = given.precisions or (list(PRECISIONS) if is_gpu else ["float32"])
    names = given.workloads or (list(WORKLOADS) if is_gpu else list(SMALL))
    torch.set_flush_denormal(True)
    cases: list[Any] = list(list_layers(given)) if given.layers else list(product(names, given.precisions))
    if given.part is not None:
        return compile_part(given, cases)
    began = Stopwatch()
    if given.prepare:
        prepare(given)
        print(f"compiled in {began.seconds:.0f} s", flush=True)
    rows: list[dict[str, object]] = []
    for case in cases:
        if began.seconds > given.limit:
            break
        try:
            rows.append(compare_layer(case, given) if given.layers else compare(*case, given))
        except Exception as error:
            rows.append({"case": str(case), "failed": f"{type(error).__name__}: {error}"[:300]})
        print_row(rows[-1])
        write_record(given.json, threads=torch.get_num_threads(), rows=rows)
    ratios = [float(row["ours_ratio"]) for row in rows if "ours_ratio" in row]
    if ratios:
        print(f"least {min(ratios):.2f}, geometric mean {statistics.geometric_mean(ratios):.2f}")
    return None

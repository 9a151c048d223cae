"""Time long sequences in parallel chunks and as a whole: python -m research parallel [--device cuda] [--text FILE].

Networks are trained on six tasks first, because how fast a recurrence forgets its state depends on what it has
learned: `text` (the next byte), `filter` (a mixture of slow and fast averages of noise), `latch` (the last of rare
signals), `amp` (a driven, filtered guitar string), `adding` (the sum of two marked numbers in every hundred steps) and
`parity` (of all bits so far, which is never forgotten). Then one long sequence runs with parallel="never" and "auto",
in turns. Errors are differences to the same layer in float64: of the outputs in units of the largest, of the gradients
of all weights in units of their norm. `--shapes` times untrained layers of several sizes instead, `--course` counts the
passes during a training, and `--rows` times chunks of explicit lengths on a CPU.
"""

import argparse
import copy
import gzip
import math
import statistics
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom
from research.record import Stopwatch, build_parser, print_row, write_record
from research.speed.workloads import time_sides
from seqloom.kernels.parallel.experience import recall
from seqloom.lab.training.update import Update

WIDTH = 64
WARM = 6  # calls of a layer before it is timed
EPISODE = 100  # steps of an episode of the adding task


class CoupledCell(seqloom.Cell, name="coupled"):
    """A user's own cell: one gate keeps, the rest of it writes."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, 2 * hidden_size), nn.Linear(hidden_size, 2 * hidden_size)

    def project(self, x: Tensor) -> Tensor:
        return self.W(x)

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        keep, write = (x + self.U(h)).chunk(2, -1)
        keep = torch.sigmoid(keep)
        h = keep * h + (1 - keep) * torch.tanh(write)
        return h, (h,)


CELLS = ("gru", "lstm", "attn_rnn", "slstm", "coupled")


def read_text(file: Path | None) -> Tensor:
    if file is None:
        raise SystemExit("the task `text` needs --text FILE, such as tiny_shakespeare's input.txt.gz")
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long() % 128


def draw_text(text: Tensor, T: int, B: int) -> tuple[Tensor, Tensor]:
    at = torch.randint(len(text) - T - 1, (B,))
    rows = text[at + torch.arange(T + 1).unsqueeze(1)]
    return rows[:-1], rows[1:]


def draw_filter(T: int, B: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(T, B, 1)
    rates = torch.tensor([0.3, 0.05, 0.01])
    averages, out = torch.zeros(B, 3), []
    for t in range(T):
        averages = averages + rates * (x[t] - averages)
        out.append((averages / rates.sqrt()).sum(-1, keepdim=True))
    return x, torch.stack(out)


def draw_latch(T: int, B: int) -> tuple[Tensor, Tensor]:
    signal = torch.randint(0, 2, (T, B, 1)) * 2.0 - 1
    x = signal * (torch.rand(T, B, 1) < 0.03)
    x[0] = signal[0]
    last = torch.arange(T).view(-1, 1, 1).where(x != 0, 0).cummax(0).values
    return x + 0.05 * torch.randn(T, B, 1), x.gather(0, last)


def draw_amp(T: int, B: int) -> tuple[Tensor, Tensor]:
    t = torch.arange(T).unsqueeze(1) / 44_100
    decay = torch.exp(-8 * ((t + torch.rand(B)) % 0.5))
    x = decay * sum(torch.sin(2 * math.pi * (82 + 250 * torch.rand(B)) * k * t) / k for k in (1, 2, 3))
    driven, low, out = torch.tanh(6 * x), torch.zeros(B), []
    for t_ in range(T):
        low = low + 0.2 * (driven[t_] - low)
        out.append(low)
    return x.unsqueeze(-1), torch.stack(out).unsqueeze(-1)


def draw_adding(T: int, B: int) -> tuple[Tensor, Tensor]:
    numbers, marks = torch.rand(T, B), torch.zeros(T, B)
    target = torch.zeros(T, B)
    for begin in range(0, T - EPISODE + 1, EPISODE):
        for half in (0, EPISODE // 2):
            at = begin + half + torch.randint(EPISODE // 2 - 1, (B,))
            marks[at, torch.arange(B)] = 1
        part = slice(begin, begin + EPISODE)
        target[begin + EPISODE - 1] = (numbers[part] * marks[part]).sum(0)
    return torch.stack([numbers, marks], -1), target.unsqueeze(-1)


def draw_parity(T: int, B: int) -> tuple[Tensor, Tensor]:
    bits = torch.randint(0, 2, (T, B, 1)).float()
    return bits, bits.cumsum(0) % 2


DRAW: dict[str, Callable[[int, int], tuple[Tensor, Tensor]]] = {
    "filter": draw_filter,
    "latch": draw_latch,
    "amp": draw_amp,
    "adding": draw_adding,
    "parity": draw_parity,
}
TASKS = ("text", *DRAW)


class Network(nn.Module):
    """Input, one recurrent layer, head."""

    def __init__(self, task: str, cell: str, hidden: int) -> None:
        super().__init__()
        inputs = {"adding": 2}.get(task, 1)
        self.enter = nn.Embedding(128, WIDTH) if task == "text" else nn.Linear(inputs, WIDTH)
        self.layer = seqloom.Recurrent(cell, WIDTH, hidden)
        self.head = nn.Linear(hidden, 128 if task == "text" else 1)
        self.is_text, self.only_ends = task == "text", task == "adding"

    def loss(self, x: Tensor, to: Tensor) -> Tensor:
        y = self.head(self.layer(self.enter(x))[0])
        if self.is_text:
            return F.cross_entropy(y.flatten(0, 1), to.flatten())
        if self.only_ends:
            y, to = y[EPISODE - 1 :: EPISODE], to[EPISODE - 1 :: EPISODE]
        return F.mse_loss(y, to)


class Task:
    """Draws sequences of a task; `batches` are drawn once."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name, self.text = name, read_text(given.text) if name == "text" else None
        self.x, self.to = (t.to(given.device) for t in self.draw(given.train_steps, 512))

    def draw(self, T: int, B: int) -> tuple[Tensor, Tensor]:
        return DRAW[self.name](T, B) if self.text is None else draw_text(self.text, T, B)


def train(task: Task, cell: str, given: argparse.Namespace, each: Callable[[int, Network], None] | None = None) -> Any:
    """Return a trained network and its last loss."""
    torch.manual_seed(0)
    net = Network(task.name, cell, given.hidden).to(given.device)
    update = Update(net.parameters(), torch.optim.Adam(net.parameters(), 3e-3), clip=1.0)
    loss = torch.zeros(())
    for i in range(given.updates):
        if each is not None:
            each(i, net)
        rows = torch.randint(task.x.shape[1], (64,), device=task.x.device)
        loss = net.loss(task.x[:, rows], task.to[:, rows])
        update.take_step(loss)
    return net, float(loss.detach())


def make_pair(layer: nn.Module, dtype: torch.dtype, parallel: str | int = "auto") -> list[Any]:
    """Return copies of a layer that run as a whole and in chunks."""
    pair = [copy.deepcopy(layer).to(dtype) for _ in range(2)]
    for one, setting in zip(pair, ("never", parallel), strict=True):
        one.parallel = setting
    return pair


def run_both(layer: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs, and the gradients of all weights."""
    y, _ = layer(x)
    return y.detach(), [g.detach() for g in torch.autograd.grad(y, list(layer.parameters()), dy)]


def find_errors(found: tuple[Tensor, list[Tensor]], right: tuple[Tensor, list[Tensor]]) -> tuple[float, float]:
    """Return the largest difference of the outputs and of the gradients, relative."""
    y = float((found[0].double() - right[0]).abs().max() / right[0].abs().max())
    pairs = zip(found[1], right[1], strict=True)
    return y, max(float((a.double() - b).norm() / b.norm().clamp_min(1e-300)) for a, b in pairs)


def time_pair(pair: list[Any], x: Tensor, dy: Tensor, device: str, seconds: float) -> dict[str, Any]:
    """Return the times of both passes, of the whole sequence and of chunks, and what happened."""
    for _ in range(WARM):  # what earlier calls have shown
        run_both(pair[1], x, dy)
    row: dict[str, Any] = {}
    for name in ("forward", "both"):

        def call(layer: nn.Module, trains: bool = name == "both") -> None:
            if trains:
                run_both(layer, x, dy)
            else:
                with torch.no_grad():
                    layer(x)

        calls = [lambda one=one: call(one) for one in pair]
        whole, chunks = map(statistics.median, time_sides(calls, torch.device(device), seconds))
        row |= {f"{name}_whole_ms": round(whole, 2), f"{name}_ms": round(chunks, 2)}
        row[f"{name}_gain"] = round(whole / chunks, 2)
    known = recall(pair[1].cell_at(0))
    if known.failed:
        return row | {"failed": known.failed}
    return row | {"chunk": known.steps, "passes": known.passes, "back": known.back, "defect": known.defect}


def measure_task(task: Task, cell: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each type of one trained network."""
    net, loss = train(task, cell, given)
    torch.manual_seed(1)
    with torch.no_grad():
        x = net.enter(task.draw(given.steps, given.batch)[0].to(given.device))
    dy = torch.randn(*x.shape[:2], given.hidden, device=x.device)
    short, right = given.error_steps, None
    for dtype in (torch.float32, torch.bfloat16):
        pair = make_pair(net.layer, dtype)
        for one in pair:  # values that both types have
            for p in one.parameters():
                p.data = p.data.bfloat16().to(dtype)
        x16, dy16 = x.bfloat16(), dy.bfloat16()
        if right is None:
            exact = make_pair(pair[0], torch.float64)[0]
            right = run_both(exact, x16[:short].double(), dy16[:short].double())
        row: dict[str, Any] = {"task": task.name, "cell": cell, "type": str(dtype).removeprefix("torch.")}
        row |= {"loss": round(loss, 4)} | time_pair(pair, x16.to(dtype), dy16.to(dtype), given.device, given.seconds)
        pair[1].parallel = row.get("chunk", "auto")
        for name, one in zip(("whole_", ""), pair, strict=True):
            errors = find_errors(run_both(one, x16[:short].to(dtype), dy16[:short].to(dtype)), right)
            row |= {f"{name}error": errors[0], f"{name}gradient_error": errors[1]}
        yield row


def measure_shapes(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each size of an untrained layer."""
    shapes = ((65536, 1, 128), (16384, 1, 256), (16384, 1, 512), (4096, 1, 128), (4096, 16, 128), (4096, 4, 256))
    shapes = (*shapes, (8192, 4, 256), (16384, 16, 128), (2048, 16, 128))
    for cell, (T, B, H), dtype in product(("gru", "lstm", "attn_rnn"), shapes, (torch.float32, torch.bfloat16)):
        torch.manual_seed(0)
        pair = make_pair(seqloom.Recurrent(cell, WIDTH, H).to(given.device), dtype)
        x, dy = (torch.randn(T, B, n, device=given.device, dtype=dtype) for n in (WIDTH, H))
        row = {"cell": cell, "T": T, "B": B, "H": H, "type": str(dtype).removeprefix("torch.")}
        yield row | time_pair(pair, x, dy, given.device, given.seconds)


def measure_rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each size of an untrained layer and number of chunks, one for each thread or several."""
    for cell, H, B in product(("gru", "lstm"), (32, 128, 256), (1, 4)):
        for many in (1, 2, 4):
            torch.manual_seed(0)
            steps = given.steps // (many * torch.get_num_threads())
            pair = make_pair(seqloom.Recurrent(cell, WIDTH, H), torch.float32, steps)
            x, dy = torch.randn(given.steps, B, WIDTH), torch.randn(given.steps, B, H)
            yield {"cell": cell, "B": B, "H": H} | time_pair(pair, x, dy, "cpu", given.seconds)


def follow(task: Task, cell: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the passes that chunks of 256 steps need during a training."""
    x = task.draw(16384, 1)[0].to(given.device)
    rows: list[dict[str, Any]] = []

    def count(i: int, net: Network) -> None:
        if i % 25 == 0:
            with torch.no_grad():
                layer = make_pair(net.layer, torch.float32, 256)[1]
                layer(net.enter(x))
            known = recall(layer.cell_at(0))
            row = {"task": task.name, "cell": cell, "update": i, "passes": 0 if known.failed else known.passes}
            rows.append(row | {"failed": known.failed})

    train(task, cell, given, count)
    yield from rows


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--text", type=Path, help="a text for the task of this name; .gz or plain")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, default=65_536, help="of the long sequence")
    parser.add_argument("--error-steps", type=int, default=16_384, help="for which errors are measured")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--train-steps", type=int, default=300)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each pair of times")
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--course", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--limit", type=float, default=math.inf, help="stop after so many seconds")
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    began, rows = Stopwatch(), []

    def list_rows() -> Iterator[dict[str, Any]]:
        if given.shapes:
            yield from measure_shapes(given)
        elif given.rows:
            yield from measure_rows(given)
        else:
            for name in given.tasks:
                task = Task(name, given)
                for cell in given.cells:
                    yield from follow(task, cell, given) if given.course else measure_task(task, cell, given)

    for row in list_rows():
        rows.append(row)
        print_row(row)
        write_record(given.json, threads=torch.get_num_threads(), rows=rows)
        if began.seconds > given.limit:
            break

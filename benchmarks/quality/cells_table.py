"""Sixteen cells on four tasks in one table: names, digits, adding and the register, with the same budget for each.

python benchmarks/quality/cells_table.py --device cuda --data .carry/data --prepare 16 --json FILE

Each model is an input layer of 32 features, one recurrent layer with about as many weights as a GRU of 64 units, and a
linear head. Every cell has the same steps, batch and optimiser. Four learning rates are tried with two seeds and half
of the steps; if the best of any cell lies at an end of the grid, all cells get the next rate too. The rate with the
best mean validation loss is trained with five new seeds, and only these read the test set. Rows are written as groups
of trainings end. `--resume FILE` takes the rows of an earlier record with the same settings and trains what is missing.

- names: the language of a surname (18), letter by letter; accuracy
- digits: 8 x 8 pixels, one at a time; accuracy
- adding: the sum of two marked numbers among 100; mean squared error (always 1: 0.167)
- register: a number modulo 5 that symbols keep, load, add and multiply, 40 steps; accuracy (chance: 0.32)
"""

import csv
import gzip
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import build_parser, describe_run

import seqloom
from seqloom.lab.data.synthetic.state import make_state_problem
from seqloom.lab.training.many import Recipe, SmallTraining, train_many

CELLS = (
    *("gru", "lstm", "rnn", "attn_rnn", "ln_gru", "min_gru", "mgu", "janet", "star", "nbr", "peephole_lstm", "slstm"),
    *("cfc", "lem", "cornn", "orthogonal_rnn"),
)
WIDTH, UNITS, MULTIPLE = 32, 64, 16
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # learning rates
START = (2, 6)  # the part of the ladder that is tried first
TUNING_SEEDS = (0, 1)
SEEDS = (10, 11, 12, 13, 14)
GROUP = 24  # trainings at once
LONGEST_NAME = 20


@dataclass(frozen=True)
class Problem:
    """A task: tensors (x, where to read the output or -1 for everywhere, y) of each part, or a function that draws."""

    name: str
    inputs: int  # symbols, or 0 for numbers
    features: int
    outputs: int
    draw: Callable[[torch.Generator, int], tuple[Tensor, ...]]
    valid: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    better: str = "accuracy"


class Model(nn.Module):
    """Input layer, recurrent layer, head; the output is read at one step of each row, or at all."""

    def __init__(self, problem: Problem, cell: str, hidden: int) -> None:
        super().__init__()
        self.symbols = problem.inputs
        self.enter = nn.Embedding(problem.inputs, WIDTH) if problem.inputs else nn.Linear(problem.features, WIDTH)
        self.layer = seqloom.Recurrent(cell, WIDTH, hidden, batch_first=True)
        self.head = nn.Linear(hidden, problem.outputs)

    def forward(self, x: Tensor, at: Tensor | None) -> Tensor:
        y = self.layer(self.enter(x))[0]
        if at is not None:
            y = y.gather(1, at.view(-1, 1, 1).expand(-1, 1, y.shape[-1])).squeeze(1)
        return self.head(y)


def compute_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    x, at, y = batch
    out = model(x, at if at.dim() == 1 else None)
    if y.is_floating_point():
        return F.mse_loss(out, y)
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=-100)


@torch.no_grad()
def evaluate(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[float, float]:
    """Return the loss and the accuracy; for numbers the mean squared error twice."""
    model.eval()
    x, at, y = batch
    loss = float(compute_loss(model, batch))
    if y.is_floating_point():
        return loss, loss
    hits = model(x, at if at.dim() == 1 else None).argmax(-1)[y != -100] == y[y != -100]
    return loss, float(hits.float().mean())


def read_names(folder: Path, device: torch.device) -> Problem:
    with gzip.open(folder / "names_nationality" / "names.csv.gz", "rt") as file:
        rows = [(r["name"][:LONGEST_NAME], r["language"]) for r in csv.DictReader(file)]
    letters = {c: i + 1 for i, c in enumerate(sorted({c for name, _ in rows for c in name}))}
    classes = {c: i for i, c in enumerate(sorted({c for _, c in rows}))}
    x = torch.zeros(len(rows), LONGEST_NAME, dtype=torch.long)
    for i, (name, _) in enumerate(rows):
        x[i, : len(name)] = torch.tensor([letters[c] for c in name])
    at = torch.tensor([max(0, len(name) - 1) for name, _ in rows])
    y = torch.tensor([classes[c] for _, c in rows])
    return from_tensors("names", len(letters) + 1, 1, len(classes), (x, at, y), device)


def read_digits(folder: Path, device: torch.device) -> Problem:
    with gzip.open(folder / "digits" / "digits.csv.gz", "rt") as file:
        rows = torch.tensor([[float(v) for v in row] for row in csv.reader(file)])
    x = rows[:, :64, None] / 16
    return from_tensors("digits", 0, 1, 10, (x, torch.full((len(x),), 63), rows[:, 64].long()), device)


def from_tensors(
    name: str, inputs: int, features: int, outputs: int, data: tuple[Tensor, ...], device: torch.device
) -> Problem:
    """Split 70/15/15 with a fixed seed; batches are rows drawn with replacement."""
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(0))
    a, b = int(0.7 * len(order)), int(0.85 * len(order))
    train, valid, test = (tuple(t[part].to(device) for t in data) for part in (order[:a], order[a:b], order[b:]))

    def draw(random: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        chosen = torch.randint(len(train[0]), (rows,), generator=random, device=device)
        return tuple(t.index_select(0, chosen) for t in train)

    return Problem(name, inputs, features, outputs, draw, valid, test)


def make_adding(device: torch.device, steps: int = 100) -> Problem:
    last = torch.full((), steps - 1, device=device)

    def draw(random: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        v = torch.rand(rows, steps, generator=random, device=device)
        first = torch.randint(steps // 2, (rows, 1), generator=random, device=device)
        second = torch.randint(steps // 2, steps, (rows, 1), generator=random, device=device)
        m = torch.zeros_like(v).scatter(1, torch.cat([first, second], 1), 1.0)
        return torch.stack([v, m], -1), last.expand(rows), (v * m).sum(1, keepdim=True)

    fixed = [draw(torch.Generator(device).manual_seed(s), 2000) for s in (10, 11)]
    return Problem("adding", 0, 2, 1, draw, *fixed, better="error")


def make_register(device: torch.device, steps: int = 40) -> Problem:
    problem = make_state_problem("register")

    def draw(random: torch.Generator, rows: int) -> tuple[Tensor, ...]:
        x, y = problem.draw(random, rows, steps)
        return x, x.new_zeros(rows, 1), y

    fixed = [draw(torch.Generator(device).manual_seed(s), 2000) for s in (10, 11)]
    return Problem("register", problem.symbols, 1, problem.classes, draw, *fixed)


def count_weights(cell: str, hidden: int) -> int:
    return sum(p.numel() for p in seqloom.Recurrent(cell, WIDTH, hidden).parameters())


def choose_hidden(cell: str) -> int:
    """Return the multiple of 16 units whose number of weights is closest to that of the GRU."""
    goal = count_weights("gru", UNITS)
    return min(range(MULTIPLE, 16 * MULTIPLE, MULTIPLE), key=lambda h: abs(count_weights(cell, h) - goal))


def choose_rates(rows: list[dict[str, Any]], task: str) -> dict[str, float]:
    """Return for each cell the rate with the best mean validation loss; a training that failed excludes its rate."""
    losses: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if row["task"] == task and row["part"] == "tune":
            value = row.get("valid", math.inf)
            losses.setdefault((row["cell"], row["rate"]), []).append(value if math.isfinite(value) else math.inf)
    best: dict[str, tuple[float, float]] = {}
    for (cell, rate), values in losses.items():
        mean = sum(values) / len(values)
        if mean < math.inf:
            best[cell] = min(best.get(cell, (math.inf, 0.0)), (mean, rate))
    return {cell: rate for cell, (_, rate) in best.items()}


class Table:
    """Rows of finished trainings, and the trainings that make them."""

    def __init__(self, settings: Any) -> None:
        self.begun, self.settings, self.device = time.monotonic(), settings, torch.device(settings.device)
        self.sizes = {cell: choose_hidden(cell) for cell in settings.cells}
        weights = {cell: count_weights(cell, hidden) for cell, hidden in self.sizes.items()}
        self.record = describe_run(steps=settings.steps, batch=settings.batch, units=self.sizes, weights=weights)
        self.rows: list[dict[str, Any]] = []
        if settings.resume:
            before = json.loads(settings.resume.read_text())
            if (before["steps"], before["batch"]) != (settings.steps, settings.batch):
                raise SystemExit(f"{settings.resume} has {before['steps']} steps of {before['batch']} rows")
            self.rows = [row for row in before["rows"] if "failed" not in row]

    def is_over(self) -> bool:
        return time.monotonic() - self.begun > self.settings.limit

    def train(self, problem: Problem, part: str, wanted: list[tuple[str, float, int]]) -> None:
        """Train (cell, rate, seed) in groups, and add a row for each."""
        key = ("task", "part", "cell", "rate", "seed")
        finished = {tuple(row[k] for k in key) for row in self.rows}
        wanted = [one for one in wanted if (problem.name, part, *one) not in finished]
        steps = self.settings.steps if part == "final" else self.settings.steps // 2
        for first in range(0, len(wanted), GROUP):
            if self.is_over():
                return
            group = wanted[first : first + GROUP]
            trainings = [
                SmallTraining(
                    f"{problem.name}/{cell}/{rate}/{seed}",
                    partial(Model, problem, cell, self.sizes[cell]),
                    lambda random, _: problem.draw(random, self.settings.batch),
                    compute_loss,
                    Recipe(steps, rate),
                    seed,
                )
                for cell, rate, seed in group
            ]
            for one, done in zip(group, train_many(trainings, self.device), strict=True):
                row: dict[str, Any] = dict(zip(key, (problem.name, part, *one), strict=True))
                if done.model is None or done.failed:
                    self.rows.append(row | {"failed": done.failed[:300]})
                    continue
                row |= {"valid": evaluate(done.model, problem.valid)[0], "loss": done.losses[-1]}
                row |= {"skipped": done.skipped} if done.skipped else {}
                if part == "final":
                    row[problem.better] = evaluate(done.model, problem.test)[1]
                self.rows.append(row)
            self.write()
            print(f"{problem.name} {part}: {len(self.rows)} rows, {time.monotonic() - self.begun:.0f} s", flush=True)

    def write(self) -> None:
        if self.settings.json:
            self.settings.json.parent.mkdir(parents=True, exist_ok=True)
            self.settings.json.write_text(json.dumps(self.record | {"rows": self.rows}, indent=0) + "\n")

    def fill(self, problem: Problem) -> None:
        """Tune every cell on one task, widening the grid while the best rate of a cell lies at its end; then train."""
        cells, (low, high) = self.settings.cells, START
        while not self.is_over():
            rates = LADDER[low:high]
            self.train(problem, "tune", [(c, r, s) for r in rates for s in TUNING_SEEDS for c in cells])
            best = choose_rates(self.rows, problem.name)
            wider = (low - (rates[0] in best.values()), high + (rates[-1] in best.values()))
            wider = (max(0, wider[0]), min(len(LADDER), wider[1]))
            if wider == (low, high):
                self.train(problem, "final", [(c, best[c], s) for s in SEEDS for c in cells if c in best])
                return
            low, high = wider


def prepare(settings: Any) -> None:
    """Compile the kernels of all cells in several processes, which fill the cache."""
    command = [sys.executable, __file__, "--device", settings.device, "--data", str(settings.data), "--warm"]
    parts = [settings.cells[i :: settings.prepare] for i in range(settings.prepare)]
    started = [subprocess.Popen([*command, "--cells", *part]) for part in parts if part]
    for process in started:
        process.wait()


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--tasks", nargs="*", default=["names", "register", "adding", "digits"])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no group after this many seconds")
    parser.add_argument("--prepare", type=int, default=0, help="compile in this many processes first")
    parser.add_argument("--warm", action="store_true", help="compile only")
    parser.add_argument("--resume", type=Path, help="record of an earlier run with the same settings")
    settings = parser.parse_args()
    table = Table(settings)
    makers = {
        "names": partial(read_names, settings.data, table.device),
        "digits": partial(read_digits, settings.data, table.device),
        "adding": partial(make_adding, table.device),
        "register": partial(make_register, table.device),
    }
    if settings.prepare:
        prepare(settings)
        print(f"compiled in {time.monotonic() - table.begun:.0f} s", flush=True)
    for task in settings.tasks:
        problem = makers[task]()
        if settings.warm:
            settings.steps = 4
            table.train(problem, "final", [(cell, LADDER[3], 0) for cell in settings.cells])
        else:
            table.fill(problem)
    for row in table.rows:
        if "failed" in row:
            print(row, flush=True)


if __name__ == "__main__":
    main()

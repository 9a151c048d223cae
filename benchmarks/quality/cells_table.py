"""Sixteen cells on four tasks in one table: names, digits, adding and the register, with the same budget for each.

python benchmarks/quality/cells_table.py --device cuda --data .carry/data --json FILE

Each model is an input layer of 32 features, one recurrent layer with about as many weights as a GRU of 64 units, and a
linear head. Every cell has the same steps, batch, optimiser and three learning rates; the rate with the best validation
loss is trained again with two more seeds, and the table has the mean and the range of the three on the test set. Rows
are written as groups of trainings end.

- names: the language of a surname (18), letter by letter; accuracy
- digits: 8 x 8 pixels, one at a time; accuracy
- adding: the sum of two marked numbers among 100; mean squared error (always 1: 0.167)
- register: a number modulo 5 that symbols keep, load, add and multiply, 40 steps; accuracy (chance: 0.32)
"""

import csv
import gzip
import json
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
RATES = (3e-3, 1e-2, 1e-3)
SEEDS = (0, 1, 2)
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


def choose_hidden(cell: str) -> int:
    """Return the multiple of 16 units whose number of weights is closest to that of the GRU."""
    goal = sum(p.numel() for p in seqloom.Recurrent("gru", WIDTH, UNITS).parameters())
    sizes = range(MULTIPLE, 16 * MULTIPLE, MULTIPLE)
    return min(sizes, key=lambda h: abs(sum(p.numel() for p in seqloom.Recurrent(cell, WIDTH, h).parameters()) - goal))


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cells", nargs="*", default=list(CELLS))
    parser.add_argument("--tasks", nargs="*", default=["names", "register", "adding", "digits"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no group after this many seconds")
    settings = parser.parse_args()
    begun, device = time.monotonic(), torch.device(settings.device)
    makers = {
        "names": partial(read_names, settings.data, device),
        "digits": partial(read_digits, settings.data, device),
        "adding": partial(make_adding, device),
        "register": partial(make_register, device),
    }
    sizes = {cell: choose_hidden(cell) for cell in settings.cells}
    record = describe_run(steps=settings.steps, batch=settings.batch, units=sizes)
    rows: list[dict[str, Any]] = []

    def train(problem: Problem, wanted: list[tuple[str, float, int]]) -> None:
        """Train (cell, rate, seed) in groups, and add a row for each."""
        for first in range(0, len(wanted), GROUP):
            if time.monotonic() - begun > settings.limit:
                return
            group = wanted[first : first + GROUP]
            trainings = [
                SmallTraining(
                    f"{problem.name}/{cell}/{rate}/{seed}",
                    partial(Model, problem, cell, sizes[cell]),
                    lambda random, _: problem.draw(random, settings.batch),
                    compute_loss,
                    Recipe(settings.steps, rate),
                    seed,
                )
                for cell, rate, seed in group
            ]
            for (cell, rate, seed), done in zip(group, train_many(trainings, device), strict=True):
                row: dict[str, Any] = {"task": problem.name, "cell": cell, "rate": rate, "seed": seed}
                if done.model is None:
                    rows.append(row | {"failed": done.failed[:200]})
                    continue
                valid, test = evaluate(done.model, problem.valid), evaluate(done.model, problem.test)
                rows.append(row | {"valid": valid[0], problem.better: test[1], "loss": done.losses[-1]})
            if settings.json:
                settings.json.parent.mkdir(parents=True, exist_ok=True)
                settings.json.write_text(json.dumps(record | {"rows": rows}, indent=0) + "\n")
            print(f"{problem.name}: {len(rows)} trainings, {time.monotonic() - begun:.0f} s", flush=True)

    for task in settings.tasks:
        problem = makers[task]()
        train(problem, [(cell, rate, SEEDS[0]) for rate in RATES for cell in settings.cells])
        mine = [row for row in rows if row["task"] == task and "valid" in row and row["valid"] == row["valid"]]
        best = {
            cell: min((row for row in mine if row["cell"] == cell), key=lambda row: row["valid"])["rate"]
            for cell in {row["cell"] for row in mine}
        }
        train(problem, [(cell, best[cell], seed) for seed in SEEDS[1:] for cell in settings.cells if cell in best])


if __name__ == "__main__":
    main()

"""Small tasks for trainings that run many at once on a GPU.

- names: the language of a surname (18), letter by letter; accuracy
- digits: 8 x 8 pixels, one at a time; accuracy
- adding: the sum of two marked numbers among 100; mean squared error (always 1: 0.167)
- register: a number modulo 5 that symbols keep, load, add and multiply, 40 steps; accuracy (chance: 0.32)
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom
from research.studies.data.state_problems import make_state_problem

WIDTH = 32  # features of the input layer
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
    is_ragged: bool = False  # whether rows end where they are read


class Model(nn.Module):
    """Input layer, recurrent layer, head; the output is read at one step of each row, or at all."""

    def __init__(self, problem: Problem, make_layer: Callable[[], seqloom.Recurrent]) -> None:
        super().__init__()
        self.is_ragged = problem.is_ragged
        self.enter = nn.Embedding(problem.inputs, WIDTH) if problem.inputs else nn.Linear(problem.features, WIDTH)
        self.layer = make_layer()
        self.head = nn.Linear(self.layer.output_size, problem.outputs)

    def forward(self, x: Tensor, at: Tensor | None) -> Tensor:
        y = self.layer(self.enter(x), lengths=at + 1 if self.is_ragged and at is not None else None)[0]
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
    return replace(from_tensors("names", len(letters) + 1, 1, len(classes), (x, at, y), device), is_ragged=True)


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


def make_problem(task: str, folder: Path, device: torch.device) -> Problem:
    """Return a task by its name; `folder` has the data of names and digits."""
    makers = {
        "names": partial(read_names, folder),
        "digits": partial(read_digits, folder),
        "adding": make_adding,
        "register": make_register,
    }
    return makers[task](device)

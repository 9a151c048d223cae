"""Problems generated on the fly: endless training, fixed validation and test sets, exact seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.task import (
    PAD,
    SPECIALS,
    Batch,
    Features,
    Input,
    Pass,
    Split,
    Target,
    Task,
    Tokens,
    list_rows,
    write_record,
)
from seqloom.lab.kinds.forms import find_kind

FIXED_BLOCK = 100  # examples of a fixed set that are generated together
FIRST_SYMBOL = len(SPECIALS)  # id of the first symbol


@dataclass(frozen=True)
class Examples:
    """Some examples; `lengths` is None if all are as long as x."""

    x: Tensor
    y: Tensor
    lengths: Tensor | None = None
    y_lengths: Tensor | None = None


@dataclass(frozen=True)
class Problem:
    """A problem: its name, spaces, and the function that generates examples."""

    name: str
    input: Input
    target: Target
    make: Callable[[torch.Generator, int], Examples]
    steps: int  # length of the longest example
    options: dict[str, Any]
    trivial: str = ""  # the score of a trivial solution, for comparison


class Synthetic(Task):
    """A `Problem` as a task. Batch i of training depends only on (seed, epoch, i)."""

    def __init__(self, problem: Problem, valid: int = 1_000, test: int = 10_000, onehot: bool = False) -> None:
        self.problem, self.onehot, self.steps = problem, onehot, problem.steps
        self.options = problem.options | {"valid": valid, "test": test}
        if onehot:
            self.options["onehot"] = True
        if min(valid, test) < 1:
            raise UserError(f"valid and test must be at least 1, got valid={valid}, test={test}")
        key = json.dumps([problem.name, self.options], sort_keys=True)
        sizes = {"train": None, "valid": valid, "test": test}
        splits = {
            name: Split(size, hashlib.sha256(f"{name} {key}".encode()).hexdigest()[:32]) for name, size in sizes.items()
        }
        space = problem.input
        if onehot and isinstance(space, Tokens):
            space = Features(tuple(f"symbol_{i}" for i in range(space.size - FIRST_SYMBOL)))
        super().__init__(problem.name, find_kind(problem.target.as_target), space, problem.target, splits)
        if problem.trivial:
            self.notes.say(f"without a model: {problem.trivial}")

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        size = self.choose_batch_size(one)
        for number in itertools.count(skip) if one.split == "train" else ():
            examples = self.problem.make(_make_generator("train", one.seed, one.epoch, number), size)
            yield self._batch(examples, torch.arange(number * size, (number + 1) * size))
        total = self.splits[one.split].size or 0
        for start in range(skip * size, total, size):
            yield self._fixed_batch(one.split, start, min(start + size, total))

    def _fixed_batch(self, split: str, start: int, end: int) -> Batch:
        """Return examples start .. end of a fixed set, the same for every batch size."""
        first, last = start // FIXED_BLOCK, -(-end // FIXED_BLOCK)
        blocks = [self.problem.make(_make_generator(split, 0, 0, i), FIXED_BLOCK) for i in range(first, last)]
        wanted = slice(start - first * FIXED_BLOCK, end - first * FIXED_BLOCK)
        columns: dict[str, Any] = {}
        for name in ("x", "y", "lengths", "y_lengths"):
            parts = [getattr(block, name) for block in blocks]
            columns[name] = None if parts[0] is None else torch.cat(_pad_alike(parts))[wanted]
        return self._batch(Examples(**columns), torch.arange(start, end))

    def _batch(self, examples: Examples, rows: Tensor) -> Batch:
        x = examples.x
        lengths = torch.full((len(x),), x.shape[1]) if examples.lengths is None else examples.lengths
        if self.onehot and not x.is_floating_point():
            x = F.one_hot((x - FIRST_SYMBOL).clamp(min=0), self.input.size).float() * (x >= FIRST_SYMBOL).unsqueeze(-1)
        return Batch(x, lengths, rows, examples.y, examples.y_lengths)

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Encode rows of ids or of steps, as the problem generates them."""
        kind = torch.long if isinstance(self.problem.input, Tokens) else torch.float32
        tensors = [torch.as_tensor(row, dtype=kind) for row in rows]
        x = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD)
        batch = self._batch(Examples(x, x, torch.tensor([len(t) for t in tensors])), torch.arange(len(rows)))
        return replace(batch, y=None)

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        rows = list_rows(predictions, lengths)
        if self.target.as_target not in ("class", "tags"):
            return rows
        names: Sequence[str] = getattr(self.target, "names", ())
        return [[names[k] for k in row] if isinstance(row, list) else names[row] for row in rows]

    def save(self, folder: Path | str) -> None:
        write_record(folder, {"task": self.problem.name, "options": self.options})


def _make_generator(*key: object) -> torch.Generator:
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _pad_alike(parts: list[Tensor]) -> list[Tensor]:
    """Pad parts at the end to the same length; only ids vary in length, and PAD is 0."""
    if parts[0].dim() < 2:
        return parts
    longest = max(part.shape[1] for part in parts)
    return [F.pad(part, (0, 0) * (part.dim() - 2) + (0, longest - part.shape[1])) for part in parts]


def draw_symbols(random: torch.Generator, shape: tuple[int, ...], count: int) -> Tensor:
    """Draw ids of `count` equally likely symbols."""
    return torch.randint(FIRST_SYMBOL, FIRST_SYMBOL + count, shape, generator=random)


def check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"{name} must be at least {least}, got {value}")

"""Trials whose conditions are corpora of their own, each with its model and its parameter budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.studies.support.conditions import TEST, VALID, Condition, Settings
from seqloom.lab.studies.support.trials import Batch, Draw, Trials

ROWS = 200  # scored at once
TRAIN = "train"

Told = TypeVar("Told", bound=Settings)


@dataclass(frozen=True, eq=False)
class Corpus:
    """By split, tensors of N rows each, in the order in which the model's loss takes them; and what ids mean."""

    parts: dict[str, Batch]
    words: tuple[list[str], ...] = ()

    @classmethod
    def cut(cls, rows: Batch, valid: int, test: int, words: tuple[list[str], ...] = ()) -> Corpus:
        """Shuffled, the same way every time; the test rows first."""
        order = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(0))
        edges = {TEST: (0, test), VALID: (test, test + valid), TRAIN: (test + valid, len(order))}
        parts = {name: tuple(t[order[a:b]] for t in rows) for name, (a, b) in edges.items()}
        if not len(parts[TRAIN][0]):
            raise UserError(f"{len(order)} rows are too few for {test} test and {valid} validation rows")
        return cls(parts, words)


class Corpora(Trials[Told]):
    """A subclass writes `corpus`, `build`, and `tally`; conditions' tasks say "budget", of all weights."""

    def corpus(self, condition: Condition) -> Corpus:
        raise NotImplementedError

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """For each metric a sum and what it is of; called without gradients."""
        raise NotImplementedError

    def read(self, condition: Condition) -> Corpus:
        """The corpus, on the device, read once."""
        held: dict[str, Corpus] = self.__dict__.setdefault("_held", {})
        if condition.name not in held:
            found = self.corpus(condition)
            parts = {name: tuple(t.to(self.device) for t in part) for name, part in found.parts.items()}
            held[condition.name] = Corpus(parts, found.words)
        return held[condition.name]

    def draw(self, condition: Condition) -> Draw:
        data, batch = self.read(condition).parts[TRAIN], self.settings.batch

        def draw(random: torch.Generator, device: torch.device) -> Batch:
            rows = torch.randint(len(data[0]), (batch,), generator=random, device=device)
            return tuple(t.index_select(0, rows) for t in data)

        return draw

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        data = self.read(condition).parts[split]
        sums: dict[str, tuple[float, float]] = {}
        for begin in range(0, len(data[0]), ROWS):
            for name, (value, of) in self.tally(model, tuple(t[begin : begin + ROWS] for t in data)).items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(value), before[1] + float(of))
        return {name: value / of for name, (value, of) in sums.items()}

    def budget(self, condition: Condition) -> int:
        """Each corpus has its own: tables of words differ."""
        return int(condition.task["budget"])

    def caption(self) -> str:
        each = "as many trained parameters on each corpus, tables of words counted"
        return super().caption().replace(f"{self.settings.budget:,} trained parameters", each)

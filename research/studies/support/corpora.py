"""Trials in which every condition has its own corpus, model and parameter budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from research.studies.support.conditions import TEST, VALID, Condition, TrialSettings
from research.studies.support.contenders import FUSED, count_trained, find_hidden_size
from research.studies.support.trials import Draw, Tensors, Trials
from seqloom.core.errors import UserError

ROWS = 200  # rows scored at once
TOLERANCE = 0.1  # share of the budget by which a hidden size that suits a kernel may miss it
TRAIN = "train"

S = TypeVar("S", bound=TrialSettings)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tensors of N rows per split, in the order that the loss takes them, and the words by id."""

    parts: dict[str, Tensors]
    words: tuple[list[str], ...] = ()

    @classmethod
    def split(cls, rows: Tensors, valid: int, test: int, words: tuple[list[str], ...] = ()) -> Corpus:
        """Shuffle with a fixed seed and split the rows: test, validation, training."""
        order = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(0))
        edges = {TEST: (0, test), VALID: (test, test + valid), TRAIN: (test + valid, len(order))}
        parts = {name: tuple(t[order[a:b]] for t in rows) for name, (a, b) in edges.items()}
        if not len(parts[TRAIN][0]):
            raise UserError(f"{len(order)} rows are too few for {test} test and {valid} validation rows")
        return cls(parts, words)


class Corpora(Trials[S]):
    """A subclass defines `corpus`, `build` and `tally`; the task of a condition has "budget", for all weights."""

    def corpus(self, condition: Condition) -> Corpus:
        raise NotImplementedError

    def tally(self, model: nn.Module, batch: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        """Return (sum, count) for each metric; called without gradients."""
        raise NotImplementedError

    def read(self, condition: Condition) -> Corpus:
        """Return the corpus on the device; it is read once."""
        held: dict[str, Corpus] = self.__dict__.setdefault("_held", {})
        if condition.name not in held:
            corpus = self.corpus(condition)
            parts = {name: tuple(t.to(self.device) for t in part) for name, part in corpus.parts.items()}
            held[condition.name] = Corpus(parts, corpus.words)
        return held[condition.name]

    def draw(self, condition: Condition) -> Draw:
        data, batch = self.read(condition).parts[TRAIN], self.settings.batch

        def draw(random: torch.Generator, device: torch.device) -> Tensors:
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
        """Return the budget of the corpus; word embeddings differ between corpora."""
        return int(condition.task["budget"])

    def choose_size(self, model: str, condition: Condition) -> int:
        """Return a hidden size that suits the kernels, or the next multiple of 16 if that misses the budget by far."""
        size, build, budget = (
            super().choose_size(model, condition),
            self.builder(model, condition),
            self.budget(condition),
        )
        if self.multiple(model) <= FUSED or abs(count_trained(build(size)) - budget) <= TOLERANCE * budget:
            return size
        return find_hidden_size(build, budget, FUSED)

    def caption(self) -> str:
        each = "the same number of trained parameters per corpus, word embeddings included"
        text = super().caption().replace(f"{self.settings.budget:,} trained parameters", each)
        finer = f"at other sizes; multiples of {FUSED} if those miss the number by more than {TOLERANCE:.0%})"
        return text.replace("at other sizes)", finer)

"""One budget of parameters for all models: the width of each follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from seqloom.lab.compare.candidates import Candidate
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.training.model import build
from seqloom.lab.training.settings import TrainSettings

MULTIPLE = 8  # of which widths are multiples, so that attention heads fit and vectors fill
WIDEST = 2048
EXAMPLES = ((2_000, 20_000), (20_000, 50_000))  # up to so many training examples, so many parameters
MOST = 100_000
EMBEDDING = 64
DECODERS = ("transformer", "linformer")  # as wide as their embedding


@dataclass(frozen=True)
class Size:
    """A model's width, all its parameters, and those outside of tables that have a row for each token."""

    hidden: int
    parameters: int
    core: int


def usual_parameters(task: Task) -> int:
    """More for more data, and no more than two cores train in minutes."""
    examples = task.splits["train"].size
    if task.kind in ("generate", "translate") or examples is None:
        return MOST
    return next((parameters for most, parameters in EXAMPLES if examples <= most), MOST)


def size(task: Task, candidate: Candidate, budget: int) -> Size:
    """The multiple of 8 whose model comes nearest to this many parameters, tables left out."""

    def count(k: int) -> Size:
        return measured(task, candidate, k * MULTIPLE)

    low, high = 1, 2
    while count(high).core < budget and high * MULTIPLE < WIDEST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle).core < budget else (low, middle)
    return min((count(low), count(high)), key=lambda found: abs(found.core - budget))


def embedding(kind: str, candidate: Candidate, hidden: int) -> int:
    """One width for all, but for models whose decoder has it."""
    return hidden if kind == "translate" and candidate.model in DECODERS else EMBEDDING


def measured(task: Task, candidate: Candidate, hidden: int) -> Size:
    wide = embedding(task.kind, candidate, hidden)
    settings = TrainSettings(model=candidate.model, layers=candidate.layers, hidden=hidden, embedding=wide)
    with torch.random.fork_rng(devices=[]):
        model = build(task, settings)
    every = sum(p.numel() for p in model.parameters())
    return Size(hidden, every, every - sum(p.numel() for p in _tables(task, model)))


def _tables(task: Task, model: nn.Module) -> list[nn.Parameter]:
    """Embeddings, and the head where it says tokens."""
    words = task.target.size if isinstance(task.target, Tokens) else None
    found: dict[int, nn.Parameter] = {}
    for module in model.modules():
        head = isinstance(module, nn.Linear) and words is not None and module.out_features in (words, words - 1)
        if isinstance(module, nn.Embedding) or head:
            found |= {id(p): p for p in module.parameters()}
    return list(found.values())

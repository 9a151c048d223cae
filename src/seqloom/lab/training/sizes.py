"""The width of each model, chosen so that all models have about the same number of parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.candidates import Candidate
from seqloom.lab.training.model import build

WIDTH_MULTIPLE = 8  # so that attention heads divide the width and SIMD vectors are full
WIDEST = 2048
PARAMETERS = ((2_000, 20_000), (20_000, 50_000))  # (largest number of training examples, parameters)
MOST_PARAMETERS = 100_000  # what two cores train in minutes
EMBEDDING = 64
DECODERS = ("transformer", "linformer")  # their embedding must be as wide as the model


@dataclass(frozen=True)
class Size:
    """A model's width, its number of parameters, and that outside embeddings and output layers over tokens."""

    hidden: int
    parameters: int
    core: int


def default_parameters(task: Task) -> int:
    """Return the parameter budget of each model: larger for more data."""
    examples = task.splits["train"].size
    if kind_of(task).predicts_text or examples is None:
        return MOST_PARAMETERS
    return next((parameters for most, parameters in PARAMETERS if examples <= most), MOST_PARAMETERS)


def fit_size(task: Task, candidate: Candidate, budget: int) -> Size:
    """Find the width, a multiple of 8, whose core parameters come closest to the budget."""

    def size(k: int) -> Size:
        return measure_size(task, candidate, k * WIDTH_MULTIPLE)

    low, high = 1, 2
    while size(high).core < budget and high * WIDTH_MULTIPLE < WIDEST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle).core < budget else (low, middle)
    return min((size(low), size(high)), key=lambda size: abs(size.core - budget))


def embedding_size(kind: Kind, candidate: Candidate, hidden: int) -> int:
    return hidden if kind.writes and candidate.model in DECODERS else EMBEDDING


def measure_size(task: Task, candidate: Candidate, hidden: int) -> Size:
    """Build a model of this width and count its parameters."""
    embedding = embedding_size(kind_of(task), candidate, hidden)
    settings = TrainSettings(model=candidate.model, layers=candidate.layers, hidden=hidden, embedding=embedding)
    with torch.random.fork_rng(devices=[]):
        model = build(task, settings)
    total = sum(p.numel() for p in model.parameters())
    return Size(hidden, total, total - sum(p.numel() for p in _token_parameters(task, model)))


def _token_parameters(task: Task, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of embeddings, and of the output layer if it predicts tokens."""
    tokens = task.target.size if isinstance(task.target, Tokens) else None
    parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        head = isinstance(module, nn.Linear) and tokens is not None and module.out_features in (tokens, tokens - 1)
        if isinstance(module, nn.Embedding) or head:
            parameters |= {id(p): p for p in module.parameters()}
    return list(parameters.values())

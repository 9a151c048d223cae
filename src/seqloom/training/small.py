"""One training of a model on tensors: seeded, and the same every time."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP = 1.0
WARM_UP = 0.05  # of all steps

Examples = tuple[Tensor, ...]  # x, y, then what else the model takes (lengths), N rows each


@dataclass
class Record:
    """What happened, epoch by epoch."""

    loss: list[float] = field(default_factory=list)  # mean over the training examples
    validation: list[float] = field(default_factory=list)  # accuracy
    seconds: list[float] = field(default_factory=list)  # of training alone
    best: int = 0  # the epoch whose weights the model has now


def train(
    model: nn.Module,
    data: Examples,
    validation: Examples,
    *,
    epochs: int,
    lr: float,
    batch: int = 64,
    seed: int = 0,
    after_epoch: Callable[[], None] = lambda: None,
) -> Record:
    """Train with Adam, clipping, warm-up and cosine decay; leave the model at its best epoch.

    The best epoch is the one with the highest validation accuracy, the later of equals.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(seed)
    steps = epochs * math.ceil(len(data[0]) / batch)
    record, weights, step = Record(), {}, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for dropout
        for epoch in range(epochs):
            model.train()
            began, total = time.perf_counter(), torch.zeros(())
            for rows in torch.randperm(len(data[0]), generator=order).split(batch):
                for group in optimiser.param_groups:
                    group["lr"] = lr * _share(step, steps)
                total += _step(model, optimiser, tuple(t[rows] for t in data)) * len(rows)
                step += 1
            record.seconds.append(time.perf_counter() - began)
            record.loss.append(float(total) / len(data[0]))
            if not math.isfinite(record.loss[-1]):
                raise FloatingPointError(f"the loss is {record.loss[-1]} in epoch {epoch + 1} at lr {lr}")
            record.validation.append(accuracy(model, validation))
            if record.validation[-1] >= record.validation[record.best]:
                record.best, weights = epoch, copy.deepcopy(model.state_dict())
            after_epoch()
    model.load_state_dict(weights)
    return record


def _share(step: int, steps: int) -> float:
    """Of the highest learning rate: up in a line, down in a cosine."""
    warm = math.ceil(WARM_UP * steps)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, rows: Examples) -> Tensor:
    x, y, *more = rows
    loss = F.cross_entropy(model(x, *more), y)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    return loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, data: Examples) -> float:
    """The share of rows whose class has the highest score."""
    model.eval()
    x, y, *more = data
    return float((model(x, *more).argmax(-1) == y).double().mean())


@contextmanager
def small_models_on_cpu() -> Iterator[None]:
    """One thread, which small models are fastest with, and no denormals, which slow a CPU down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)

"""The optimiser, its state by name, the learning rate schedule, and averages of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.lab.files.checkpoint import weights_of
from seqloom.lab.kinds.settings import TrainSettings

MOMENTUM = 0.9


def group_weights(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups of an optimiser: matrices decay; biases, norms and embeddings do not."""
    kinds = nn.Embedding | nn.EmbeddingBag | nn.LayerNorm
    undecayed = {id(p) for m in model.modules() if isinstance(m, kinds) for p in m.parameters()}
    weights = [p for p in model.parameters() if p.requires_grad]
    decays = [p.dim() >= 2 and id(p) not in undecayed for p in weights]
    groups = [
        {"params": [p for p, decay in zip(weights, decays, strict=True) if decay == which], "weight_decay": rate}
        for which, rate in ((True, weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


def build_optimiser(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Build the optimiser of the settings."""
    groups = group_weights(model, settings.weight_decay)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, settings.lr, momentum=MOMENTUM)
    kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    # fused: one pass over all weights, on GPUs and CPUs
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in model.parameters())
    return kind(groups, settings.lr, fused=fused)


def optimiser_state(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of an optimiser under names such as "exp_avg:layer.weight"."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{key}:{names[id(p)]}": value
        for p, state in optimiser.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restore the tensors that `optimiser_state` returned."""
    names = {id(p): name for name, p in model.named_parameters()}
    places = {names[id(p)]: i for i, p in enumerate(p for group in optimiser.param_groups for p in group["params"])}
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        what, _, name = key.partition(":")
        state.setdefault(places[name], {})[what] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


class Schedule:
    """The learning rate at each step s of S, as a share of the maximum.

    It rises linearly over w steps, then follows one of:

    cosine     (1 + cos(pi (s - w) / (S - w))) / 2
    step       decay ^ floor(validations / decay_after)
    plateau    decay ^ k, where k counts runs of `decay_after` validations without progress
    constant   1
    """

    def __init__(self, settings: TrainSettings, steps: int) -> None:
        self.kind, self.decay, self.after = settings.schedule, settings.decay, settings.decay_after
        self.steps, self.warmup = steps, math.ceil(settings.warmup * steps)
        self.decays, self.waited = 0, 0

    def share(self, step: int) -> float:
        """Return the learning rate at a step, as a share of the maximum."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "cosine":
            done = (step - self.warmup) / max(1, self.steps - self.warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.decay**self.decays

    def record_validation(self, progress: bool) -> None:
        """Count a validation; `progress` says whether it was the best so far."""
        if self.kind in ("cosine", "constant"):
            return
        self.waited = 0 if progress and self.kind == "plateau" else self.waited + 1
        if self.waited >= self.after:
            self.decays, self.waited = self.decays + 1, 0

    def state(self) -> dict[str, int]:
        return {"decays": self.decays, "waited": self.waited}

    def restore(self, state: dict[str, int]) -> None:
        self.decays, self.waited = state["decays"], state["waited"]


class Average:
    """An exponential moving average of weights: a' = d a + (1 - d) w, d = min(decay, (1 + n) / (10 + n)) at step n."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.weights = {name: tensor.clone() for name, tensor in weights_of(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        d = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        _approach(self.weights, weights_of(model), 1 - d)


class CheckpointAverage:
    """The mean of the weights of several validations (Vaswani et al. 2017, arXiv 1706.03762, section 6.1)."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        self.weights = {name: tensor.clone() for name, tensor in weights_of(model).items()}

    @torch.no_grad()
    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Include these weights in the mean."""
        self.count += 1
        _approach(self.weights, weights, 1 / self.count)


def _approach(mean: dict[str, Tensor], weights: Mapping[str, Tensor], share: float) -> None:
    """Move averages by a share of the way to these weights; whole numbers, such as counts, become theirs."""
    for name, w in weights.items():
        if w.is_floating_point():
            mean[name].lerp_(w, share)
        else:
            mean[name].copy_(w)

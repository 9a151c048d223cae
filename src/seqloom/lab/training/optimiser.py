"""What turns gradients into steps: the optimiser, its state by name, and a running average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.lab.training.checkpoint import weights_of
from seqloom.lab.training.settings import TrainSettings

MOMENTUM = 0.9


def build_optimiser(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Matrices decay; biases, norms and embeddings do not."""
    kept = {id(p) for m in model.modules() if isinstance(m, nn.Embedding | nn.LayerNorm) for p in m.parameters()}
    every = list(model.parameters())
    free = [p for p in every if p.dim() < 2 or id(p) in kept]
    groups = [
        {"params": [p for p in every if p.dim() >= 2 and id(p) not in kept], "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, settings.lr, momentum=MOMENTUM)
    kind = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    # fused: one pass over all weights, on GPUs and CPUs alike
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in every)
    return kind(groups, settings.lr, fused=fused)


def optimiser_state(made: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """ "exp_avg:layer.weight" -> tensor."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{key}:{names[id(p)]}": value
        for p, state in made.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(made: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `state_of` took."""
    names = {id(p): name for name, p in model.named_parameters()}
    places = {names[id(p)]: i for i, p in enumerate(p for group in made.param_groups for p in group["params"])}
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        what, _, name = key.partition(":")
        state.setdefault(places[name], {})[what] = value
    made.load_state_dict({**made.state_dict(), "state": state})


class Average:
    """a' = d a + (1 - d) w after each step, d = min(decay, (1 + n) / (10 + n)) after n of them."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.weights = {name: tensor.clone() for name, tensor in weights_of(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        d = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        for name, w in weights_of(model).items():
            if w.is_floating_point():
                self.weights[name].lerp_(w, 1 - d)
            else:
                self.weights[name].copy_(w)

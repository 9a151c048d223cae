"""Train models of equal shape as one model, so that every kernel works on all of them.

A small model costs a GPU a few microseconds for each of hundreds of kernels, whatever their size. Stacked models share
these kernels: `torch.vmap` over the weights, and one AdamW for all, with a learning rate and a norm of the gradient for
each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seqloom.lab.training.recipe import SmallTraining, TrainedModel

BATCH_SEED_OFFSET = 1 << 32  # so that batches and weights draw different numbers
BETAS, EPS = (0.9, 0.999), 1e-8  # as torch.optim.AdamW


class StackedStep:
    """One step of several trainings whose models have the same modules, shapes and number of steps.

    Weights are rows of one matrix, of which the parameters of every model are views: a model shows its weights at any
    time.
    """

    def __init__(self, trainings: Sequence[SmallTraining], device: torch.device) -> None:
        self.trainings, first = list(trainings), trainings[0]
        steps = first.recipe.steps
        models: list[nn.Module] = []
        for training in trainings:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(training.seed)
                models.append(training.model().to(device, training.dtype).train())
        self.models = models
        self.generators = [torch.Generator(device).manual_seed(t.seed + BATCH_SEED_OFFSET) for t in trainings]
        self.names = [name for name, p in models[0].named_parameters() if p.requires_grad]
        _check_fixed_tensors(models, self.names)
        self.flat = torch.stack([_flatten(model, self.names) for model in models])  # (models, weights)
        self.weights = self._tie_weights()
        self.shared = copy.deepcopy(models[0])
        self.rates = torch.tensor([[t.recipe.rate(i) for t in trainings] for i in range(steps)], device=device)
        self.decays = torch.tensor([[t.recipe.weight_decay] for t in trainings], device=device)
        self.clips = torch.tensor([[t.recipe.clip] for t in trainings], device=device)
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.updates = torch.zeros(len(models), 1, device=device)  # finite steps of each
        self.losses = torch.full((steps, len(models)), torch.nan, device=device)  # NaN: the step was skipped
        self.done = torch.zeros(1, dtype=torch.long, device=device)

    def _tie_weights(self) -> dict[str, Tensor]:
        """Make the models' parameters views of the matrix, and return its views (models, ...) by name."""
        views, place = {}, 0
        for name in self.names:
            shape = self.models[0].get_parameter(name).shape
            part = self.flat[:, place : place + shape.numel()]
            for row, model in zip(part, self.models, strict=True):
                model.get_parameter(name).data = row.view(shape)
            views[name] = part.unflatten(1, shape) if shape else part.squeeze(1)
            place += shape.numel()
        return views

    def prepare(self, done: int) -> None:
        """Do what is due before a step; `done` steps are finished."""
        for training, model, noise in zip(self.trainings, self.models, self.generators, strict=True):
            if training.prepare is not None:
                with torch.no_grad():
                    training.prepare(model, noise, done)

    def __call__(self) -> None:
        device = self.done.device
        batches = [t.batch(noise, device) for t, noise in zip(self.trainings, self.generators, strict=True)]
        batch = tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
        leaves = {name: t.detach().requires_grad_() for name, t in self.weights.items()}
        losses = torch.vmap(self._find_loss, randomness="different")(leaves, batch)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        with torch.no_grad():
            self._update(losses.detach().float(), torch.cat([g.flatten(1) for g in gradients], 1))

    def _find_loss(self, weights: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        def call(*inputs: Tensor) -> Tensor:
            return cast(Tensor, functional_call(self.shared, weights, inputs))

        return self.trainings[0].loss(cast(nn.Module, call), batch)

    def _update(self, losses: Tensor, gradient: Tensor) -> None:
        """Take a step of AdamW with the clipped gradient (models, weights), except where it is not finite."""
        norm = gradient.norm(dim=1, keepdim=True)
        finite = torch.isfinite(norm) & torch.isfinite(losses.unsqueeze(1))
        gradient = torch.where(finite, gradient * (self.clips / (norm + 1e-6)).clamp(max=1), 0)
        rate = self.rates.index_select(0, self.done).T  # (models, 1)
        self.updates += finite
        self.mean.copy_(torch.where(finite, torch.lerp(self.mean, gradient, 1 - BETAS[0]), self.mean))
        square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient.square()
        self.square.copy_(torch.where(finite, square, self.square))
        bias, bias_square = (1 - beta**self.updates for beta in BETAS)
        change = self.mean / bias / ((self.square / bias_square).sqrt() + EPS)
        new = self.flat * (1 - rate * self.decays) - rate * change
        self.flat.copy_(torch.where(finite, new, self.flat))
        self.losses.index_copy_(0, self.done, torch.where(finite.squeeze(1), losses, torch.nan).unsqueeze(0))
        self.done += 1

    def results(self, seconds: float) -> list[TrainedModel]:
        """Return the result of each training."""
        every = zip(self.trainings, self.models, self.losses.T.tolist(), strict=True)
        return [TrainedModel.of(training, model, values, seconds) for training, model, values in every]


def _flatten(model: nn.Module, names: Sequence[str]) -> Tensor:
    """Return the weights of these names as one row."""
    return torch.cat([model.get_parameter(name).detach().flatten() for name in names])


def _check_fixed_tensors(models: Sequence[nn.Module], names: Sequence[str]) -> None:
    """Raise ValueError if models differ in tensors that are not trained: stacked models use those of the first."""
    first = [t for name, t in _named_tensors(models[0]) if name not in names]
    for model in models[1:]:
        others = [t for name, t in _named_tensors(model) if name not in names]
        if len(first) != len(others) or not all(map(torch.equal, first, others)):
            raise ValueError("models that differ in buffers or frozen parameters cannot be stacked; train them alone")


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]

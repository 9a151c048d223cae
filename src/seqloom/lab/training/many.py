"""Many small trainings at once: one seed of a small model fills a fraction of a GPU.

On a GPU a whole training step (drawing the batch, forward, backward, clipping, Adam) is recorded once as
a CUDA graph, one for each training, and the graphs are played on streams of their own: the host only says
"again". On a CPU they run one after the other. Either way a training depends on its seed alone and not on
what runs beside it; but on a GPU dropout draws from the device's one generator, in the order of the steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqloom.lab.training.cpu import use_one_thread

SPANS = 50  # of a training, each with its mean loss
TOGETHER = 24  # graphs in flight: more do not fit the chip's queues
AHEAD = 8  # steps that the host may be ahead of a stream
NO_MEMORY = torch.OutOfMemoryError.__name__
NOISE = 1 << 32  # batches draw other numbers than weights of the same seed

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """Adam with a linear warm-up and a cosine down to nothing."""

    steps: int
    lr: float
    warm_up: float = 0.1  # of all steps
    clip: float = 1.0
    weight_decay: float = 0.0

    def rate(self, step: int) -> float:
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return self.lr * (step + 1) / warm
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


@dataclass(frozen=True)
class SmallTraining:
    """One training. `batch` draws with the generator it is given, always the same shapes, and never waits."""

    name: str
    model: Callable[[], nn.Module]  # called under manual_seed(seed)
    batch: Callable[[torch.Generator, torch.device], Tensors]
    loss: Callable[[nn.Module, Tensors], Tensor]
    recipe: Recipe
    seed: int
    dtype: torch.dtype = torch.float32  # of the weights


@dataclass(frozen=True)
class TrainedModel:
    name: str
    model: nn.Module | None
    losses: list[float]  # means over equal spans of steps
    seconds_per_step: float  # of the group that it ran in
    failed: str = ""
    skipped: int = 0  # steps whose gradient was not finite; they changed nothing


def train_many(
    trainings: Sequence[SmallTraining], device: str | torch.device, told: Callable[[str], None] | None = None
) -> list[TrainedModel]:
    """Every training's end, in the order given; one that fails is an end too."""
    kind = torch.device(device)
    if kind.type == "cuda":
        found: list[TrainedModel] = []
        for first in range(0, len(trainings), TOGETHER):
            found += _all_of(trainings[first : first + TOGETHER], kind, told or _silent)
        return found
    with use_one_thread():
        return [_alone(training, kind, told or _silent) for training in trainings]


def _all_of(
    trainings: Sequence[SmallTraining], device: torch.device, told: Callable[[str], None]
) -> list[TrainedModel]:
    """As a group; those that found no memory beside the others then make a group of their own."""
    found = _group(trainings, device, told)
    again = [i for i, one in enumerate(found) if one.failed.startswith(NO_MEMORY)]
    if not again or len(trainings) == 1:
        return found
    most = -(-len(again) // 2) if len(again) == len(trainings) else len(again)
    for part in filter(None, (again[:most], again[most:])):
        torch.cuda.empty_cache()
        for i, one in zip(part, _all_of([trainings[i] for i in part], device, told), strict=True):
            found[i] = one
    return found


def _silent(_: str) -> None:
    pass


def clip_gradients(gradients: list[Tensor], limit: float) -> Tensor:
    """Scale gradients in place to a norm of at most `limit`; return whether all of them are finite, as a tensor.

    Gradients through a thousand steps can be as large as 1e30. Their squares overflow float32, where
    `torch.nn.utils.clip_grad_norm_` finds an infinite norm; here they are divided by the largest of them first.
    """
    largest = torch.stack(torch._foreach_norm(gradients, math.inf)).max()
    scale = largest.clamp(min=limit)
    torch._foreach_div_(gradients, scale)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, torch.minimum(limit / norm, scale))
    return largest.isfinite()


class _Step:
    """One step of one training; what changes from step to step lives in tensors on the device."""

    def __init__(self, training: SmallTraining, device: torch.device) -> None:
        self.training, recipe = training, training.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(training.seed)
            self.model = training.model().to(device, training.dtype).train()
        self.noise = torch.Generator(device).manual_seed(training.seed + NOISE)
        self.on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.zeros((), device=device) if self.on_gpu else 0.0,
            weight_decay=recipe.weight_decay,
            capturable=self.on_gpu,
            fused=self.on_gpu,
        )
        self.rates = torch.tensor([recipe.rate(i) for i in range(recipe.steps)], device=device)
        self.spans = min(SPANS, recipe.steps)
        self.sums = torch.zeros(self.spans, device=device)
        self.taken = torch.zeros(self.spans, device=device)  # steps of each span with a finite gradient
        self.done = torch.zeros((), dtype=torch.long, device=device)

    def __call__(self) -> None:
        recipe = self.training.recipe
        at = self.done.clamp(max=recipe.steps - 1)
        rate = self.rates.index_select(0, at.view(1)).squeeze()
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate) if self.on_gpu else group.update(lr=float(rate))
        loss = self.training.loss(self.model, self.training.batch(self.noise, self.done.device))
        loss.backward()
        finite = clip_gradients([p.grad for p in self.model.parameters() if p.grad is not None], recipe.clip)
        finite = (finite & loss.detach().isfinite()).float()
        if self.on_gpu:
            setattr(self.optimiser, "found_inf", 1 - finite)  # noqa: B010  (a fused step then does nothing by itself)
            self.optimiser.step()
        elif finite:
            self.optimiser.step()
        self.optimiser.zero_grad()
        span = (at * self.spans // recipe.steps).view(1)
        self.sums.index_add_(0, span, loss.detach().float().nan_to_num(0.0, 0.0, 0.0).view(1) * finite)
        self.taken.index_add_(0, span, finite.view(1))
        self.done += 1

    def end(self, seconds: float) -> TrainedModel:
        steps, taken = self.training.recipe.steps, self.taken.tolist()
        losses = [s / n if n else math.nan for s, n in zip(self.sums.tolist(), taken, strict=True)]
        skipped = steps - round(sum(taken))
        failed = "" if taken[-1] else f"the gradient was not finite in {skipped:,} of {steps:,} steps"
        return TrainedModel(self.training.name, self.model.eval(), losses, seconds / steps, failed, skipped)


def _failed(training: SmallTraining, error: Exception) -> TrainedModel:
    return TrainedModel(training.name, None, [], 0.0, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _alone(training: SmallTraining, device: torch.device, told: Callable[[str], None]) -> TrainedModel:
    began, said = time.perf_counter(), 0.0
    with torch.random.fork_rng(devices=[]):
        try:
            step = _Step(training, device)
            torch.manual_seed(training.seed)  # for dropout
            for i in range(training.recipe.steps):
                step()
                if (now := time.perf_counter() - began) - said > 2:
                    said = now
                    told(f"{training.name}: step {i + 1} of {training.recipe.steps}")
        except Exception as error:
            return _failed(training, error)
    return step.end(time.perf_counter() - began)


def _group(trainings: Sequence[SmallTraining], device: torch.device, told: Callable[[str], None]) -> list[TrainedModel]:
    found: dict[int, TrainedModel] = {}
    playing: dict[int, _Played] = {}
    for i, training in enumerate(trainings):
        try:
            playing[i] = _Played(training, device)
        except Exception as error:
            torch.cuda.synchronize(device)
            found[i] = _failed(training, error)
    began, said = time.perf_counter(), 0.0
    longest = max((t.recipe.steps for t in trainings), default=0)
    for step in range(longest):
        for played in playing.values():
            played.again()
        if (now := time.perf_counter() - began) - said > 2:
            said = now
            told(f"step {step + 1} of {longest}, {len(playing)} trainings at once")
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    for i, played in playing.items():
        found[i] = played.step.end(seconds)
    return [found[i] for i in range(len(trainings))]


class _Played:
    """A step as a graph on a stream of its own; its first steps warm up and are real ones too."""

    def __init__(self, training: SmallTraining, device: torch.device) -> None:
        self.step, self.left = _Step(training, device), training.recipe.steps
        self.stream = torch.cuda.Stream(device)
        self.events: list[torch.cuda.Event] = []
        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            for _ in range(min(3, self.left)):
                self.step()
                self.left -= 1
        torch.cuda.synchronize(device)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.step.noise)
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.step()

    def again(self) -> None:
        if not self.left:
            return
        self.left -= 1
        if len(self.events) >= AHEAD:
            self.events.pop(0).synchronize()
        with torch.cuda.stream(self.stream):
            self.graph.replay()
            event = torch.cuda.Event()
            event.record()
        self.events.append(event)

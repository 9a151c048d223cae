"""Several trainings side by side in one process: steps as CUDA graphs, averaged weights, a time limit.

The learning rate follows the larger of two shares: steps done of all steps, and seconds passed of the limit. So a
training always ends with an annealed rate, and its record has the number of steps that were taken.

A training can be divided into several runs of the process: each takes the share up to `until`, and stores weights,
averages and the state of AdamW in a folder, from which the next one continues.

Trainings of one recipe with different seeds can be scored together in the end, as one model that averages theirs.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from research.quality.goal_recipe import Training
from research.record import Stopwatch, describe_run
from seqloom.lab.training.many import RecordedSteps
from seqloom.lab.training.optimiser import group_weights
from seqloom.lab.training.update import Update

STEPS_AHEAD = 4  # of the host before a stream
BEGAN = Stopwatch()
SECONDS_BETWEEN_CHECKPOINTS = 20.0
MOST_SILENCE = 60.0  # seconds without a finished step after which the device counts as stuck
WARM_UP_STEPS = 3  # eager steps before a step is recorded


class Trainer:
    """The state of one training."""

    def __init__(self, training: Training, device: torch.device, limit: float, until: float = 1.0) -> None:
        self.training, self.device, self.limit, self.until = training, device, limit, until
        self.first_share, self.earlier_seconds = 0.0, 0.0  # of earlier runs of the process
        self.on_gpu = device.type == "cuda"
        torch.manual_seed(training.seed)
        self.model = training.build().to(device).train()
        self.noise = torch.Generator(device).manual_seed(training.seed + (1 << 32))
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            group_weights(self.model, training.weight_decay),
            lr=torch.zeros((), device=device) if self.on_gpu else 0.0,
            betas=training.betas,
            capturable=self.on_gpu,
            fused=self.on_gpu,
        )
        self.update = Update(self.weights, self.optimiser, training.clip)
        self.average = [p.detach().clone() for p in self.weights] if training.ema else []
        self.total = torch.zeros((), device=device)
        self.finite = torch.zeros((), device=device)
        self.done, self.counted, self.seen, self.began = 0, 0.0, 0.0, Stopwatch()
        self.taken = 0  # steps of this run of the process
        self.curve: list[dict[str, float]] = []
        self.draws = training.draw if isinstance(training.draw, Sequence) else [(training.draw, 1.0)]
        self.choices = random.Random(training.seed)
        self.recorded = RecordedSteps(device, STEPS_AHEAD) if self.on_gpu else None
        self.can_record = self.on_gpu
        self.best: tuple[float, int, list[Tensor]] | None = None  # its metric, its step and the weights
        self.stored = self.began

    def share(self) -> float:
        """Return the share of the training that is done."""
        passed = self.began.seconds / self.limit
        return max(self.done / self.training.steps, self.first_share + (self.until - self.first_share) * passed)

    def seconds(self) -> float:
        """Return the seconds of this training, with those of earlier runs."""
        return round(self.earlier_seconds + self.began.seconds, 1)

    def store(self, folder: Path) -> None:
        """Write what the training needs to continue; an interrupted write leaves the earlier file."""
        self.wait()
        facts = {"done": self.done, "share": self.share(), "seconds": self.seconds(), "finite": float(self.finite)}
        states = {"weights": [p.detach() for p in self.weights], "average": self.average}
        file = folder / self.training.name_checkpoint()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        torch.save(facts | states | {"optimiser": self.optimiser.state_dict()["state"], "curve": self.curve}, partial)
        partial.replace(file)
        self.stored = Stopwatch()

    def resume(self, folder: Path) -> None:
        """Continue from a file of `store`, if there is one."""
        file = folder / self.training.name_checkpoint()
        if not file.exists():
            return
        state = torch.load(file, map_location=self.device, weights_only=True)
        torch._foreach_copy_([p.detach() for p in self.weights], state["weights"])
        if self.average:
            torch._foreach_copy_(self.average, state["average"])
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state["optimiser"], "param_groups": groups})
        self.done, self.first_share, self.earlier_seconds = state["done"], state["share"], state["seconds"]
        self.seen, self.curve = state["share"], state["curve"]
        self.finite.fill_(state["finite"])
        self.counted = state["finite"]
        self.noise.manual_seed(self.training.seed + (1 << 32) + self.done)

    def advance(self) -> None:
        """Take one step, or start it on the device."""
        share, t = self.share(), self.training
        if t.grow is not None and self.done % 20 == 0:
            t.grow(share)
        rate = t.lr * min(share / t.warm_up if t.warm_up else 1.0, 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
        rate = max(rate, t.lr * 1e-3)
        self.done += 1
        (which,) = self.choices.choices(range(len(self.draws)), [share for _, share in self.draws])
        if self.recorded is None:
            self.update.set_rate(rate)
            self._step(which)
            return
        graphs = self.recorded.graphs
        self.recorded.run(
            partial(self.update.set_rate, rate), graphs[which].replay if graphs else partial(self._step, which)
        )
        self.taken += 1
        if self.can_record and self.taken == WARM_UP_STEPS:
            try:
                self._record(self.recorded)
            except RuntimeError as error:  # a step that cannot be a graph is started operation by operation
                torch.cuda.synchronize(self.device)
                self.can_record = False
                print(f"{self.training.goal} without a graph: {explain(error)}", file=sys.stderr, flush=True)

    def is_ready(self) -> bool:
        """Return whether the next step can be started without waiting for the device."""
        return self.recorded is None or self.recorded.is_ready()

    def _record(self, recorded: RecordedSteps) -> None:
        """Record a step for each shape of batches, after one of it outside of a graph."""
        torch.cuda.synchronize(self.device)
        steps = [partial(self._step, which) for which in range(len(self.draws))]
        with torch.cuda.stream(recorded.stream):
            for step in steps:
                step()
                self.done += 1
        recorded.record(steps, [self.noise])

    def _step(self, which: int) -> None:
        t, draw = self.training, self.draws[which][0]
        loss = t.loss(self.model, draw(self.noise))
        finite = self.update.take_step(loss).float()
        if self.average:
            weights = [p.detach() for p in self.weights]
            torch._foreach_lerp_(self.average, weights, 1 - t.ema)
        self.total += loss.detach().float().nan_to_num(0.0, 0.0, 0.0) * finite
        self.finite += finite

    def is_finished(self) -> bool:
        return self.done >= self.training.steps or self.share() >= 1

    def is_over(self) -> bool:
        """Return whether this run of the process has done its share."""
        return self.is_finished() or self.share() >= self.until

    def is_score_due(self) -> bool:
        return self.share() - self.seen >= self.training.score_every

    def validate(self) -> dict[str, float]:
        """Score the validation split with the averaged weights and record it."""
        self.wait()
        self.seen = self.share()
        if self.average and self.seen < 0.5 * self.training.warm_up + self.training.score_every:
            torch._foreach_copy_(self.average, [p.detach() for p in self.weights])  # forget the first weights
        facts = {"step": self.done, "seconds": self.seconds(), "skipped": self.skipped()}
        finite = float(self.finite)
        facts["loss"] = float(self.total) / max(1.0, finite - self.counted)
        self.counted = finite
        self.total.zero_()
        self.curve.append(facts | self.score("valid"))
        if self.training.keep:
            value = self.curve[-1][self.training.keep] * (-1 if self.training.lower else 1)
            if self.best is None or value > self.best[0]:
                source = self.average or [p.detach() for p in self.weights]
                self.best = value, self.done, [p.clone() for p in source]
        return self.curve[-1]

    def settle(self) -> nn.Module:
        """Load the weights that count, kept, averaged or last, and return the model in evaluation mode."""
        self.wait()
        chosen = self.best[2] if self.best is not None else self.average
        if chosen:
            torch._foreach_copy_([p.detach() for p in self.weights], chosen)
        if self.recorded is not None:
            self.recorded.graphs.clear()
        self.average = []
        return self.model.eval()

    def skipped(self) -> int:
        """Return the number of steps without a finite gradient."""
        return self.done - round(float(self.finite))

    def wait(self) -> None:
        """Wait for this training and for what is scored, not for other trainings."""
        if self.recorded is not None:
            self.recorded.stream.synchronize()
            torch.cuda.current_stream(self.device).synchronize()

    @torch.no_grad()
    def score(self, split: str) -> dict[str, float]:
        """Score a split with the averaged weights, if weights are averaged."""
        own = [p.detach().clone() for p in self.weights]
        if self.average:
            torch._foreach_copy_([p.detach() for p in self.weights], self.average)
        self.model.eval()
        try:
            if split == "test" and self.training.final is not None:
                return self.training.final(self.model)
            return self.training.score(self.model, split)
        finally:
            self.model.train()
            torch._foreach_copy_([p.detach() for p in self.weights], own)
            self.wait()


def train_all(
    trainings: Sequence[Training],
    device: torch.device,
    limit: float,
    ledger: Path,
    until: float = 1.0,
    checkpoints: Path | None = None,
) -> None:
    """Run trainings side by side and append a line to the ledger for each that ends.

    Args:
        trainings: The trainings.
        device: Where they run.
        limit: Seconds from the start of the process at which all have ended.
        ledger: A file of JSON lines; `ledger.progress` beside it gets the validations.
        until: The share of the trainings at which this run of the process ends.
        checkpoints: A folder from which trainings continue and in which they are stored.
    """
    progress = ledger.with_suffix(".progress")
    ledger.parent.mkdir(parents=True, exist_ok=True)
    active: list[Trainer] = []
    ended: dict[tuple[str, str], list[Trainer]] = {}
    for training in trainings:
        try:
            trainer = Trainer(training, device, limit - BEGAN.seconds, until)
            if checkpoints is not None:
                trainer.resume(checkpoints)
            active.append(trainer)
        except Exception as error:
            append(ledger, describe(training) | {"failed": explain(error)})
    moved = Stopwatch()
    while active:
        ready = [trainer for trainer in active if trainer.is_ready()]
        if ready:
            moved = Stopwatch()
        elif moved.seconds < MOST_SILENCE:
            time.sleep(2e-4)
        else:
            for trainer in active:
                failed = f"no step ended within {MOST_SILENCE:g} s, after {trainer.done} steps"
                append(ledger, describe(trainer.training) | {"failed": failed, "curve": trainer.curve})
            return
        for trainer in ready:
            t = trainer.training
            try:
                trainer.advance()
                is_last, is_over = trainer.is_finished(), trainer.is_over()
                if is_over or trainer.is_score_due():
                    append(progress, {"goal": t.goal, "recipe": t.recipe, "seed": t.seed} | trainer.validate())
                waits = not is_over and trainer.stored.seconds < SECONDS_BETWEEN_CHECKPOINTS
                if checkpoints is not None and not waits:
                    trainer.store(checkpoints)
                if is_over and not is_last:
                    active.remove(trainer)
                if is_last:
                    active.remove(trainer)
                    append(ledger, finish(trainer))
                    if t.together is not None:
                        same = [other for other in active if other.training.is_like(t)]
                        group = ended.setdefault((t.goal, t.recipe), [])
                        group.append(trainer)
                        if not same and len(group) > 1:
                            append(ledger, finish_together(group))
            except Exception as error:
                active = [other for other in active if other is not trainer]
                append(ledger, describe(t) | {"failed": explain(error), "curve": trainer.curve})
            torch.set_grad_enabled(True)


@torch.no_grad()
def finish(trainer: Trainer) -> dict[str, Any]:
    """Read the test split once and return the record."""
    t, seconds = trainer.training, trainer.seconds()
    count = sum(p.numel() for p in trainer.weights)
    facts = {"parameters": count, "steps": trainer.done, "seconds": seconds, "skipped": trainer.skipped()}
    facts |= {"kept_step": trainer.best[1]} if trainer.best is not None else {}
    model = trainer.settle()
    facts["valid"] = t.score(model, "valid")
    facts["test"] = t.score(model, "test") if t.final is None else t.final(model)
    return describe(t) | facts | {"curve": trainer.curve}


@torch.no_grad()
def finish_together(trainers: list[Trainer]) -> dict[str, Any]:
    """Score the trainings of one recipe as one model and return its record."""
    trainers = sorted(trainers, key=lambda trainer: trainer.training.seed)
    t = trainers[0].training
    assert t.together is not None
    models = [trainer.model for trainer in trainers]
    facts = {"seeds": [trainer.training.seed for trainer in trainers]}
    facts |= {"parameters": sum(p.numel() for trainer in trainers for p in trainer.weights)}
    facts |= {"steps": min(trainer.done for trainer in trainers), "recipe": f"{t.recipe}, {len(models)} seeds together"}
    return describe(t) | facts | {"valid": t.together(models, "valid"), "test": t.together(models, "test")}


def describe(training: Training) -> dict[str, Any]:
    names = ("goal", "recipe", "seed", "lr", "warm_up", "clip", "weight_decay", "ema", "betas")
    settings = {name: getattr(training, name) for name in names} | {"planned_steps": training.steps}
    return describe_run(**settings, settings=training.settings)


def explain(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def append(file: Path, record: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(record, ensure_ascii=False) + "\n")
    print({k: v for k, v in record.items() if k not in ("curve", "settings", "versions", "hardware", "command")},
          file=sys.stderr, flush=True)  # fmt: skip

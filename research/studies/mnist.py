"""Images pixel by pixel, in reading order and in a fixed random order, trained until no model improves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from research.studies.data.examples import LabelledRows
from research.studies.data.mnist import PIXELS, mnist
from research.studies.support.conditions import TEST, VALID, Condition, Spec, TrialSettings
from research.studies.support.contenders import layer, multiple, rates
from research.studies.support.epochs import TRAIN, Epochs
from research.studies.support.ledger import Ledger
from research.studies.support.outcome import Contest, Group, Trial, groups
from seqloom.lab.report.page import Chart, Curve, PageBlock, Table
from seqloom.lab.training.many import train_many
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify

HEADS = 2
SEQUENTIAL, PERMUTED = "sequential MNIST", "permuted MNIST"
EPOCH = 430  # steps of 128 images
# Published accuracies for h = 128 or more: an LSTM, and the best.
PUBLISHED = {SEQUENTIAL: (0.989, 0.995), PERMUTED: (0.95, 0.988)}
ATTENTION, AT_ONCE = "attention", "mlp"  # attention: by --models; ten seeds of both problems fill a GPU for 17 minutes
MODELS = ("attn_rnn", "gru", "lstm", "ln_gru", AT_ONCE)
TIMED_STEPS = 200
TARGETS = {SEQUENTIAL: 0.97, PERMUTED: 0.9}  # accuracies to which the time is reported
STEP = 16  # hidden sizes are multiples of this for every model, so that all of them run on fused kernels


def image(problem: str, epochs: int, train: int = 55_000, steps: int = EPOCH) -> Condition:
    return Condition(problem, epochs * steps, {"problem": problem, "T": PIXELS, "rounds": epochs, "train": train})


def lower_rate(problem: str, epochs: int, *models: str) -> Condition:
    """Repeat a condition with the next lower learning rate for models of which several seeds did not finish."""
    usual = image(problem, epochs)
    return replace(usual, name=f"{problem}, lower rate", models=models, tuned_at=problem, lower=1)


class Mnist(Epochs[TrialSettings], name="mnist"):
    """Accuracy of each model on sequential and permuted MNIST, against epochs and against seconds."""

    full = TrialSettings(
        (
            image(SEQUENTIAL, 30),
            image(PERMUTED, 30),
            lower_rate(SEQUENTIAL, 30, "lstm"),
            lower_rate(PERMUTED, 30, "attn_rnn", "lstm"),
        ),
        MODELS,
        seeds=10,
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default", "chrono", "keep 1"),
        batch=128,
        valid=5_000,
        test=10_000,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        precision="bfloat16",
    )
    quick = TrialSettings(
        (image(SEQUENTIAL, 1, 1_000, 8),),
        ("attn_rnn", "gru"),
        seeds=2,
        budget=2_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=100,
        test=200,
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        data = mnist(TEST if split == TEST else TRAIN).shuffle()
        if condition.task["problem"] == PERMUTED:
            order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))
            data = LabelledRows(data.x.index_select(1, order), data.lengths, data.y)
        if split == TEST:
            return data.part(0, self.settings.test)
        held = 5_000  # of the training images, for validation
        return data.part(0, self.settings.valid) if split == VALID else data.part(held, held + condition.task["train"])

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model == AT_ONCE:
            return Pixels(nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, 10)))
        if model != ATTENTION:
            return Pixels(Classify(layer(model, 1, hidden, start, PIXELS), 10))
        inner = Transformer(hidden, HEADS, 1, attention="dense", position="sinusoidal")
        return Pixels(Classify(Projected(inner, 1), 10, "mean"))

    def multiple(self, model: str) -> int:
        if self.device == "cuda":
            return STEP
        return HEADS if model in (ATTENTION, AT_ONCE) else multiple(model, self.device)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model not in (ATTENTION, AT_ONCE):
            return super().grid(model)
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def compare_models(self, rows: Sequence[Trial]) -> list[Contest]:
        """Compare the models; under a lower rate, with the others at the rate that was tuned."""
        repeated = list[Trial]()
        for c in self.settings.conditions:
            if c.lower and any(t.condition == c.name for t in rows):
                mine = [t for t in rows if t.condition == c.tuned_at and t.model not in c.models]
                wanted = [t for t in mine if self.against in c.models or t.model == self.against]
                repeated += [replace(t, condition=c.name) for t in wanted]
        return super().compare_models([*rows, *repeated])

    def run(self, before: Callable[[str], None]) -> Iterator[Trial]:
        yield from super().run(before)
        if not self.replays:
            self.time_models()

    def time_models(self) -> None:
        """Store the time of a training step of each model in the ledger, measured while no other training runs."""
        self.ledger = Ledger(self.folder)
        self._sizes = dict(self.known_sizes)
        condition = replace(self.settings.conditions[0], steps=min(TIMED_STEPS, self.settings.conditions[0].steps))
        for model in self.models(condition):
            key = self._time_key(model)
            if self.ledger.get(key) is None:
                lr, start = self.grid(model)[0]
                spec = Spec(condition, model, lr, start, 0, VALID)
                (one,) = train_many([self._training(spec)], self.device)
                self.ledger.add(key, {"ms": 1e3 * one.seconds_per_step})

    def _time_key(self, model: str) -> dict[str, Any]:
        hidden = self.find_hidden(model, self.settings.conditions[0])
        return {"study": self.name, "timed": [model, hidden], "batch": self.settings.batch, "device": self.device}

    def read_time(self, model: str) -> float | None:
        """Return the stored seconds of a training step of this model alone, or None."""
        known = self.ledger.get(self._time_key(model))
        return None if known is None else float(known["ms"]) / 1e3

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        blocks, times = list(super().blocks(rows)), self._tabulate_times(rows)
        if times:
            note = "of one training alone on the device; to an accuracy: the mean of the seeds on validation rows"
            blocks.append(Table("Training time", times, note))
        for c in self.settings.conditions:
            curves = [self._against_time(c, g) for g in groups(rows) if g.condition == c.name]
            if any(curve.x for curve in curves):
                title = f"{c.name}: validation accuracy against time"
                note = "seconds of one training alone on the device; mean, lowest and highest seed"
                blocks.append(Chart(title, "seconds", "accuracy", curves, log_x=True, note=note))
        return blocks

    def _against_time(self, c: Condition, g: Group) -> Curve:
        curve, step = self._curve(c, g), self.read_time(g.model)
        if step is None:
            return Curve(g.model, [], [])
        places = range(1, len(curve.x) + 1)
        return replace(curve, x=[step * self.steps(c) * k / c.task["rounds"] for k in places])

    def _tabulate_times(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        """Return the time of a step, of the training, and until the mean accuracy reaches a target."""
        table = []
        by_name = {c.name: c for c in self.settings.conditions}
        for g in groups(rows):
            c, step = by_name[g.condition], self.read_time(g.model)
            if step is not None:
                curve, target = self._against_time(c, g), TARGETS[c.task["problem"]]
                reached = next((x for x, y in zip(curve.x, curve.y, strict=True) if y >= target), None)
                row = {"condition": c.name, "model": g.model, "ms per step": 1e3 * step, "s": step * self.steps(c)}
                table.append(row | {"to accuracy": target, "s to it": reached})
        return table

    def trivial(self, condition: Condition) -> float:
        return 0.1135  # the digit 1, the most frequent

    def caption(self) -> str:
        layers = (
            f"attention: one layer of a Transformer, {HEADS} heads, sinusoidal positions, the mean of all steps.\n"
            if ATTENTION in self.settings.models
            else ""
        )
        published = "; ".join(f"{name} {lstm:.1%}, {best:.1%}" for name, (lstm, best) in PUBLISHED.items())
        return (
            f"{super().caption()}\ncells read out the last step. {AT_ONCE}: one hidden layer over all pixels "
            "at once, for which the order means nothing.\n"
            f"{layers}"
            "if a best learning rate was the lowest or highest of its grid, the next one was tried for all models.\n"
            "lower rate: the next lower learning rate for models of which several seeds did not finish, compared with "
            "the others at their tuned rate; this condition was added after the test rows had been read.\n"
            f"published accuracy of an LSTM, and the best: {published}."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        means = []
        for c in self.settings.conditions:
            mine = {g.model: g.summary("accuracy").mean or 0.0 for g in groups(rows) if g.condition == c.name}
            ordered = sorted(mine.items(), key=lambda pair: -pair[1])
            means.append(f"{c.name}: {', '.join(f'{model} {value:.2%}' for model, value in ordered)}")
        skipped = sum(t.skipped for t in rows)
        note = f" Training steps skipped because a gradient was not finite: {skipped:,}." if skipped else ""
        return f"{'; '.join(means)}. {super().verdict(rows)}{note}{self._describe_times(rows)}"

    def _describe_times(self, rows: Sequence[Trial]) -> str:
        told = []
        for c in self.settings.conditions:
            mine = [row for row in self._tabulate_times(rows) if row["condition"] == c.name]
            reached = [f"{r['model']} {'never' if r['s to it'] is None else format(r['s to it'], '.0f')}" for r in mine]
            told += [f"{c.name} to {TARGETS[c.task['problem']]:.0%}: {', '.join(reached)}"] if mine else []
        return f" Seconds of one training alone, {'; '.join(told)}." if told else ""


class Pixels(nn.Module):
    """Feed bytes (B, T) to a model as one normalised feature per step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        # 0.1307 and 0.3081: mean and standard deviation of all pixels
        logits: Tensor = self.model((x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081)
        return logits

"""Applications of recurrent networks: speech, forecasts, gestures, handwriting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.data import pen, series
from research.studies.support.conditions import Condition, TrialSettings
from research.studies.support.contenders import layer, starts
from research.studies.support.corpora import Corpora, Corpus
from research.studies.support.epochs import fast
from research.studies.support.metric import MIXED_ERROR, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.trials import Tensors
from research.studies.topologies import answers
from seqloom.layers.registry import make
from seqloom.models.classify import Classify
from seqloom.models.forecast import Forecast

HEADS, DAY = 4, 24
DIGITS, HOURS, MOTIONS, GESTURES, HANDWRITING = (
    "spoken digits",
    "transformer temperature, 96 hours ahead",
    "motions of a wrist",
    "gestures of picking up",
    "two digits by pen",
)
ARCHIVE = {MOTIONS: ("BasicMotions", 6, 4), GESTURES: ("PickupGestureWiimoteZ", 1, 10)}  # features, classes
# Test rows that the most frequent class gets wrong: of 300 recordings, 40 motions, 50 gestures and 1,000 numbers.
BASELINE_ERRORS = {DIGITS: 270, MOTIONS: 30, GESTURES: 45, HANDWRITING: 981}


def at(name: str, steps: int, T: int, budget: int = 66_700, every: int = 1) -> Condition:
    return Condition(name, steps, {"of": name, "T": T, "budget": budget, "every": every})


class Applications(Corpora[TrialSettings], name="applications"):
    """Spoken digits, forecasting, gestures and handwriting: error relative to a trivial baseline."""

    metrics = (TrialMetric("error", MIXED_ERROR), TrialMetric("absolute error", MIXED_ERROR))
    full = TrialSettings(
        (
            at(DIGITS, 500, 48),
            at(MOTIONS, 250, 100),
            at(GESTURES, 250, 361),
            at(HANDWRITING, 800, 64),
            at(HOURS, 600, 96),
        ),
        ("rnn", "lstm", "gru", "attn_rnn", "transformer"),
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default",),
        valid=700,
        test=700,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        widen_by=0.01,
    )
    quick = TrialSettings(
        (at(MOTIONS, 30, 50, 3_000), at(DIGITS, 120, 48, 12_000, every=3)),
        ("gru", "attn_rnn", "transformer"),
        seeds=2,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=100,
        test=100,
    )

    def corpus(self, condition: Condition) -> Corpus:
        task = condition.task
        if task["of"] == HOURS:
            parts = series.temperature(task["T"], 4 * DAY, task["every"])
        elif task["of"] == DIGITS:
            parts = series.spoken_digits(task["T"], task["every"])
        elif task["of"] == HANDWRITING:
            parts = pen.pairs_of_digits(task["T"], task["every"])
        else:
            parts, _ = series.motions(ARCHIVE[task["of"]][0], task["T"])
        return Corpus(parts)

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        sizes = {HOURS: (7, 0), DIGITS: (series.SOUND.bands, 10), HANDWRITING: (pen.FEATURES, pen.CLASSES)}
        inputs, classes = sizes.get(task["of"]) or ARCHIVE[task["of"]][1:]
        if model == "transformer":
            inner = make("bi_transformer", inputs, hidden, num_layers=2, heads=HEADS)
        else:
            inner = layer(model, inputs, hidden, start, task["T"])
        if task["of"] == HOURS:
            return Forecast(inner, 4 * DAY)
        return Classify(inner, classes, "mean")

    def multiple(self, model: str) -> int:
        return 2 * HEADS if model == "transformer" else 2 * super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        first = "default" if model == "transformer" else starts(model, self.settings.starts)[0]
        return [(lr, first) for lr in self.settings.lrs]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        if isinstance(model, Forecast):
            with fast(model, batch[0].device):
                return F.mse_loss(model(batch[0]).float(), batch[1])
        scores, target = answers(model, batch)
        return F.cross_entropy(scores, target)

    def tally(self, model: nn.Module, batch: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        if isinstance(model, Forecast):
            with fast(model, batch[0].device):
                off = model(batch[0]).float() - batch[1]
            return {"absolute error": (off.square().sum(), torch.tensor(off.numel()))}
        scores, target = answers(model, batch)
        return {"absolute error": ((scores.argmax(-1) != target).sum(), torch.tensor(len(target)))}

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        scores = super().score(model, condition, split, device)
        return {"error": scores["absolute error"] / self.trivial_error(condition, split)} | scores

    def trivial_error(self, condition: Condition, split: str) -> float:
        """Return the error of the most frequent answer, or of repeating the last day."""
        part = self.read(condition).parts[split]
        if condition.task["of"] == HOURS:
            past, ahead = part
            again = past[:, -DAY:].repeat(1, ahead.shape[1] // DAY, 1)
            return float(F.mse_loss(again, ahead))
        return 1 - _majority_share(part[1])

    def count_answers(self, condition: Condition) -> int | None:
        """Return the rows that the most frequent class gets wrong; the error of a forecast is continuous."""
        return BASELINE_ERRORS.get(condition.task["of"])

    def trivial(self, condition: Condition) -> float:
        return 1.0

    def caption(self) -> str:
        return (
            f"{super().caption()}\n"
            "error: relative to a trivial baseline (the most frequent answer, or repeating the last day); absolute "
            "error: share of wrong classes, or the mean squared error of the 7 series of ETTh1.\n"
            "validation: recordings 5-9 of each speaker and digit; months 13 to 16; every fourth of the 40 motions and "
            "50 gestures for training. Two digits by pen: generated movements of 10,000 training rows, 100 classes."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        best = []
        for c in self.settings.conditions:
            mine = [
                (v, g.model)
                for g in groups(rows)
                if g.condition == c.name and (v := g.summary("error").mean) is not None
            ]
            best += [f"{c.name}: {min(mine)[1]} {min(mine)[0]:.2f}"] if mine else []
        return f"Lowest error (1: trivial baseline): {'; '.join(best)}. {super().verdict(rows)}"


def _majority_share(y: Tensor) -> float:
    """Return the share of the most frequent value."""
    return float(y.bincount().max()) / len(y)

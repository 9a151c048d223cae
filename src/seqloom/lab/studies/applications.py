"""Applications of recurrent networks: speech, translation, forecasts, gestures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.masks import make_mask
from seqloom.lab.studies.data import series, target_texts
from seqloom.lab.studies.support.conditions import Condition, TrialSettings
from seqloom.lab.studies.support.contenders import layer, starts
from seqloom.lab.studies.support.corpora import Corpora, Corpus
from seqloom.lab.studies.support.epochs import fast
from seqloom.lab.studies.support.outcome import Trial, TrialMetric, groups
from seqloom.lab.studies.support.trials import Tensors
from seqloom.lab.studies.topologies import answers, translate
from seqloom.layers.registry import make
from seqloom.models.classify import Classify
from seqloom.models.decoding.likelihood import IGNORED
from seqloom.models.forecast import Forecast

HEADS, DAY = 4, 24
DIGITS, SENTENCES, HOURS, MOTIONS, GESTURES = (
    "spoken digits",
    "English into Chinese",
    "transformer temperature, 96 hours ahead",
    "motions of a wrist",
    "gestures of picking up",
)
ARCHIVE = {MOTIONS: ("BasicMotions", 6, 4), GESTURES: ("PickupGestureWiimoteZ", 1, 10)}  # features, classes


def at(name: str, steps: int, T: int, budget: int = 66_700, every: int = 1) -> Condition:
    return Condition(
        name, steps, {"of": name, "T": T, "budget": budget, "every": every, "vocabulary": 5_000, "width": 64}
    )


class Applications(Corpora[TrialSettings], name="applications"):
    """Spoken digits, translation, forecasting and gestures: error relative to a trivial baseline."""

    metrics = (TrialMetric("error", lower=True), TrialMetric("absolute error", lower=True))
    full = TrialSettings(
        (
            at(DIGITS, 1_000, 48),
            at(SENTENCES, 2_000, 24, 1_000_000),
            at(HOURS, 1_500, 96),
            at(MOTIONS, 500, 100),
            at(GESTURES, 500, 361),
        ),
        ("rnn", "lstm", "gru", "attn_rnn", "transformer"),
        starts=("default",),
        valid=700,
        test=700,
    )
    quick = TrialSettings(
        (at(MOTIONS, 30, 50, 3_000), at(HOURS, 30, 24, 8_000, every=8)),
        ("gru", "attn_rnn", "transformer"),
        seeds=2,
        lrs=(1e-2,),
        starts=("default",),
        batch=16,
        valid=100,
        test=100,
    )

    def corpus(self, condition: Condition) -> Corpus:
        task, s = condition.task, self.settings
        if task["of"] == SENTENCES:
            rows, english, chinese = target_texts.sentences(task["vocabulary"], task["T"], task["every"])
            return Corpus.split(rows, s.valid, s.test, (english, chinese))
        if task["of"] == HOURS:
            parts = series.temperature(task["T"], 4 * DAY, task["every"])
        elif task["of"] == DIGITS:
            parts = series.spoken_digits(task["T"], task["every"])
        else:
            parts, _ = series.motions(ARCHIVE[task["of"]][0], task["T"])
        return Corpus(parts)

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        if task["of"] == SENTENCES:
            return translate(model, task["width"], task["vocabulary"], hidden, start, task["T"])
        inputs, classes = {HOURS: (7, 0), DIGITS: (series.SOUND.bands, 10)}.get(task["of"]) or ARCHIVE[task["of"]][1:]
        if model == "transformer":
            inner = make("bi_transformer", inputs, hidden, layers=2, heads=HEADS)
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
        return F.cross_entropy(scores.flatten(0, -2), target.flatten())

    def tally(self, model: nn.Module, batch: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        if isinstance(model, Forecast):
            with fast(model, batch[0].device):
                off = model(batch[0]).float() - batch[1]
            return {"absolute error": (off.square().sum(), torch.tensor(off.numel()))}
        scores, target = answers(model, batch)
        asked = target != IGNORED
        return {"absolute error": (((scores.argmax(-1) != target) & asked).sum(), asked.sum())}

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
        if condition.task["of"] == SENTENCES:
            m = make_mask(part[3] - 1, part[1].shape[1] - 1)
            return 1 - _majority_share(part[1][:, 1:][m])
        return 1 - _majority_share(part[1])

    def trivial(self, condition: Condition) -> float:
        return 1.0

    def caption(self) -> str:
        return (
            f"{super().caption()}\n"
            "error: relative to a trivial baseline (the most frequent answer, or repeating the last day); absolute "
            "error: "
            "share of wrong classes or characters, or the mean squared error of the 7 series of ETTh1.\n"
            "validation: recordings 5-9 of each speaker and digit; months 13 to 16; every fourth of the 40 motions and "
            "50 gestures for training."
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

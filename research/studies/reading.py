"""Reading comprehension and summaries: questions about generated stories, and the central sentence of a review."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.data.stories import PLACES, WORDS, stories
from research.studies.data.summaries import summaries
from research.studies.support.conditions import TEST, Condition, TrialSettings
from research.studies.support.contenders import layer, starts
from research.studies.support.corpora import Corpora, Corpus
from research.studies.support.epochs import fast
from research.studies.support.metric import ACCURACY, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.trials import Tensors
from seqloom.layers.registry import make
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed

HEADS = 4
TRIVIAL = "trivial"  # the score of the baseline
SUMMARY = "summary of a review"
QUESTIONS = {
    "where is a person (1 fact)": 1,
    "where is a thing (2 facts)": 2,
    "where was a thing before (3 facts)": 3,
}


def at(name: str, steps: int, T: int = 72, budget: int = 66_700, every: int = 1) -> Condition:
    task = {"facts": QUESTIONS.get(name, 0), "T": T, "budget": budget, "every": every, "width": 32}
    return Condition(name, steps, task | ({} if name in QUESTIONS else {"vocabulary": 8_000}))


class PickSentence(nn.Module):
    """Score each sentence at its last word, with a layer that reads in both directions."""

    def __init__(self, embed: Embed, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer = embed, layer
        self.head = nn.Linear(int(layer.output_size), 1)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor, ends: Tensor) -> Tensor:
        """Map ids (B, T), lengths (B,) and the last words of sentences (B, S) to scores (B, S); -1 is no sentence."""
        y, _ = self.layer(self.embed(x), lengths=lengths)
        scores = self.head(y).squeeze(-1).float().gather(1, ends.clamp(min=0))
        return scores.masked_fill(ends < 0, -1e4)


class Reading(Corpora[TrialSettings], name="reading"):
    """Answers to questions about stories, and the sentence that sums up a review."""

    metrics = (TrialMetric("accuracy", ACCURACY),)
    full = TrialSettings(
        (*(at(name, 1_000, 60) for name in QUESTIONS), at(SUMMARY, 600, 160, 400_000)),
        ("lstm", "gru", "attn_rnn", "transformer"),
        seeds=3,
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default",),
        valid=1_000,
        test=1_000,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        widen_by=0.005,
    )
    quick = TrialSettings(
        (at("where is a person (1 fact)", 300, 56, 16_000, every=2),),
        ("gru", "attn_rnn", "transformer"),
        seeds=2,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=500,
        test=500,
    )

    def corpus(self, condition: Condition) -> Corpus:
        task, s = condition.task, self.settings
        if task["facts"]:
            return Corpus(_cut(stories(task["facts"], task["T"], task["every"]), s), (list(WORDS),))
        parts, words = summaries(task["vocabulary"], task["T"], task["every"], s.valid, s.test)
        return Corpus(parts, (words,))

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        embed = Embed(task.get("vocabulary", len(WORDS)), task["width"], scaled=True)
        both = not task["facts"]
        if model == "transformer":
            inner = make("bi_transformer", task["width"], hidden, num_layers=2, heads=HEADS)
        else:
            size = hidden // 2 if both else hidden
            inner = layer(model, task["width"], size, start, task["T"], bidirectional=both)
        return PickSentence(embed, inner) if both else Classify(inner, len(PLACES), "last", embed=embed)

    def multiple(self, model: str) -> int:
        return 2 * HEADS if model == "transformer" else 2 * super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        first = "default" if model == "transformer" else starts(model, self.settings.starts)[0]
        return [(lr, first) for lr in self.settings.lrs]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        return F.cross_entropy(_answer(model, batch), batch[1])

    def tally(self, model: nn.Module, batch: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        right = _answer(model, batch).argmax(-1) == batch[1]
        return {"accuracy": (right.sum(), torch.tensor(len(right)))}

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        scores = super().score(model, condition, split, device)
        return scores | {TRIVIAL: self.trivial_accuracy(condition, split)}

    def count_answers(self, condition: Condition) -> int | None:
        return self.settings.test

    def trivial_accuracy(self, condition: Condition, split: str) -> float:
        """Return the accuracy of the most frequent answer, or of the longest sentence if that is better."""
        part = self.read(condition).parts[split]
        frequent = float(part[1].bincount().max()) / len(part[1])
        if condition.task["facts"]:
            return frequent
        ends = part[3]
        begins = F.pad(ends, (1, 0), value=-1)[:, :-1]
        longest = (ends - begins).argmax(1)
        return max(frequent, float((longest == part[1]).float().mean()))

    def run(self, before: Callable[[str], None]) -> Iterator[Trial]:
        self._trivial: dict[str, float] = {}  # of the stored trials, so that a report needs no data set
        for trial in super().run(before):
            if trial.split == TEST and not trial.failed:
                self._trivial[trial.condition] = trial.scores[TRIVIAL]
            yield trial

    def trivial(self, condition: Condition) -> float | None:
        return self._trivial.get(condition.name)

    def caption(self) -> str:
        return (
            f"{super().caption()}\n"
            "stories: 4 to 10 sentences by rules, 20,000 for training, the answer is one of 6 places; trivial: the "
            "most frequent place. summary: of the first 8 sentences of an IMDB review (160 words), the one with the "
            "largest cosine to the others, words weighted by rarity; both directions are read; trivial: the longest "
            "sentence, or the most frequent place of the summary if that is better."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        best = []
        for c in self.settings.conditions:
            mine = [(g.summary("accuracy").mean or 0.0, g.model) for g in groups(rows) if g.condition == c.name]
            beside = f" (trivial {baseline:.1%})" if (baseline := self.trivial(c)) is not None else ""
            best += [f"{c.name}: {max(mine)[1]} {max(mine)[0]:.1%}{beside}"] if mine else []
        return f"Highest accuracy: {'; '.join(best)}. {super().verdict(rows)}"


def _cut(parts: dict[str, Tensors], settings: TrialSettings) -> dict[str, Tensors]:
    most = {"valid": settings.valid, "test": settings.test}
    return {name: tuple(t[: most.get(name, len(t))] for t in part) for name, part in parts.items()}


def _answer(model: nn.Module, batch: Tensors) -> Tensor:
    """Return scores of places (B, 6) or sentences (B, 8) in float32."""
    x, _, lengths, *ends = batch
    with fast(model, x.device):
        return model(x, lengths, *ends).float()

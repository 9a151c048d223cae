"""The RNN family: plain and gated, bidirectional and deep."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import nn

from research.studies.data.examples import LabelledRows
from research.studies.data.text import encode, names, vocabulary
from research.studies.support.conditions import TEST, VALID, Condition, ConditionOptions, TrialSettings
from research.studies.support.contenders import count_trained, find_hidden_size, layer
from research.studies.support.epochs import TRAIN, Epochs, SnapshotModel, fast
from research.studies.support.metric import COST, TrialMetric
from research.studies.support.outcome import Trial, groups
from seqloom.lab.data import digits
from seqloom.lab.report.page import PageBlock, Table
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import time_call

LETTERS, KNOWN, WIDTH, LANGUAGES = 20, 96, 32, 18
FINE = 2  # hidden sizes of RNN, LSTM and GRU are multiples of this
MOST = {"names": 0.5185, "digits": 0.1}  # share of the most frequent class
PRINTED = {  # RNN family article, table 5.2: training speed, stability, memory
    "rnn": ("fastest", "least stable", "least memory"),
    "lstm": ("slowest", "most stable", "most memory"),
    "gru": ("between", "between", "between"),
}
WORDS = (("fastest", "slowest"), ("most stable", "least stable"), ("least memory", "most memory"))
CELLS = ("rnn", "lstm", "gru", "attn_rnn")


def at(layers: int, steps: int, both: bool = False, data: str = "names", **more: Unpack[ConditionOptions]) -> Condition:
    name = f"{layers} layer{'s' * (layers > 1)}{', both ways' * both}"
    task = {"data": data, "layers": layers, "both": both, "rounds": 4}
    return Condition(name, steps, task | {"train": 13_012 if data == "names" else 1_078}, **more)


class Family(Epochs[TrialSettings], name="family"):
    """Accuracy, stability, time and memory of RNN, LSTM, GRU and AttnRNN with one to eight layers."""

    metrics = (*Epochs.metrics, TrialMetric("ms per batch", COST), TrialMetric("MB saved", COST))
    full = TrialSettings(
        (at(1, 1_000), at(2, 1_000), at(4, 1_000), at(8, 1_000), at(1, 1_000, both=True), at(2, 1_000, both=True)),
        CELLS,
        budget=78_000,  # AttnRNN, in steps of 16, is close to it with 1, 2, 4 and 8 layers
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default",),
        valid=2_000,
        test=3_000,
        tuning=0.5,
        widen=True,
        widen_by=0.005,
    )
    quick = TrialSettings(
        (at(1, 100, data="digits"), at(2, 100, data="digits"), at(1, 100, both=True, data="digits")),
        CELLS,
        seeds=2,
        budget=4_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=359,
        test=360,
    )
    paper = TrialSettings(
        (at(1, 1_500),), ("rnn", "lstm", "gru"), hidden=128, lrs=(1e-3,), starts=("default",), valid=1, test=3_000
    )
    paper_quick = TrialSettings(
        (at(1, 100, data="digits"),), ("rnn", "lstm", "gru"), 3, 0, 24, (1e-2,), ("default",), 32, valid=1, test=360
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        s, train = self.settings, condition.task["train"]
        if condition.task["data"] == "digits":
            parts = digits.load()
            x, y = {TRAIN: parts.train, VALID: parts.validation, TEST: parts.test}[split]
            return LabelledRows(x, torch.full((len(x),), x.shape[1]), y)
        examples, _ = names(LETTERS)
        data = encode(examples, vocabulary(examples[0], KNOWN), LETTERS).shuffle()
        begin = {TEST: 0, VALID: s.test, TRAIN: s.test + s.valid}[split]
        return data.part(begin, begin + {TEST: s.test, VALID: s.valid, TRAIN: train}[split])

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        of_names = task["data"] == "names"
        inputs = WIDTH if of_names else 8
        inner = layer(model, inputs, hidden, start, LETTERS, num_layers=task["layers"], bidirectional=task["both"])
        embed = Embed(KNOWN, WIDTH, scaled=True) if of_names else None
        return Classify(inner, LANGUAGES if of_names else 10, embed=embed)

    def multiple(self, model: str) -> int:
        """Return fine steps, so that every depth meets the budget; short rows are fast at any size."""
        return super().multiple(model) if model.startswith("attn_rnn") else FINE

    def budget(self, condition: Condition) -> int:
        """Return the parameters of AttnRNN closest to the budget; its sizes are the coarsest, so the others follow."""
        build = self.builder("attn_rnn", condition)
        return count_trained(build(find_hidden_size(build, self.settings.budget, self.multiple("attn_rnn"))))

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        scores = super().score(model, condition, split, device)
        if split != TEST:
            return scores
        with torch.inference_mode(False), torch.enable_grad():
            return scores | self._costs(model, condition)

    def _costs(self, model: nn.Module, condition: Condition) -> dict[str, float]:
        """Measure one training step, forward and backward, with nothing else running."""
        assert isinstance(model, SnapshotModel) and isinstance(model.model, Classify)
        batch = self.draw(condition)(torch.Generator(self.device).manual_seed(0), torch.device(self.device))
        x, lengths, _ = batch
        inner, embed = model.model.layer, model.model.embed
        inputs = (x if embed is None else embed(x)).detach()

        def run() -> None:
            model.zero_grad()
            nn.functional.cross_entropy(model(x, lengths), batch[-1]).backward()

        run()  # the first call loads kernels
        with fast(inner, inputs.device):
            saved = saved_bytes(inner, inputs)
        return {"ms per batch": 1e3 * time_call(run, self.device), "MB saved": saved / 1e6}

    def trivial(self, condition: Condition) -> float:
        return MOST[condition.task["data"]]

    def at(self, condition: Condition) -> float | None:
        return None if condition.task["both"] else float(condition.task["layers"])

    axis = "layers"

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        note = "deviation: of the accuracy over seeds, in points; article: ranks in the RNN family article"
        return [*super().blocks(rows), Table("Speed, stability and memory", self._rank_models(rows), note)]

    def _rank_models(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        """Return table 5.2 of the RNN family article, measured for each condition; ranks are among its three cells."""
        table = []
        for c in self.settings.conditions:
            mine = {g.model: g for g in groups(rows) if g.condition == c.name}
            values = {}
            for name, g in mine.items():
                accuracies = [100 * v for v in g.values("accuracy") if v is not None]
                spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
                values[name] = (g.summary("ms per batch").mean, spread, g.summary("MB saved").mean)
            for name, measured in values.items():
                row: dict[str, Any] = {"condition": c.name, "model": name}
                for i, what in enumerate(("ms per batch", "deviation", "MB saved")):
                    others = [v[i] for m, v in values.items() if m in PRINTED]
                    place = _rank(measured[i], others, WORDS[i]) if name in PRINTED else None
                    row |= {what: measured[i], f"{what}, here": place}
                    row |= {f"{what}, article": PRINTED[name][i] if name in PRINTED else None}
                table.append(row)
        return table

    def verdict(self, rows: Sequence[Trial]) -> str:
        compared = [row for row in self._rank_models(rows) if row["ms per batch, here"] is not None]
        columns = [k.removesuffix(", here") for k in (compared[0] if compared else {}) if k.endswith(", here")]
        agreements = []
        for what in columns:
            agree = sum(row[f"{what}, here"] == row[f"{what}, article"] for row in compared)
            agreements += [f"{what} in {agree}"] if any(row[f"{what}, here"] for row in compared) else []
        first = f"Agreement with the {len(compared)} ranks in the RNN family article: {', '.join(agreements)}. "
        return f"{first if compared else ''}{super().verdict(rows)}"

    def caption(self) -> str:
        costs = "ms per batch: forward and backward, nothing else running; MB saved: by the layer for the backward."
        if self.protocol == "paper":
            return (
                f"setup of the RNN family article: {self.settings.hidden} units for every cell, one layer. Not given "
                f"in the article, so chosen here: lr {self.settings.lrs[0]:g}; {self._data()}.\n{costs}"
            )
        sizes = "the other models match the parameters of AttnRNN, which has the coarsest sizes"
        return f"{super().caption()}\n{sizes}; {self._data()}; trivial: the most frequent class.\n{costs}"

    def _data(self) -> str:
        kinds = {c.task["data"] for c in self.settings.conditions}
        return (
            f"surnames of {LANGUAGES} languages, letter by letter" if "names" in kinds else "8 x 8 digits, row by row"
        )


def _rank(value: float | None, others: Sequence[float | None], words: tuple[str, str]) -> str | None:
    """Return the rank of a value; None if a cell of the article has no value."""
    known = [v for v in others if v is not None]
    if value is None or len(known) < len(PRINTED):
        return None
    if len(set(known)) < 2:
        return "equal"
    return words[0] if value == min(known) else words[1] if value == max(known) else "between"

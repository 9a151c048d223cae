"""The family of recurrent networks: plain and gated, both ways, and deep."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from seqloom.lab.data import digits
from seqloom.lab.report.page import PageBlock, Table
from seqloom.lab.studies.data.examples import Examples
from seqloom.lab.studies.data.text import encoded, names, vocabulary
from seqloom.lab.studies.support.conditions import TEST, VALID, Condition, Settings
from seqloom.lab.studies.support.contenders import hidden_size, layer, trained
from seqloom.lab.studies.support.epochs import TRAIN, Epochs, Kept, fast
from seqloom.lab.studies.support.outcome import Metric, Trial, groups
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import time_call

LETTERS, KNOWN, WIDTH, LANGUAGES = 20, 96, 32, 18
FINE = 2  # steps of the hidden sizes of RNN, LSTM and GRU
MOST = {"names": 0.5185, "digits": 0.1}  # the share of the most frequent class
PRINTED = {  # seed 001, table 5.2: training speed, stability, memory
    "rnn": ("fastest", "least stable", "least memory"),
    "lstm": ("slowest", "most stable", "most memory"),
    "gru": ("between", "between", "between"),
}
WORDS = (("fastest", "slowest"), ("most stable", "least stable"), ("least memory", "most memory"))
CELLS = ("rnn", "lstm", "gru", "attn_rnn")


def at(layers: int, steps: int, both: bool = False, data: str = "names", **more: Any) -> Condition:
    name = f"{layers} layer{'s' * (layers > 1)}{', both ways' * both}"
    task = {"data": data, "layers": layers, "both": both, "rounds": 4}
    return Condition(name, steps, task | {"train": 13_012 if data == "names" else 1_078}, **more)


class Family(Epochs[Settings], name="family"):
    """RNN, LSTM, GRU and AttnRNN, one to eight layers, one way and both: accuracy, stability, time, memory."""

    metrics = (*Epochs.metrics, Metric("ms alone", lower=True), Metric("MB kept", lower=True))
    full = Settings(
        (at(1, 1_000), at(2, 1_000), at(4, 1_000), at(8, 1_000), at(1, 1_000, both=True), at(2, 1_000, both=True)),
        CELLS,
        budget=78_000,  # AttnRNN in steps of 16 is near to it with 1, 2, 4 and 8 layers
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default",),
        valid=2_000,
        test=3_000,
        tuning=0.5,
    )
    quick = Settings(
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
    paper = Settings(
        (at(1, 1_500),), ("rnn", "lstm", "gru"), hidden=128, lrs=(1e-3,), starts=("default",), valid=1, test=3_000
    )
    paper_quick = Settings(
        (at(1, 100, data="digits"),), ("rnn", "lstm", "gru"), 3, 0, 24, (1e-2,), ("default",), 32, valid=1, test=360
    )

    def examples(self, condition: Condition, split: str) -> Examples:
        s, train = self.settings, condition.task["train"]
        if condition.task["data"] == "digits":
            parts = digits.load()
            x, y = {TRAIN: parts.train, VALID: parts.validation, TEST: parts.test}[split]
            return Examples(x, torch.full((len(x),), x.shape[1]), y)
        found, _ = names(LETTERS)
        data = encoded(found, vocabulary(found[0], KNOWN), LETTERS).shuffled()
        begin = {TEST: 0, VALID: s.test, TRAIN: s.test + s.valid}[split]
        return data.part(begin, begin + {TEST: s.test, VALID: s.valid, TRAIN: train}[split])

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        of_names = task["data"] == "names"
        inputs = WIDTH if of_names else 8
        made = layer(model, inputs, hidden, start, LETTERS, num_layers=task["layers"], bidirectional=task["both"])
        embed = Embed(KNOWN, WIDTH, scaled=True) if of_names else None
        return Classify(made, LANGUAGES if of_names else 10, embed=embed)

    def multiple(self, model: str) -> int:
        """Fine steps, so that one budget is spent at every depth: short rows are fast at any size."""
        return super().multiple(model) if model == "attn_rnn" else FINE

    def budget(self, condition: Condition) -> int:
        """What AttnRNN has where it is nearest to the budget: its sizes are the coarsest, so the others follow."""
        build = self.sized("attn_rnn", condition)
        return trained(build(hidden_size(build, self.settings.budget, self.multiple("attn_rnn"))))

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        found = super().score(model, condition, split, device)
        if split != TEST:
            return found
        with torch.inference_mode(False), torch.enable_grad():
            return found | self._costs(model, condition)

    def _costs(self, model: nn.Module, condition: Condition) -> dict[str, float]:
        """Of one training step, with no other beside it: forward and backward."""
        assert isinstance(model, Kept) and isinstance(model.model, Classify)
        batch = self.draw(condition)(torch.Generator(self.device).manual_seed(0), torch.device(self.device))
        x, lengths, _ = batch
        inner, embed = model.model.layer, model.model.embed
        given = (x if embed is None else embed(x)).detach()

        def run() -> None:
            model.zero_grad()
            nn.functional.cross_entropy(model(x, lengths), batch[-1]).backward()

        run()  # a first call loads kernels
        with fast(inner, given.device):
            kept = saved_bytes(inner, given)
        return {"ms alone": 1e3 * time_call(run, self.device), "MB kept": kept / 1e6}

    def trivial(self, condition: Condition) -> float:
        return MOST[condition.task["data"]]

    def at(self, condition: Condition) -> float | None:
        return None if condition.task["both"] else float(condition.task["layers"])

    axis = "layers"

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        note = (
            "stability: the standard deviation of the accuracy over seeds, in points; the document's words beside ours"
        )
        return [*super().blocks(rows), Table("Speed, stability and memory", self._compared(rows), note)]

    def _compared(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        """The document's table 5.2, measured: for each condition; places are among its three cells."""
        made = []
        for c in self.settings.conditions:
            mine = {g.model: g for g in groups(rows) if g.condition == c.name}
            values = {}
            for name, g in mine.items():
                accuracies = [100 * v for v in g.values("accuracy") if v is not None]
                spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
                values[name] = (g.summary("ms alone").mean, spread, g.summary("MB kept").mean)
            for name, measured in values.items():
                row: dict[str, Any] = {"condition": c.name, "model": name}
                for i, what in enumerate(("ms alone", "deviation", "MB kept")):
                    others = [v[i] for m, v in values.items() if m in PRINTED]
                    place = _place(measured[i], others, WORDS[i]) if name in PRINTED else None
                    row |= {what: measured[i], f"{what}, here": place}
                    row |= {f"{what}, document": PRINTED[name][i] if name in PRINTED else None}
                made.append(row)
        return made

    def verdict(self, rows: Sequence[Trial]) -> str:
        compared = [row for row in self._compared(rows) if row["ms alone, here"] is not None]
        kept = [k.removesuffix(", here") for k in (compared[0] if compared else {}) if k.endswith(", here")]
        told = []
        for what in kept:
            agree = sum(row[f"{what}, here"] == row[f"{what}, document"] for row in compared)
            told += [f"{what} in {agree}"] if any(row[f"{what}, here"] for row in compared) else []
        first = (
            f"Of {len(compared)} places that the document gives RNN, LSTM and GRU, ours agree for {', '.join(told)}. "
        )
        return f"{first if compared else ''}{super().verdict(rows)}"

    def caption(self) -> str:
        alone = "ms alone: forward and backward of a batch, nothing beside it; MB kept: by the layer for the backward."
        if self.protocol == "paper":
            return (
                f"the same {self.settings.hidden} units for every cell, as the document compares them, one layer, "
                f"lr {self.settings.lrs[0]:g}; it names no data: {self._data()}.\n{alone}"
            )
        sizes = "the others have as many parameters as AttnRNN, whose sizes are the coarsest"
        return f"{super().caption()}\n{sizes}; {self._data()}; trivial: the most frequent class.\n{alone}"

    def _data(self) -> str:
        kinds = {c.task["data"] for c in self.settings.conditions}
        return (
            f"surnames of {LANGUAGES} languages, letter by letter" if "names" in kinds else "8 x 8 digits, row by row"
        )


def _place(value: float | None, others: Sequence[float | None], words: tuple[str, str]) -> str | None:
    """None where one of the document's cells has no number: then nobody has a place among them."""
    known = [v for v in others if v is not None]
    if value is None or len(known) < len(PRINTED):
        return None
    if len(set(known)) < 2:
        return "not told apart"
    return words[0] if value == min(known) else words[1] if value == max(known) else "between"

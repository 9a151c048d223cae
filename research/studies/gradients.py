"""How much of a gradient is left after many steps: before, during and after training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product as every
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.study import Study
from research.studies.support import gradient_norms
from research.studies.support.contenders import Reader, layer, starts
from research.studies.support.gradient_norms import LEAST
from research.studies.support.ledger import Ledger
from seqloom.core.plurals import count
from seqloom.lab.data.synthetic.adding import adding
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.report.page import PageBlock, Table
from seqloom.lab.training.many import train_many
from seqloom.lab.training.recipe import Recipe, SmallTraining
from seqloom.layers.recurrent.layer import Recurrent

ARTICLE_SEED = 54  # torch seed that reproduces the column of the AttnRNN article
PRINTED = {  # AttnRNN article: |dL/dh_0| by length
    "attn_rnn": {64: 1.6461e-02, 128: 1.5219e-03, 256: 2.8308e-04, 512: 2.2813e-06, 1024: 5.1038e-10},
    "rnn": dict.fromkeys((64, 128, 256, 512, 1024), 0.0),
    "lstm": {64: 8.3372e-07, 128: 1.7509e-10, 256: 7.7239e-18, 512: 0.0, 1024: 0.0},
    "gru": {64: 4.4385e-09, 128: 4.8556e-16, 256: 0.0, 512: 0.0, 1024: 0.0},
}
INPUT_SEED = 10_000  # offset, so that the input differs from the numbers that initialise the weights
STAGES = {"start": 0.0, "half-way": 0.5, "trained": 1.0}


@dataclass(frozen=True)
class GradientSettings:
    """Settings of the gradients study."""

    models: tuple[str, ...] = ("attn_rnn", "rnn", "lstm", "gru")
    seeds: int = 20
    starts: tuple[str, ...] = ("default", "keep 1", "keep 3", "keep 5", "chrono")
    inputs: tuple[str, ...] = ("ones", "normal")
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    size: int = 64  # d = h
    products: int = 5  # seeds for which products of Jacobians are also computed
    steps: int = 1_000  # training steps on adding; 0: no training
    span: int = 200  # length of the adding problem


@dataclass(frozen=True)
class Reach:
    """Gradient norms of one layer and seed along one input, at every length."""

    model: str
    start: str
    input: str
    stage: str
    seed: int
    gradient: list[float]  # |dL/dh_0|
    product: list[float]  # spectral norm of dh_T/dh_0; empty if not computed

    def __str__(self) -> str:
        what = f"{self.model}, {self.start}, {self.input}, {self.stage}, seed {self.seed}"
        return f"{what}: {self.gradient[0]:.2e} .. {self.gradient[-1]:.2e}"


@dataclass(frozen=True)
class Case:
    """One measurement to make; stages after the start are on the adding problem."""

    model: str
    start: str
    input: str
    stage: str
    seed: int


class Gradients(Study[GradientSettings, Reach], name="gradients"):
    """How gradients decay with distance: 20 seeds, varied biases, before, during and after training."""

    full = GradientSettings()
    quick = GradientSettings(
        seeds=3, starts=("default", "keep 3"), lengths=(16, 64, 256), products=1, steps=60, span=30
    )
    paper = GradientSettings(seeds=1, starts=("default",), inputs=("ones",), products=0, steps=0)

    def cases(self) -> list[Case]:
        s = self.settings
        cases = [
            Case(model, start, x, "start", seed)
            for model in s.models
            for start in starts(model, s.starts if model != "rnn" else s.starts[:1])
            for x, seed in every(s.inputs, range(s.seeds))
        ]
        if s.steps:
            stages = every(s.models, STAGES, range(min(s.seeds, 5)))
            cases += [Case(model, "default", "adding", stage, seed) for model, stage, seed in stages]
        return cases

    @property
    def parts(self) -> int:
        return len(self.cases())

    def run(self, before: Callable[[str], None]) -> Iterator[Reach]:
        ledger, cases = Ledger(self.folder), self.cases()
        if self.replays:
            self.missing = [str(c) for c in cases if ledger.get(self._key(c)) is None]
            cases = [c for c in cases if ledger.get(self._key(c)) is not None]
        with use_one_thread():
            trained = self._train_cases([c for c in cases if c.input == "adding" and ledger.get(self._key(c)) is None])
            drawn = self._build_article_layers() if self.protocol == "paper" else {}
            for case in cases:
                before(f"{case.model}, {case.start}, {case.input}, {case.stage}, seed {case.seed}")
                known = ledger.get(self._key(case))
                if known is None:
                    layer = trained.get(case) or drawn.get(case.model) or self._layer(case)
                    ledger.add(self._key(case), asdict(self._measure(case, layer)))
                    known = ledger.get(self._key(case))
                yield Reach(**(known or {}))

    def _key(self, case: Case) -> dict[str, Any]:
        s = self.settings
        training = {"steps": s.steps, "span": s.span, "device": self.device} if case.input == "adding" else {}
        sizes = {"lengths": s.lengths, "size": s.size, "product": case.seed < s.products}
        return {"study": f"gradients-{self.protocol}", "version": 1} | asdict(case) | sizes | training

    def _layer(self, case: Case) -> Recurrent:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            return layer(case.model, self.settings.size, self.settings.size, case.start, max(self.settings.lengths))

    def _build_article_layers(self) -> dict[str, Recurrent]:
        """Build the four layers of the article from one random state, in its order."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ARTICLE_SEED)
            return {model: layer(model, self.settings.size, self.settings.size, "default", 0) for model in PRINTED}

    def _train_cases(self, cases: Sequence[Case]) -> dict[Case, Any]:
        """Return layers of two inputs after no, half or all of the training; half has its own schedule."""
        s, problem = self.settings, adding(self.settings.span).problem

        def batch(random: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
            with torch.device(device):
                examples = problem.make(random, 64)
            return examples.x, examples.y

        def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return F.mse_loss(model(batch[0]), batch[1])

        layers: dict[Case, Any] = {}
        trainings = []
        for case in cases:
            build = partial(_reader, case.model, s.size)
            steps = round(STAGES[case.stage] * s.steps)
            if steps:
                trainings.append((case, SmallTraining(str(case), build, batch, loss, Recipe(steps, 3e-3), case.seed)))
            else:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(case.seed)
                    layers[case] = build().layer
        done = train_many([t for _, t in trainings], self.device)
        for (case, _), one in zip(trainings, done, strict=True):
            if one.model is None or one.failed:
                raise RuntimeError(f"{case}: {one.failed}")
            layers[case] = one.model.layer
        return layers

    def _measure(self, case: Case, layer: Recurrent) -> Reach:
        printed = self.protocol == "paper"
        layer = copy.deepcopy(layer).cpu().to(torch.float32 if printed else torch.float64)
        long = self._input(case, max(self.settings.lengths)).to(torch.float32 if printed else torch.float64)
        wanted = self.settings.lengths if case.seed < self.settings.products else ()
        return Reach(
            **asdict(case),
            gradient=[gradient_norms.gradient(layer, long[:T]) for T in self.settings.lengths],
            product=[gradient_norms.product(layer, long[:T]) for T in wanted],
        )

    def _input(self, case: Case, T: int) -> Tensor:
        random = torch.Generator().manual_seed(INPUT_SEED + case.seed)
        if case.input == "adding":
            return adding(T).problem.make(random, 1).x[0]
        shape = (T, self.settings.size)
        return torch.ones(shape) if case.input == "ones" else torch.randn(shape, generator=random)

    def table(self, rows: Sequence[Reach]) -> list[dict[str, Any]]:
        if self.protocol == "paper":
            return gradient_norms.compare_with_article(rows, self.settings.lengths, PRINTED)
        return gradient_norms.table(rows, self.settings.lengths)

    def blocks(self, rows: Sequence[Reach]) -> list[PageBlock]:
        return [
            Table("Norms of gradients", self.table(rows), self.caption()),
            *gradient_norms.charts(rows, self.settings.lengths),
        ]

    def caption(self) -> str:
        s = self.settings
        if self.protocol == "paper":
            return (
                f"setup of the AttnRNN article: torch seed {ARTICLE_SEED}, {', '.join(PRINTED)} built in this order, "
                f"d = h = {s.size}, x = ones, h_0 = 0, L = MSE(h_T, 1), float32; the norm of dL/dh_0 in float64"
            )
        return (
            f"|dL/dh_0| for L = MSE(h_T, 1), h_0 = 0, d = h = {s.size}, float64; geometric means over seeds, with "
            f"values below {LEAST:g} counted as {LEAST:g}; lowest, highest: over seeds at T = {s.lengths[-1]:,}; "
            f"product: spectral norm of dh_T/dh_0 there, {count(s.products, 'seed')}.\n"
            "k: slope of log norm = a - k T with its 95% t-interval over seeds, R^2: of this fit; keep b: the keep "
            "gate "
            "starts at sigmoid(b).\n"
            f"adding: d = 2, trained on T = {s.span} with {s.steps:,} steps of batch size 64, lr 3e-3; half-way: "
            "trained "
            "with half as many steps."
        )

    def verdict(self, rows: Sequence[Reach]) -> str:
        if self.protocol == "paper":
            checks = [row["agrees"] for row in self.table(rows) if row["agrees"]]
            return (
                f"{checks.count('yes')} of the {len(checks)} norms in the AttnRNN article are reproduced, to three "
                "digits "
                "or as values that float32 rounds to 0. They come from one seed and default biases; the fair protocol "
                "shows how much depends on both."
            )
        end, table = f"T = {self.settings.lengths[-1]:,}", self.table(rows)
        return " ".join(filter(None, (_start(table, end), _stages(table, end))))


def _reader(model: str, size: int) -> Reader:
    return Reader(layer(model, 2, size, "default", 0), 1)


def _start(table: Sequence[dict[str, Any]], end: str) -> str:
    """Describe each model with its default bias and with the bias that preserves its gradient best."""
    mine = [row for row in table if row["stage"] == "start" and row["input"] != "adding"]
    parts = []
    for x in dict.fromkeys(row["input"] for row in mine):
        texts = []
        for model in dict.fromkeys(row["model"] for row in mine):
            kinds = [row for row in mine if row["model"] == model and row["input"] == x]
            best = max(kinds, key=lambda row: row[end])
            one = kinds[0]
            text = f"{model} {_norm(one[end], 1)} ({_norm(one['lowest'])} .. {_norm(one['highest'])})"
            texts.append(text + (f", {_norm(best[end], 1)} with {best['start']}" if best is not one else ""))
        parts.append(f"x {x}: {'; '.join(texts)}")
    return f"|dL/dh_0| at {end} before training (lowest .. highest seed), {'. '.join(parts)}."


def _stages(table: Sequence[dict[str, Any]], end: str) -> str:
    texts = []
    for model in dict.fromkeys(row["model"] for row in table if row["input"] == "adding"):
        norms = [row[end] for row in table if row["model"] == model and row["input"] == "adding"]
        texts.append(f"{model} {' -> '.join(map(_norm, norms))}")
    return f"Trained on adding, start -> half-way -> trained: {'; '.join(texts)}." if texts else ""


def _norm(norm: float, digits: int = 0) -> str:
    return f"{norm:.{digits}e}" if norm else "0"

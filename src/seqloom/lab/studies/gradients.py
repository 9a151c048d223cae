"""How much of a gradient is left after many steps: at the start, mid-way and after training."""

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

from seqloom.lab.data.synthetic.adding import adding
from seqloom.lab.report.page import PageBlock, Table
from seqloom.lab.studies.study import Study
from seqloom.lab.studies.support import falling, reach
from seqloom.lab.studies.support.contenders import Reader, layer, starts
from seqloom.lab.studies.support.ledger import Ledger
from seqloom.lab.studies.support.reach import LEAST
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.many import Recipe, SmallTraining, train_many

DOCUMENT = 54  # torch's seed under which the document's column comes out
PRINTED = {
    "attn_rnn": {64: 1.6461e-02, 128: 1.5219e-03, 256: 2.8308e-04, 512: 2.2813e-06, 1024: 5.1038e-10},
    "rnn": dict.fromkeys((64, 128, 256, 512, 1024), 0.0),
    "lstm": {64: 8.3372e-07, 128: 1.7509e-10, 256: 7.7239e-18, 512: 0.0, 1024: 0.0},
    "gru": {64: 4.4385e-09, 128: 4.8556e-16, 256: 0.0, 512: 0.0, 1024: 0.0},
}
APART = 10_000  # the input's seed, or it would be drawn from the numbers that made the weights
STAGES = {"start": 0.0, "half-way": 0.5, "trained": 1.0}


@dataclass(frozen=True)
class Settings:
    models: tuple[str, ...] = ("attn_rnn", "rnn", "lstm", "gru")
    seeds: int = 20
    starts: tuple[str, ...] = ("default", "keep 1", "keep 3", "keep 5", "chrono")
    inputs: tuple[str, ...] = ("ones", "normal")
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    size: int = 64  # d = h
    products: int = 5  # seeds with which Jacobians are multiplied, too
    steps: int = 1_000  # of training on adding; 0 trains nothing
    span: int = 200  # length of the adding problem


@dataclass(frozen=True)
class Reach:
    """One layer of one seed along one input, at every length."""

    model: str
    start: str
    input: str
    stage: str
    seed: int
    gradient: list[float]  # |dL/dh_0|
    product: list[float]  # the spectral norm of dh_T/dh_0; empty where it was not asked for

    def __str__(self) -> str:
        what = f"{self.model}, {self.start}, {self.input}, {self.stage}, seed {self.seed}"
        return f"{what}: {self.gradient[0]:.2e} .. {self.gradient[-1]:.2e}"


@dataclass(frozen=True)
class Case:
    """What `Reach` is measured for; stages after the start are on the adding problem."""

    model: str
    start: str
    input: str
    stage: str
    seed: int


class Gradients(Study[Settings, Reach], name="gradients"):
    """How gradients fall with distance: 20 seeds, biases varied, before, during and after training."""

    full = Settings()
    quick = Settings(seeds=3, starts=("default", "keep 3"), lengths=(16, 64, 256), products=1, steps=60, span=30)
    paper = Settings(seeds=1, starts=("default",), inputs=("ones",), products=0, steps=0)

    def cases(self) -> list[Case]:
        s = self.settings
        found = [
            Case(model, start, x, "start", seed)
            for model in s.models
            for start in starts(model, s.starts if model != "rnn" else s.starts[:1])
            for x, seed in every(s.inputs, range(s.seeds))
        ]
        if s.steps:
            stages = every(s.models, STAGES, range(min(s.seeds, 5)))
            found += [Case(model, "default", "adding", stage, seed) for model, stage, seed in stages]
        return found

    @property
    def parts(self) -> int:
        return len(self.cases())

    def run(self, before: Callable[[str], None]) -> Iterator[Reach]:
        ledger, cases = Ledger(self.folder), self.cases()
        with use_one_thread():
            trained = self._trained([c for c in cases if c.input == "adding" and ledger.get(self._key(c)) is None])
            drawn = self._as_printed() if self.protocol == "paper" else {}
            for case in cases:
                before(f"{case.model}, {case.start}, {case.input}, {case.stage}, seed {case.seed}")
                known = ledger.get(self._key(case))
                if known is None:
                    made = trained.get(case) or drawn.get(case.model) or self._layer(case)
                    ledger.add(self._key(case), asdict(self._measured(case, made)))
                    known = ledger.get(self._key(case))
                yield Reach(**(known or {}))

    def _key(self, case: Case) -> dict[str, Any]:
        s = self.settings
        training = {"steps": s.steps, "span": s.span, "device": self.device} if case.input == "adding" else {}
        sizes = {"lengths": s.lengths, "size": s.size, "product": case.seed < s.products}
        return {"study": f"gradients-{self.protocol}", "version": 1} | asdict(case) | sizes | training

    def _layer(self, case: Case) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            return layer(case.model, self.settings.size, self.settings.size, case.start, max(self.settings.lengths))

    def _as_printed(self) -> dict[str, Any]:
        """The document's four, made one after the other from one random state, whichever are asked for."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(DOCUMENT)
            return {model: layer(model, self.settings.size, self.settings.size, "default", 0) for model in PRINTED}

    def _trained(self, cases: Sequence[Case]) -> dict[Case, Any]:
        """Layers of two inputs after no, half or all of the training; half has a decay of its own."""
        s, problem = self.settings, adding(self.settings.span).problem

        def batch(random: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
            with torch.device(device):
                made = problem.make(random, 64)
            return made.x, made.y

        def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return F.mse_loss(model(batch[0]), batch[1])

        found: dict[Case, Any] = {}
        trainings = []
        for case in cases:
            build = partial(_reader, case.model, s.size)
            steps = round(STAGES[case.stage] * s.steps)
            if steps:
                trainings.append((case, SmallTraining(str(case), build, batch, loss, Recipe(steps, 3e-3), case.seed)))
            else:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(case.seed)
                    found[case] = build().layer
        done = train_many([t for _, t in trainings], self.device)
        for (case, _), one in zip(trainings, done, strict=True):
            if one.model is None or one.failed:
                raise RuntimeError(f"{case}: {one.failed}")
            found[case] = one.model.layer
        return found

    def _measured(self, case: Case, made: Any) -> Reach:
        printed = self.protocol == "paper"
        made = copy.deepcopy(made).cpu().to(torch.float32 if printed else torch.float64)
        long = self._input(case, max(self.settings.lengths)).to(torch.float32 if printed else torch.float64)
        wanted = self.settings.lengths if case.seed < self.settings.products else ()
        return Reach(
            **asdict(case),
            gradient=[reach.gradient(made, long[:T]) for T in self.settings.lengths],
            product=[reach.product(made, long[:T]) for T in wanted],
        )

    def _input(self, case: Case, T: int) -> Tensor:
        random = torch.Generator().manual_seed(APART + case.seed)
        if case.input == "adding":
            return adding(T).problem.make(random, 1).x[0]
        shape = (T, self.settings.size)
        return torch.ones(shape) if case.input == "ones" else torch.randn(shape, generator=random)

    def table(self, rows: Sequence[Reach]) -> list[dict[str, Any]]:
        if self.protocol == "paper":
            return falling.printed_table(rows, self.settings.lengths, PRINTED)
        return falling.table(rows, self.settings.lengths)

    def blocks(self, rows: Sequence[Reach]) -> list[PageBlock]:
        return [
            Table("Norms of gradients", self.table(rows), self.caption()),
            *falling.charts(rows, self.settings.lengths),
        ]

    def caption(self) -> str:
        s = self.settings
        if self.protocol == "paper":
            return (
                f"as the document: torch seed {DOCUMENT}, {', '.join(PRINTED)} made in this order, d = h = {s.size}, "
                "x = ones, h_0 = 0, L = MSE(h_T, 1), float32; |dL/dh_0|, the norm itself in float64"
            )
        return (
            f"|dL/dh_0| for L = MSE(h_T, 1), h_0 = 0, d = h = {s.size}, float64; geometric means over seeds, in which "
            f"less than {LEAST:g} beside others counts as {LEAST:g}; lowest, highest at T = {s.lengths[-1]:,}; "
            f"product: spectral norm of dh_T/dh_0 there, {s.products} seeds.\n"
            "k: of log norm = a - k T, 95% t-interval over seeds; keep b: the gate that keeps starts at sigmoid(b).\n"
            f"adding: d = 2, trained on T = {s.span} with {s.steps:,} steps of 64, lr 3e-3; half-way: a training of "
            "half as many."
        )

    def verdict(self, rows: Sequence[Reach]) -> str:
        if self.protocol == "paper":
            told = [row["agrees"] for row in self.table(rows) if row["agrees"]]
            return (
                f"{told.count('yes')} of the document's {len(told)} norms come out, to three digits or as what float32 "
                "rounds to 0. They are one seed and default biases: the fair protocol shows how much hangs on both."
            )
        end, found = f"T = {self.settings.lengths[-1]:,}", self.table(rows)
        return " ".join(filter(None, (_start(found, end), _stages(found, end))))


def _reader(model: str, size: int) -> Reader:
    return Reader(layer(model, 2, size, "default", 0), 1)


def _start(found: Sequence[dict[str, Any]], end: str) -> str:
    """Each model as it comes, and with the bias that carries its gradient furthest."""
    mine = [row for row in found if row["stage"] == "start" and row["input"] != "adding"]
    parts = []
    for x in dict.fromkeys(row["input"] for row in mine):
        said = []
        for model in dict.fromkeys(row["model"] for row in mine):
            kinds = [row for row in mine if row["model"] == model and row["input"] == x]
            best = max(kinds, key=lambda row: row[end])
            one = kinds[0]
            text = f"{model} {_norm(one[end], 1)} ({_norm(one['lowest'])} .. {_norm(one['highest'])})"
            said.append(text + (f", {_norm(best[end], 1)} with {best['start']}" if best is not one else ""))
        parts.append(f"x {x}: {'; '.join(said)}")
    return f"|dL/dh_0| at {end} as the cells start (lowest .. highest seed), {'. '.join(parts)}."


def _stages(found: Sequence[dict[str, Any]], end: str) -> str:
    said = []
    for model in dict.fromkeys(row["model"] for row in found if row["input"] == "adding"):
        norms = [row[end] for row in found if row["model"] == model and row["input"] == "adding"]
        said.append(f"{model} {' -> '.join(map(_norm, norms))}")
    return f"Trained on adding, start -> half-way -> end: {'; '.join(said)}." if said else ""


def _norm(norm: float, digits: int = 0) -> str:
    return f"{norm:.{digits}e}" if norm else "0"

"""Base of studies that train models: conditions x models x seeds, equal sizes, equal tuning, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from research.studies.study import Study
from research.studies.support import trial_report
from research.studies.support.conditions import (
    FINALISTS,
    LADDER,
    TEST,
    TUNING,
    VALID,
    Condition,
    Spec,
    TrialSettings,
    check_sources,
    find_next_rates,
)
from research.studies.support.contenders import count_trained, find_hidden_size, multiple, starts
from research.studies.support.ledger import Ledger
from research.studies.support.metric import TrialMetric
from research.studies.support.outcome import Contest, Trial, contests, format_contests, groups, read_trial
from research.studies.support.reproduction import describe_reproduction
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.report.page import PageBlock
from seqloom.lab.training.many import train_many
from seqloom.lab.training.recipe import Recipe, SmallTraining, TrainedModel

Tensors = tuple[Tensor, ...]
Draw = Callable[[torch.Generator, torch.device], Tensors]
S = TypeVar("S", bound=TrialSettings)


class Trials(Study[S, Trial]):
    """A subclass defines `metrics`, of which the first decides, and `build`, `draw`, `loss` and `score`."""

    metrics: ClassVar[tuple[TrialMetric, ...]]
    against: ClassVar[str] = "attn_rnn"  # the reference model of all comparisons
    axis: ClassVar[str] = "length T"
    version: ClassVar[int] = 1  # increase it when the same settings give different trials

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        """Build a model of this size, using the current random state."""
        raise NotImplementedError

    def draw(self, condition: Condition) -> Draw:
        """Return a function that draws training batches on the device, always of the same shapes, without syncs."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        raise NotImplementedError

    def prepare(self, draw: Draw, model: nn.Module, random: torch.Generator, done: int) -> None:
        """Do what is due before a training step, after `done` of them; it is not recorded in a CUDA graph."""

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        """Return every metric by name, on "valid" or "test"."""
        raise NotImplementedError

    def count_answers(self, condition: Condition) -> int | None:
        """Return how many test answers are right or wrong by the first metric, see `TrialMetric.resolution`.

        It is called if the kind of the metric is counted, or may be, and must not read any data.
        """
        raise NotImplementedError

    def trivial(self, condition: Condition) -> float | None:
        """Return the first metric of a trivial baseline, or None."""
        return None

    def article_value(self, condition: Condition, model: str) -> float | None:
        """Return the value of the first metric in the source article, or None."""
        return None

    def at(self, condition: Condition) -> float | None:
        """Return the x value of the condition in charts, or None."""
        return None

    def kind(self, condition: Condition) -> str:
        """Return the kind of a condition; conditions of one kind share a chart."""
        return ""

    def multiple(self, model: str) -> int:
        """Return the number that hidden sizes must be a multiple of."""
        return multiple(model, self.device)

    def budget(self, condition: Condition) -> int:
        """Return the number of trained parameters that hidden sizes are chosen for."""
        return self.settings.budget

    def grid(self, model: str) -> list[tuple[float, str]]:
        """Return the learning rates and starts to try, the same number for every model."""
        return list(product(self.settings.lrs, starts(model, self.settings.starts)))

    @property
    def parts(self) -> int:
        s = self.settings
        pairs = [(c, m) for c in s.conditions for m in self.models(c)]
        tuned = [(c, m) for c, m in pairs if self.tunes(c, m)]
        tuning = sum(len(self.grid(m)) * s.tuning_seeds + s.count_second_round(c) for c, m in tuned)
        return tuning + sum(len(self._list_seeds(c, m)) for c, m in pairs)

    def count_seeds(self, model: str) -> int:
        """Return the number of seeds of a model's results."""
        return self.settings.seeds

    def _list_seeds(self, condition: Condition, model: str) -> range:
        """Return the seeds of a model's results under a condition."""
        count = self.count_seeds(model)
        return range(min(count, condition.seeds or count, condition.seeds_of.get(model, count)))

    def models(self, condition: Condition) -> list[str]:
        return [m for m in self.settings.models if not condition.models or m in condition.models]

    def steps(self, condition: Condition) -> int:
        """Return the number of training steps."""
        return max(1, round(self.settings.effort * condition.steps))

    def tunes(self, condition: Condition, model: str) -> bool:
        """Return whether learning rate and start of a model are chosen under this condition."""
        return len(self.grid(model)) > 1 and not (condition.tuned_at or condition.after)

    def untuned(self, condition: Condition, model: str) -> tuple[float, str]:
        """Return the learning rate and start of a model that is not tuned."""
        return self.grid(model)[0]

    def run(self, before: Callable[[str], None]) -> Iterator[Trial]:
        self._check()
        self._sizes = dict(self.known_sizes)
        # Models that a later condition continues to train.
        self._kept: dict[tuple[str, str, int], nn.Module | None] = {}
        self.ledger = Ledger(self.folder)
        chosen: dict[tuple[str, str], tuple[float, str]] = {}
        tunings: list[Trial] = []
        for c in self.settings.conditions:
            models, tried = self.models(c), []
            for trial in self._tune(c, before):
                tried.append(trial)
                yield trial
            tunings += tried
            for m in models:
                known = [name for name in c.sources if (name, m) in chosen]
                lr, start = chosen[self.find_source(known, m, tunings), m] if known else self._best(tried, c, m)
                chosen[c.name, m] = (LADDER[max(0, LADDER.index(lr) - c.lower)] if c.lower else lr), start
            results = [Spec(c, m, *chosen[c.name, m], seed, TEST) for m in models for seed in self._list_seeds(c, m)]
            yield from self._run_specs(results, before)

    def _tune(self, c: Condition, before: Callable[[str], None]) -> Iterator[Trial]:
        """Try the grid for every model; with `widen`, extend it until no best learning rate is at its edge.

        With `finalists`, the best settings are tried again with all steps: what learns fastest may not be best then.
        """
        s, tried = self.settings, list[Trial]()
        short = replace(c, steps=round(s.tuning * c.steps))
        grids = {m: self.grid(m) for m in self.models(c) if self.tunes(c, m)}
        new = dict(grids)
        while any(new.values()):
            specs = [
                Spec(short, m, *setting, TUNING + i, VALID)
                for m, settings in new.items()
                for setting in settings
                for i in range(s.tuning_seeds)
            ]
            for trial in self._run_specs(specs, before):
                tried.append(trial)
                yield trial
            beyond = set[float]()
            for m in grids if s.widen and c.widens else ():
                beyond |= find_next_rates({t.lr for t in tried if t.model == m}, self.find_edge(tried, m))
            for m, grid in grids.items():
                rates, kinds = {lr for lr, _ in grid}, dict.fromkeys(start for _, start in grid)
                new[m] = list(product(sorted(beyond - rates), kinds))
                grids[m] = grid + new[m]
        finalists = [
            Spec(c, m, *setting, FINALISTS + i, VALID)
            for m in grids
            for setting in self._rank(tried, m)[: s.finalists if c.widens else 0]
            for i in range(s.finalist_seeds or s.tuning_seeds)
        ]
        yield from self._run_specs(finalists, before)

    def _check(self) -> None:
        """Raise a UserError if a condition or model is invalid, before any training."""
        pairs = [(c, self.models(c)) for c in self.settings.conditions]
        for model in {m for _, models in pairs for m in models}:
            self.grid(model)  # raises an error that names the model
        check_sources(pairs)

    def _best(self, tried: Sequence[Trial], condition: Condition, model: str) -> tuple[float, str]:
        ranked = self._rank(tried, model, last_round=True) or self._rank(tried, model)
        return ranked[0] if ranked else self.untuned(condition, model)

    def _rank(self, tried: Sequence[Trial], model: str, last_round: bool = False) -> list[tuple[float, str]]:
        """Return learning rates and starts of a model, the best first."""
        values = self._tuning_values(tried, model, last_round)
        return sorted(values, key=lambda setting: -values[setting])

    def _tuning_values(
        self, tried: Sequence[Trial], model: str, last_round: bool = False
    ) -> dict[tuple[float, str], float]:
        """Return the mean of `rate_tuning` for each learning rate and start that never failed, of one round."""
        by_setting: dict[tuple[float, str], list[Trial]] = {}
        for t in tried:
            if t.model == model and (t.seed >= FINALISTS) == last_round:
                by_setting.setdefault((t.lr, t.start), []).append(t)
        return {
            setting: sum(map(self.rate_tuning, mine)) / len(mine)
            for setting, mine in by_setting.items()
            if not any(t.failed for t in mine)
        }

    def find_source(self, conditions: Sequence[str], model: str, tried: Sequence[Trial]) -> str:
        """Return the condition in which the tuning of a model reached the highest value."""
        values = {c: self._tuning_values([t for t in tried if t.condition == c], model).values() for c in conditions}
        return max(conditions, key=lambda c: max(values[c], default=-math.inf))

    def rate_tuning(self, trial: Trial) -> float:
        """Return how good a tuning trial is, higher is better: the first metric, or its negative if lower is better."""
        first = self.metrics[0]
        return trial.scores[first.name] * (-1 if first.lower else 1)

    def find_edge(self, tried: Sequence[Trial], model: str) -> float | None:
        """Return the lowest or highest learning rate of one condition if it is better than the others by `widen_by`."""
        values = self._tuning_values(tried, model)
        rates = sorted({t.lr for t in tried if t.model == model})
        if not rates:  # not tuned, or nothing is stored, in a replay
            return None
        best = {lr: max((v for (at, _), v in values.items() if at == lr), default=-math.inf) for lr in rates}
        top = max(rates, key=lambda lr: best[lr])
        finalists = self._rank(tried, model, last_round=True)
        if finalists:  # the second round decides
            return finalists[0][0] if finalists[0][0] in (rates[0], rates[-1]) else None
        inner = max((best[lr] for lr in rates[1:-1]), default=-math.inf)
        close = inner > -math.inf and best[top] - inner < self.settings.widen_by
        return top if top in (rates[0], rates[-1]) and not close else None

    def _run_specs(self, specs: list[Spec], before: Callable[[str], None]) -> Iterator[Trial]:
        """Yield the trials that are stored already, then train the others in groups."""
        missing = []
        for spec in specs:
            known = self.ledger.get(self.key(spec))
            if known is not None and (self.replays or not self._is_needed_later(spec)):
                before(str(spec))
                yield read_trial(known, self.ledger.file)
            else:
                missing.append(spec)
        if self.replays:
            self.missing += map(str, missing)
            return
        together = self.settings.together if self.device == "cuda" else 1  # on a CPU each is stored when it ends
        for begin in range(0, len(missing), together):
            group = missing[begin : begin + together]
            for spec, trial in zip(group, self._train(group), strict=True):
                before(str(spec))
                self.ledger.add(self.key(spec), asdict(trial))
                yield trial

    def _is_needed_later(self, spec: Spec) -> bool:
        """Return whether a later condition still needs the model that is trained here."""
        later = [c for c in self.settings.conditions if c.after == spec.condition.name and spec.split == TEST]
        following = [Spec(c, spec.model, spec.lr, spec.start, spec.seed, TEST) for c in later]
        return any(self.ledger.get(self.key(f)) is None or self._is_needed_later(f) for f in following)

    def key(self, spec: Spec) -> dict[str, Any]:
        """Return everything that determines a trial."""
        way = [spec.condition]
        while way[-1].after:
            way.append(next(c for c in self.settings.conditions if c.name == way[-1].after))
        usual: dict[str, Any] = {"precision": "natural", "constant_rate": False}
        other = {name: getattr(self.settings, name) for name in usual if getattr(self.settings, name) != usual[name]}
        return {
            "study": f"{self.name}-{self.protocol}",
            "version": self.version,
            "conditions": [{"name": c.name, "steps": self.steps(c), "task": c.task} for c in way],
            "model": [spec.model, self.find_hidden(spec.model, spec.condition), spec.start],
            "training": {"batch": self.settings.batch, "lr": spec.lr, "seed": spec.seed, "device": self.device},
            "scored": {spec.split: self.settings.valid if spec.split == VALID else self.settings.test},
        } | other

    def find_hidden(self, model: str, condition: Condition) -> int:
        """Return the hidden size that meets the parameter budget."""
        s, place = self.settings, (model, condition.name)
        if s.hidden:
            return s.hidden
        if place not in self._sizes:
            with torch.random.fork_rng(devices=[]):
                self._sizes[place] = self.choose_size(model, condition)
        return self._sizes[place]

    def choose_size(self, model: str, condition: Condition) -> int:
        """Return the multiple of `multiple` whose number of trained parameters is closest to the budget."""
        return find_hidden_size(self.builder(model, condition), self.budget(condition), self.multiple(model))

    def builder(self, model: str, condition: Condition) -> Callable[[int], nn.Module]:
        """Return the model as a function of its hidden size."""
        start = self.grid(model)[0][1]
        return lambda hidden: self.build(model, hidden, start, condition)

    def _train(self, group: Sequence[Spec]) -> Iterator[Trial]:
        device = torch.device(self.device)
        with use_one_thread():
            done = train_many([self._training(spec) for spec in group], device)
        for spec, one in zip(group, done, strict=True):
            with use_one_thread():
                trial = self._score(spec, one, device)
            yield trial

    def can_stack(self, model: str) -> bool:
        """Return whether a GPU trains settings and seeds of a model as one model; this pays for many small kernels.

        Not for linear recurrences: four Gated DeltaNets took 46 ms for a step as one model, fourteen side by side 69.
        """
        return False

    def _training(self, spec: Spec) -> SmallTraining:
        c = spec.condition
        if c.after:
            model: Callable[[], Any] = partial(self._kept.get, (c.after, spec.model, spec.seed))
        else:
            model = partial(self.build, spec.model, self.find_hidden(spec.model, c), spec.start, c)
        recipe, draw = Recipe(self.steps(c), spec.lr, constant=self.settings.constant_rate), self.draw(c)
        prepare = partial(self.prepare, draw)
        can_stack = self.can_stack(spec.model) and not c.after
        stack = f"{c.name}, {spec.model}, {spec.split}" if can_stack else ""
        return SmallTraining(str(spec), model, draw, self.loss, recipe, spec.seed, prepare=prepare, stack=stack)

    def _score(self, spec: Spec, one: TrainedModel, device: torch.device) -> Trial:
        c, scores, failed = spec.condition, {}, one.failed
        if any(later.after == c.name for later in self.settings.conditions):
            self._kept[c.name, spec.model, spec.seed] = one.model
        if one.model is not None and not failed:
            with torch.no_grad():
                scores = self.score(one.model.eval(), c, spec.split, device)
            wrong = [f"{name} is {value}" for name, value in scores.items() if not math.isfinite(value)]
            failed = wrong[0] if wrong else ""
        return Trial(
            condition=c.name,
            model=spec.model,
            lr=spec.lr,
            start=spec.start,
            seed=spec.seed,
            split=spec.split,
            hidden=self.find_hidden(spec.model, c),
            parameters=0 if one.model is None else count_trained(one.model),
            scores={} if failed else scores,
            losses=[float(f"{loss:.4g}") for loss in one.losses if math.isfinite(loss)],
            ms_per_step=1e3 * one.seconds_per_step or None,
            failed=failed,
            skipped=one.skipped,
        )

    def caption(self) -> str:
        return trial_report.caption(self)

    def table(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        return trial_report.table(self, rows)

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        return trial_report.blocks(self, rows)

    def describe_reproduction(self, rows: Sequence[Trial]) -> str:
        """Say whether the printed numbers were reproduced, under the protocol of the source article."""
        by_name = {c.name: c for c in self.settings.conditions}
        if self.protocol != "paper":
            return ""
        asked = [c.name for c in self.paper.conditions] if self.paper is not None else []
        text = describe_reproduction(
            groups(rows),
            self.metrics[0],
            lambda g: self.article_value(by_name[g.condition], g.model),
            [name for name in asked if name not in by_name],
        )
        return f"{text} " if text else ""

    def verdict(self, rows: Sequence[Trial]) -> str:
        return format_contests(self.compare_models(rows), self.against, self.metrics[0])

    def _format_verdict(self, rows: Sequence[Trial], finished: bool) -> str:
        return f"{super()._format_verdict(rows, finished)} {trial_report.describe_edges(self, rows)}".strip()

    def compare_models(self, rows: Sequence[Trial]) -> list[Contest]:
        """Compare the model `against` with all others by the first metric."""
        return contests(rows, self.metrics[0], self.against, self.find_answers)

    def find_answers(self, condition: str) -> int | None:
        """Return how many test answers the first metric counts under the condition of this name, or None."""
        if self.metrics[0].kind.is_counted is False:
            return None
        return self.count_answers({c.name: c for c in self.settings.conditions}[condition])

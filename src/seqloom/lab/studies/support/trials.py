"""Studies whose rows are trainings: conditions x models x seeds, of equal size, equally tuned, resumable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.report.page import PageBlock
from seqloom.lab.studies.study import Study
from seqloom.lab.studies.support import shown
from seqloom.lab.studies.support.conditions import LADDER, TEST, TUNING, VALID, Condition, Settings, Spec
from seqloom.lab.studies.support.contenders import hidden_size, multiple, starts, trained
from seqloom.lab.studies.support.ledger import Ledger
from seqloom.lab.studies.support.outcome import Metric, Trial, contests, said
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.many import Recipe, SmallTraining, TrainedModel, train_many

Batch = tuple[Tensor, ...]
Draw = Callable[[torch.Generator, torch.device], Batch]
Told = TypeVar("Told", bound=Settings)


class Trials(Study[Told, Trial]):
    """A subclass says its metrics, the first of which decides, and writes `build`, `draw`, `loss` and `score`."""

    metrics: ClassVar[tuple[Metric, ...]]
    against: ClassVar[str] = "attn_rnn"  # the model that the others are compared with
    axis: ClassVar[str] = "length T"
    version: ClassVar[int] = 1  # to be raised when a trial of the same settings means something else

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        """A model of this size; called with the random state of its seed."""
        raise NotImplementedError

    def draw(self, condition: Condition) -> Draw:
        """A function that draws a training batch on the device: the same shapes always, no waiting for the host."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise NotImplementedError

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        """Every metric by name, on "valid" or "test"."""
        raise NotImplementedError

    def trivial(self, condition: Condition) -> float | None:
        """What the first metric is without a model."""
        return None

    def printed(self, condition: Condition, model: str) -> float | None:
        """What the document has for the first metric."""
        return None

    def at(self, condition: Condition) -> float | None:
        """Where the condition stands on an x axis, if anywhere."""
        return None

    def kind(self, condition: Condition) -> str:
        """Conditions of one kind share a chart."""
        return ""

    def multiple(self, model: str) -> int:
        """Of which the hidden size is one."""
        return multiple(model, self.device)

    def budget(self, condition: Condition) -> int:
        """Of trained parameters, for which the hidden sizes are solved."""
        return self.settings.budget

    def grid(self, model: str) -> list[tuple[float, str]]:
        """Learning rates and starts, as many for every model."""
        return list(product(self.settings.lrs, starts(model, self.settings.starts)))

    @property
    def parts(self) -> int:
        s = self.settings
        pairs = [(c, m) for c in s.conditions for m in self.models(c)]
        return sum(s.seeds + (len(self.grid(m)) * s.tuning_seeds if self._tunes(c, m) else 0) for c, m in pairs)

    def models(self, condition: Condition) -> list[str]:
        return [m for m in self.settings.models if not condition.models or m in condition.models]

    def steps(self, condition: Condition) -> int:
        """Of training."""
        return max(1, round(self.settings.effort * condition.steps))

    def _tunes(self, condition: Condition, model: str) -> bool:
        return len(self.grid(model)) > 1 and not (condition.tuned_at or condition.after)

    def run(self, before: Callable[[str], None]) -> Iterator[Trial]:
        self._check()
        self._sizes: dict[tuple[str, str], int] = {}
        self._kept: dict[tuple[str, str, int], nn.Module | None] = {}  # models that a later condition goes on with
        self.ledger = Ledger(self.folder)
        chosen: dict[tuple[str, str], tuple[float, str]] = {}
        for c in self.settings.conditions:
            models, tried = self.models(c), []
            for trial in self._tuned(c, before):
                tried.append(trial)
                yield trial
            for m in models:
                earlier = c.tuned_at or c.after
                chosen[c.name, m] = chosen[earlier, m] if earlier else self._best(tried, m)
            results = [
                Spec(c, m, *chosen[c.name, m], seed, TEST) for m in models for seed in range(self.settings.seeds)
            ]
            yield from self._all(results, before)

    def _tuned(self, c: Condition, before: Callable[[str], None]) -> Iterator[Trial]:
        """Try the grid for every model; with `widen`, until the best learning rate of none lies at the edge."""
        s, tried = self.settings, list[Trial]()
        short = replace(c, steps=round(s.tuning * c.steps))
        grids = {m: self.grid(m) for m in self.models(c) if self._tunes(c, m)}
        new = dict(grids)
        while any(new.values()):
            specs = [
                Spec(short, m, *setting, TUNING + i, VALID)
                for m, settings in new.items()
                for setting in settings
                for i in range(s.tuning_seeds)
            ]
            for trial in self._all(specs, before):
                tried.append(trial)
                yield trial
            best = {m: self._best(tried, m)[0] for m in grids}
            beyond = {lr for m in grids for lr in _beyond([lr for lr, _ in grids[m]], best[m])} if s.widen else set()
            for m, grid in grids.items():
                rates, kinds = {lr for lr, _ in grid}, dict.fromkeys(start for _, start in grid)
                new[m] = list(product(sorted(beyond - rates), kinds))
                grids[m] = grid + new[m]

    def _check(self) -> None:
        """Before anything is trained."""
        seen: dict[str, list[str]] = {}
        for c in self.settings.conditions:
            for model in self.models(c):
                self.grid(model)  # or an error that names the model
                for earlier in filter(None, (c.tuned_at, c.after)):
                    if model not in seen.get(earlier, ()):
                        raise UserError(f"condition {c.name!r} builds on {earlier!r}, where {model!r} is not trained")
            seen[c.name] = self.models(c)

    def _best(self, tried: Sequence[Trial], model: str) -> tuple[float, str]:
        first = self.metrics[0]
        settings = dict.fromkeys((t.lr, t.start) for t in tried if t.model == model)
        scored: dict[tuple[float, str], float] = {}
        for lr, start in settings:
            mine = [t for t in tried if (t.model, t.lr, t.start) == (model, lr, start)]
            if not any(t.failed for t in mine):
                scored[lr, start] = sum(t.scores[first.name] for t in mine) / len(mine)
        if not scored:
            return self.grid(model)[0]
        return min(scored, key=lambda setting: scored[setting] * (1 if first.lower else -1))

    def _all(self, specs: list[Spec], before: Callable[[str], None]) -> Iterator[Trial]:
        """Those that are known already, then the others, a group at a time."""
        missing = []
        for spec in specs:
            known = self.ledger.get(self.key(spec))
            if known is None or self._goes_on(spec):
                missing.append(spec)
            else:
                before(str(spec))
                yield self._as_trial(known)
        for begin in range(0, len(missing), self.settings.together):
            group = missing[begin : begin + self.settings.together]
            for spec, trial in zip(group, self._train(group), strict=True):
                before(str(spec))
                self.ledger.add(self.key(spec), asdict(trial))
                yield trial

    def _as_trial(self, known: dict[str, Any]) -> Trial:
        try:
            return Trial(**known)
        except TypeError as error:
            raise UserError(f"{self.ledger.file} is of another version: {error}; move it away to go on") from error

    def _goes_on(self, spec: Spec) -> bool:
        """Whether a later condition still wants the model that is trained here."""
        later = [c for c in self.settings.conditions if c.after == spec.condition.name and spec.split == TEST]
        following = [Spec(c, spec.model, spec.lr, spec.start, spec.seed, TEST) for c in later]
        return any(self.ledger.get(self.key(f)) is None or self._goes_on(f) for f in following)

    def key(self, spec: Spec) -> dict[str, Any]:
        """Everything that determines a trial."""
        way = [spec.condition]
        while way[-1].after:
            way.append(next(c for c in self.settings.conditions if c.name == way[-1].after))
        return {
            "study": f"{self.name}-{self.protocol}",
            "version": self.version,
            "conditions": [{"name": c.name, "steps": self.steps(c), "task": c.task} for c in way],
            "model": [spec.model, self.hidden(spec.model, spec.condition), spec.start],
            "training": {"batch": self.settings.batch, "lr": spec.lr, "seed": spec.seed, "device": self.device},
            "scored": {spec.split: self.settings.valid if spec.split == VALID else self.settings.test},
        } | ({} if self.settings.precision == "natural" else {"precision": self.settings.precision})

    def hidden(self, model: str, condition: Condition) -> int:
        """The hidden size that spends the parameter budget."""
        s, place = self.settings, (model, condition.name)
        if s.hidden:
            return s.hidden
        if place not in self._sizes:
            with torch.random.fork_rng(devices=[]):
                build = self.sized(model, condition)
                self._sizes[place] = hidden_size(build, self.budget(condition), self.multiple(model))
        return self._sizes[place]

    def sized(self, model: str, condition: Condition) -> Callable[[int], nn.Module]:
        """The model as a function of its hidden size."""
        start = self.grid(model)[0][1]
        return lambda hidden: self.build(model, hidden, start, condition)

    def _train(self, group: Sequence[Spec]) -> Iterator[Trial]:
        device = torch.device(self.device)
        with use_one_thread():
            done = train_many([self._training(spec) for spec in group], device)
        for spec, one in zip(group, done, strict=True):
            with use_one_thread():
                trial = self._scored(spec, one, device)
            yield trial

    def _training(self, spec: Spec) -> SmallTraining:
        c = spec.condition
        if c.after:
            model: Callable[[], Any] = partial(self._kept.get, (c.after, spec.model, spec.seed))
        else:
            model = partial(self.build, spec.model, self.hidden(spec.model, c), spec.start, c)
        return SmallTraining(str(spec), model, self.draw(c), self.loss, Recipe(self.steps(c), spec.lr), spec.seed)

    def _scored(self, spec: Spec, one: TrainedModel, device: torch.device) -> Trial:
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
            hidden=self.hidden(spec.model, c),
            parameters=0 if one.model is None else trained(one.model),
            scores={} if failed else scores,
            losses=[float(f"{loss:.4g}") for loss in one.losses if math.isfinite(loss)],
            ms_per_step=1e3 * one.seconds_per_step or None,
            failed=failed,
            skipped=one.skipped,
        )

    def caption(self) -> str:
        return shown.caption(self)

    def table(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        return shown.table(self, rows)

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        return shown.blocks(self, rows)

    def verdict(self, rows: Sequence[Trial]) -> str:
        return said(contests(rows, self.metrics[0], self.against), self.against)


def _beyond(rates: Sequence[float], best: float) -> list[float]:
    """The next learning rate of the ladder where the best one is the lowest or the highest that was tried."""
    lower = [lr for lr in LADDER if lr < min(rates)][-1:] if best == min(rates) else []
    higher = [lr for lr in LADDER if lr > max(rates)][:1] if best == max(rates) else []
    return lower + higher

"""The comparison itself: baselines, a plan, and rungs that fewer and fewer models climb.

Every decision follows from results that lie on disk, in an order that does not depend on who was faster; going on
after an interruption is therefore doing the same again, the engine handing over what is there already.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seqloom.lab.compare.baselines.known import baselines
from seqloom.lab.compare.candidates import Candidate, candidates
from seqloom.lab.compare.metric import rank
from seqloom.lab.compare.plan import Asked, Plan, Speed, clock, fixed, plan
from seqloom.lab.compare.probe import facts
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.compare.sizes import Size, size, usual_parameters
from seqloom.lab.compare.tune import WAVE, Choice, listed, proposed
from seqloom.lab.compare.work import Trial, Work, trial_key
from seqloom.lab.data.task import Task
from seqloom.lab.files import sealed
from seqloom.lab.jobs.runner import Job, Result
from seqloom.lab.training import checkpoint

SMALL, LARGE = 500, 50_000  # training examples
PROBED, LONGEST = 0.08, 3.0  # share of the budget for measuring speeds; seconds for one model, at most
ENOUGH, SOME = 0.3, 4  # of the budget: when it is spent, only so many models are measured, and the others left out
TAIL, REPORT = 0.6, 3.0  # seconds kept for each model's latency, and for the report
PLAN = "plan.json"
Jobs = Iterator[Job | None]


class Comparison:
    """Of one task in one folder. `jobs` makes the work; whoever does it puts each result into `results`."""

    def __init__(
        self, folder: Path, settings: CompareSettings, source: Mapping[str, Any], task: Task, workers: int
    ) -> None:
        self.folder, self.settings, self.source, self.task = folder.resolve(), settings, source, task
        self.workers, self.began = workers, time.perf_counter()
        examples = task.splits["train"].size
        self.batch = 16 if examples is not None and examples <= SMALL else 64 if (examples or 0) > LARGE else 32
        self.facts = facts(task, self.batch)
        self.work = Work(self.folder, source, task.kind, self.batch, self.facts)
        self.candidates = {c.name: c for c in candidates(task.kind, settings.models, self.facts.length)}
        self.parameters = settings.parameters or usual_parameters(task)
        self.results: dict[str, Result] = {}
        self.failed: dict[str, str] = {}  # models that could not be built or tried
        self.sizes: dict[str, Size] = {}
        self.speeds: dict[str, Speed] = {}
        self.plan: Plan | None = None
        self.trials: dict[str, list[Trial]] = {}  # of each model, with the first seed
        self.finalists: list[list[Trial]] = []  # a trial for each seed

    def jobs(self) -> Jobs:
        """All work, in order; None where results must come first."""
        yield from self._planned([self.work.baseline(name) for name in baselines(self.task)])
        yield from self._screened()
        assert self.plan is not None
        finals = [trial for trials in self.finalists for trial in trials]
        yield from self._trained(finals, self.plan.steps, test=True)
        for name in self.trials:  # one after the other, alone on the machine
            trials = [t for t in self.trials[name] if self.last(t)]
            yield from self._each([self.work.latency(min(trials, key=self.rank_of))] if trials else [])

    @property
    def expected(self) -> int:
        """Jobs in all, as far as that is known."""
        before = len(baselines(self.task)) + len(self.candidates)
        plan = self.plan
        if plan is None:
            return before
        screening = plan.rates * len(plan.models) + plan.halved if plan.screened else 0
        return before + screening + plan.finalists * plan.seeds + len(plan.models)

    @property
    def counted(self) -> tuple[int, int | None]:
        """Seeds of the finals, validation rows."""
        return self.plan.seeds if self.plan else self.settings.seeds, self.task.splits["valid"].size

    def left(self) -> str:
        """An estimate of the time left, for a person."""
        if self.plan is None or self.settings.steps is not None:
            return ""
        return f"about {clock(max(1.0, self.settings.seconds - (time.perf_counter() - self.began)))} left"

    def _each(self, jobs: Sequence[Job]) -> Jobs:
        """These, and then nothing until they are done."""
        yield from jobs
        yield from self._until(jobs)

    def _trained(self, trials: Sequence[Trial], steps: int, test: bool = False) -> Jobs:
        """Seed by seed, so that a comparison that is cut short has all models; slow ones first, or one ends alone."""
        assert self.plan is not None
        ordered = sorted(trials, key=lambda trial: (trial.seed, -self.speeds[trial.candidate.name].step))
        yield from self._each([self.work.trial(trial, self.plan, steps, test=test) for trial in ordered])

    def _until(self, jobs: Sequence[Job]) -> Jobs:
        while any(job.key not in self.results for job in jobs):
            yield None

    def _planned(self, simple: list[Job]) -> Jobs:
        """Baselines; the plan that is there, or one that is made from measured speeds and then never changed."""
        place = self.folder / PLAN
        if place.exists():
            record = sealed.loads(place.read_bytes(), place, 1)
            with sealed.interpret(place):
                self._restore(record)
            yield from self._each(simple)
            return
        if self.settings.ray and not self.settings.workers:
            import ray

            self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        for name, candidate in self.candidates.items():
            try:
                self.sizes[name] = size(self.task, candidate, self.parameters)
            except (ValueError, RuntimeError, TypeError) as error:
                self.failed[name] = " ".join(str(error).split())
        seconds = (
            0.0 if self.settings.steps else PROBED * self.settings.seconds * self.workers / max(1, len(self.sizes))
        )
        tried = {name: Trial(self.candidates[name], Choice(1e-3), size.hidden) for name, size in self.sizes.items()}
        probes = {name: self.work.probe(trial, min(LONGEST, seconds)) for name, trial in tried.items()}
        yield from self._measured(simple, list(probes.values()))
        for name, job in probes.items():
            found = self.results.get(job.key)
            if found is None:
                continue
            if found.value is None:
                self.failed[name] = found.failed
            else:
                self.speeds[name] = Speed(*(found.value[part] for part in ("step", "valid", "test", "memory")))
        self.plan = self._plan()
        record = {"plan": asdict(self.plan), "failed": self.failed, "workers": self.workers}
        record |= {what: {n: asdict(v) for n, v in getattr(self, what).items()} for what in ("sizes", "speeds")}
        checkpoint.write_file(place, sealed.dumps(record, indent=1))

    def _measured(self, simple: list[Job], probes: list[Job]) -> Jobs:
        """Baselines, and the speeds of as many models as there is time for."""
        yield from simple
        started: list[Job] = []
        for job in probes:
            late = time.perf_counter() - self.began > ENOUGH * self.settings.seconds
            if late and len(started) >= SOME and self.settings.steps is None and not self.settings.models:
                break
            yield job
            started.append(job)
        yield from self._until([*simple, *started])

    def _plan(self) -> Plan:
        """As the budget allows, or of the steps that were asked for."""
        s = self.settings
        if s.steps is not None or not self.speeds:
            return fixed(tuple(self.speeds), s.steps or 1, s.seeds, s.tune)
        spent = time.perf_counter() - self.began + TAIL * len(self.speeds) + REPORT
        asked = Asked(s.seconds - spent, self.workers, s.seeds, self.facts.batches, bool(s.models), s.tune, spent)
        return plan(self.speeds, asked)

    def _restore(self, record: dict[str, Any]) -> None:
        made = record["plan"]
        self.plan = Plan(**(made | {"models": tuple(made["models"])}))
        self.failed = record["failed"]
        self.sizes = {name: Size(**v) for name, v in record["sizes"].items()}
        self.speeds = {name: Speed(**v) for name, v in record["speeds"].items()}

    def _screened(self) -> Jobs:
        """Every model for a ninth of the steps, the better ones for a third; the best are in the finals."""
        assert self.plan is not None
        models = [self.candidates[name] for name in self.plan.models]
        self.trials = {c.name: self._new(c, listed(c, min(self.plan.rates, len(c.rates)))) for c in models}
        if not self.plan.screened:
            best = [trials[0] for trials in self.trials.values()]
        else:
            yield from self._tried()
            best = self._best(self.plan.first)[: self.plan.halved]
            yield from self._trained(best, self.plan.second)
            second = {trial_key(trial, self.plan.second): trial for trial in best}
            best = sorted((t for k, t in second.items() if self._value(k)), key=self.rank_of)
        seeds = range(self.plan.seeds)
        self.finalists = [
            [Trial(t.candidate, t.choice, t.hidden, seed) for seed in seeds] for t in best[: self.plan.finalists]
        ]

    def _tried(self) -> Jobs:
        """All first trials; with --tune, waves of proposals that follow from those before."""
        assert self.plan is not None
        first, rates = self.plan.first, self.plan.rates
        yield from self._trained([t for trials in self.trials.values() for t in trials], first)
        while any(len(trials) < rates for trials in self.trials.values()):
            new = []
            for name, trials in self.trials.items():
                told = [(t.choice, self.rank_of(t)[0] if self._value(trial_key(t, first)) else None) for t in trials]
                more = proposed(told, min(WAVE, rates - len(trials)))
                fresh = [t for t in self._new(self.candidates[name], more) if t.key not in {o.key for o in trials}]
                trials.extend(fresh or trials[:1])  # a proposal that repeats another counts, and costs nothing
                new += fresh
            yield from self._trained(list({t.key: t for t in new}.values()), first)

    def _new(self, candidate: Candidate, choices: Sequence[Choice]) -> list[Trial]:
        found = []
        for choice in choices:
            known = self.sizes[candidate.name]
            sized = known if choice.factor == 1 else size(self.task, candidate, int(choice.factor * self.parameters))
            found.append(Trial(candidate, choice, sized.hidden))
        return found

    def _best(self, until: int) -> list[Trial]:
        """The best trial of each model, the best model first."""
        done = [t for ts in self.trials.values() for t in ts if self._value(trial_key(t, until))]
        found: dict[str, Trial] = {}
        for trial in sorted(done, key=self.rank_of):
            found.setdefault(trial.candidate.name, trial)
        return list(found.values())

    def rank_of(self, trial: Trial) -> tuple[float, float]:
        value = self.last(trial)
        assert value is not None
        return rank(self.task.kind, value["valid"])

    def last(self, trial: Trial) -> dict[str, Any] | None:
        """The furthest result of a trial."""
        assert self.plan is not None
        untils = (self.plan.steps, self.plan.second, self.plan.first)
        return next((value for until in untils if (value := self._value(trial_key(trial, until)))), None)

    def reason(self, trial: Trial) -> str:
        """Why it failed; "" where it has not."""
        assert self.plan is not None
        keys = [trial_key(trial, until) for until in (self.plan.first, self.plan.second, self.plan.steps)]
        return next((self.results[key].failed for key in keys if key in self.results and self.results[key].failed), "")

    def final(self, trial: Trial) -> Path | None:
        """The folder with what its test rows add up to, where it came that far."""
        assert self.plan is not None
        key = trial_key(trial, self.plan.steps)
        return self.folder / "jobs" / key if self._value(key) else None

    def _value(self, key: str) -> dict[str, Any] | None:
        return self.results[key].value if key in self.results else None

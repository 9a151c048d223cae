"""The search for the best model: baselines, a plan, and successive halving of the models.

Every decision follows from results on disk, in an order that does not depend on which job was faster. Resuming is
therefore running the same search again: jobs that are done return their stored results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seqloom.lab.compare.baselines.registry import baselines
from seqloom.lab.compare.candidates import (
    PROPOSALS_AT_ONCE,
    Candidate,
    Hyperparameters,
    choose_candidates,
    default_hyperparameters,
    propose_hyperparameters,
)
from seqloom.lab.compare.jobs import CandidateTrial, JobFactory, rung_key
from seqloom.lab.compare.metric import rank
from seqloom.lab.compare.plan import Limits, TrainingCost, TrainingPlan, format_seconds, plan_budget, plan_steps
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.compare.sizes import Size, default_parameters, fit_size
from seqloom.lab.compare.timing import measure_task
from seqloom.lab.data.task import Task
from seqloom.lab.files import sealed
from seqloom.lab.jobs.runner import Job, Result
from seqloom.lab.training import checkpoint

SMALL_DATA, LARGE_DATA = 500, 50_000  # training examples: batches of 16 up to SMALL_DATA, of 64 above LARGE_DATA
SPEED_SHARE, SPEED_SECONDS = 0.08, 3.0  # share of the budget for measuring speeds; at most so long for one model
SPEED_DEADLINE, FEWEST_MEASURED = 0.3, 4  # past this share of the budget, no more than this many models are measured
LATENCY_SECONDS, REPORT_SECONDS = 0.6, 3.0  # reserved for each model's latency and for the report
PLAN_FILE = "plan.json"
Jobs = Iterator[Job | None]


class Comparison:
    """A comparison of models on one task, in one folder.

    `jobs()` yields the work; whoever runs a job must put its result into `results`.
    """

    def __init__(
        self, folder: Path, settings: CompareSettings, source: Mapping[str, Any], task: Task, workers: int
    ) -> None:
        self.folder, self.settings, self.source, self.task = folder.resolve(), settings, source, task
        self.workers, self.began = workers, time.perf_counter()
        examples = task.splits["train"].size
        small, large = examples is not None and examples <= SMALL_DATA, (examples or 0) > LARGE_DATA
        self.batch = 16 if small else 64 if large else 32
        self.task_size = measure_task(task, self.batch)
        self.job_factory = JobFactory(self.folder, source, task.kind, self.batch, self.task_size)
        self.candidates = {c.name: c for c in choose_candidates(task.kind, settings.models, self.task_size.length)}
        self.parameters = settings.parameters or default_parameters(task)
        self.results: dict[str, Result] = {}
        self.failed: dict[str, str] = {}  # models that could not be built or tried
        self.sizes: dict[str, Size] = {}
        self.speeds: dict[str, TrainingCost] = {}
        self.plan: TrainingPlan | None = None
        self.trials: dict[str, list[CandidateTrial]] = {}  # of each model, with the first seed
        self.finalists: list[list[CandidateTrial]] = []  # a trial for each seed

    def jobs(self) -> Jobs:
        """Yield all jobs in order, and None while the next job depends on results that are not there yet."""
        yield from self._prepare([self.job_factory.baseline(name) for name in baselines(self.task)])
        yield from self._screen()
        assert self.plan is not None
        finals = [trial for trials in self.finalists for trial in trials]
        yield from self._train(finals, self.plan.steps, test=True)
        for name in self.trials:  # one at a time: a latency is measured on an otherwise idle machine
            trials = [t for t in self.trials[name] if self.latest_value(t)]
            yield from self._run([self.job_factory.latency(min(trials, key=self.rank_of))] if trials else [])

    @property
    def expected(self) -> int:
        """Total number of jobs, as far as it is known."""
        before = len(baselines(self.task)) + len(self.candidates)
        plan = self.plan
        if plan is None:
            return before
        screening = plan.rates * len(plan.models) + plan.survivors if plan.is_screened else 0
        return before + screening + plan.finalists * plan.seeds + len(plan.models)

    @property
    def seeds(self) -> int:
        """Number of seeds of the final trainings."""
        return self.plan.seeds if self.plan else self.settings.seeds

    @property
    def valid_rows(self) -> int | None:
        return self.task.splits["valid"].size

    def format_time_left(self) -> str:
        """Return the remaining time as text, or "" if it is unknown."""
        if self.plan is None or self.settings.steps is not None:
            return ""
        return f"about {format_seconds(max(1.0, self.settings.seconds - (time.perf_counter() - self.began)))} left"

    def _run(self, jobs: Sequence[Job]) -> Jobs:
        """Yield jobs and wait for their results."""
        yield from jobs
        yield from self._wait(jobs)

    def _wait(self, jobs: Sequence[Job]) -> Jobs:
        while any(job.key not in self.results for job in jobs):
            yield None

    def _train(self, trials: Sequence[CandidateTrial], steps: int, test: bool = False) -> Jobs:
        """Train seed by seed, so that an interrupted comparison has all models; slow models first, to end together."""
        assert self.plan is not None
        ordered = sorted(trials, key=lambda trial: (trial.seed, -self.speeds[trial.candidate.name].step))
        yield from self._run([self.job_factory.rung(trial, self.plan, steps, test=test) for trial in ordered])

    def _prepare(self, baseline_jobs: list[Job]) -> Jobs:
        """Fit the baselines, and read the plan or make one from measured speeds; a stored plan never changes."""
        place = self.folder / PLAN_FILE
        if place.exists():
            record = sealed.loads(place.read_bytes(), place, 1)
            with sealed.interpret(place):
                self._restore(record)
            yield from self._run(baseline_jobs)
            return
        if self.settings.ray and not self.settings.workers:
            import ray

            self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        for name, candidate in self.candidates.items():
            try:
                self.sizes[name] = fit_size(self.task, candidate, self.parameters)
            except (ValueError, RuntimeError, TypeError) as error:
                self.failed[name] = " ".join(str(error).split())
        seconds = (
            0.0 if self.settings.steps else SPEED_SHARE * self.settings.seconds * self.workers / max(1, len(self.sizes))
        )
        speed_jobs = {
            name: self.job_factory.speed(
                CandidateTrial(self.candidates[name], Hyperparameters(1e-3), size.hidden), min(SPEED_SECONDS, seconds)
            )
            for name, size in self.sizes.items()
        }
        yield from self._measure_speeds(baseline_jobs, list(speed_jobs.values()))
        for name, job in speed_jobs.items():
            result = self.results.get(job.key)
            if result is None:
                continue
            if result.value is None:
                self.failed[name] = result.failed
            else:
                self.speeds[name] = TrainingCost(*(result.value[part] for part in ("step", "valid", "test", "memory")))
        self.plan = self._make_plan()
        record = {"plan": asdict(self.plan), "failed": self.failed, "workers": self.workers}
        record |= {what: {n: asdict(v) for n, v in getattr(self, what).items()} for what in ("sizes", "speeds")}
        checkpoint.write_file(place, sealed.dumps(record, indent=1))

    def _measure_speeds(self, baseline_jobs: list[Job], speed_jobs: list[Job]) -> Jobs:
        """Fit the baselines, and measure the speeds of as many models as there is time for."""
        yield from baseline_jobs
        started: list[Job] = []
        for job in speed_jobs:
            late = time.perf_counter() - self.began > SPEED_DEADLINE * self.settings.seconds
            if late and len(started) >= FEWEST_MEASURED and self.settings.steps is None and not self.settings.models:
                break
            yield job
            started.append(job)
        yield from self._wait([*baseline_jobs, *started])

    def _make_plan(self) -> TrainingPlan:
        """Plan for the budget, or for the requested number of steps."""
        s = self.settings
        if s.steps is not None or not self.speeds:
            return plan_steps(tuple(self.speeds), s.steps or 1, s.seeds, s.tune)
        spent = time.perf_counter() - self.began + LATENCY_SECONDS * len(self.speeds) + REPORT_SECONDS
        epoch = self.task_size.batches
        limits = Limits(s.seconds - spent, self.workers, s.seeds, epoch, bool(s.models), s.tune, spent)
        return plan_budget(self.speeds, limits)

    def _restore(self, record: dict[str, Any]) -> None:
        plan = record["plan"]
        self.plan = TrainingPlan(**(plan | {"models": tuple(plan["models"])}))
        self.failed = record["failed"]
        self.sizes = {name: Size(**v) for name, v in record["sizes"].items()}
        self.speeds = {name: TrainingCost(**v) for name, v in record["speeds"].items()}

    def _screen(self) -> Jobs:
        """Select the finalists: train every model up to the first rung, and the better ones up to the second."""
        plan = self.plan
        assert plan is not None
        for name in plan.models:
            candidate = self.candidates[name]
            settings = default_hyperparameters(candidate, min(plan.rates, len(candidate.rates)))
            self.trials[name] = self._build_trials(candidate, settings)
        if not plan.is_screened:
            best = [trials[0] for trials in self.trials.values()]
        else:
            yield from self._run_first_rung()
            best = self._rank_models(plan.first)[: plan.survivors]
            yield from self._train(best, plan.second)
            best = sorted((t for t in best if self._value(rung_key(t, plan.second))), key=self.rank_of)
        self.finalists = [
            [CandidateTrial(t.candidate, t.settings, t.hidden, seed) for seed in range(plan.seeds)]
            for t in best[: plan.finalists]
        ]

    def _run_first_rung(self) -> Jobs:
        """Train the default settings; with --tune, then proposals that follow from the results so far."""
        assert self.plan is not None
        first, rates = self.plan.first, self.plan.rates
        yield from self._train([t for trials in self.trials.values() for t in trials], first)
        while any(len(trials) < rates for trials in self.trials.values()):
            new = []
            for name, trials in self.trials.items():
                results = [
                    (t.settings, self.rank_of(t)[0] if self._value(rung_key(t, first)) else None) for t in trials
                ]
                proposals = propose_hyperparameters(results, min(PROPOSALS_AT_ONCE, rates - len(trials)))
                built = self._build_trials(self.candidates[name], proposals)
                fresh = [t for t in built if t.key not in {o.key for o in trials}]
                trials.extend(fresh or trials[:1])  # a repeated proposal counts, and costs nothing
                new += fresh
            yield from self._train(list({t.key: t for t in new}.values()), first)

    def _build_trials(self, candidate: Candidate, settings: Sequence[Hyperparameters]) -> list[CandidateTrial]:
        trials = []
        for one in settings:
            size = self.sizes[candidate.name]
            if one.factor != 1:
                size = fit_size(self.task, candidate, int(one.factor * self.parameters))
            trials.append(CandidateTrial(candidate, one, size.hidden))
        return trials

    def _rank_models(self, until: int) -> list[CandidateTrial]:
        """Return the best trial of each model, the best model first."""
        done = [t for ts in self.trials.values() for t in ts if self._value(rung_key(t, until))]
        best: dict[str, CandidateTrial] = {}
        for trial in sorted(done, key=self.rank_of):
            best.setdefault(trial.candidate.name, trial)
        return list(best.values())

    def rank_of(self, trial: CandidateTrial) -> tuple[float, float]:
        value = self.latest_value(trial)
        assert value is not None
        return rank(self.task.kind, value["valid"])

    def latest_value(self, trial: CandidateTrial) -> dict[str, Any] | None:
        """Return the result of the last rung that a trial has completed."""
        return next((value for key in reversed(self._rung_keys(trial)) if (value := self._value(key))), None)

    def failure_of(self, trial: CandidateTrial) -> str:
        """Return why a trial failed, or ""."""
        results = [self.results[key] for key in self._rung_keys(trial) if key in self.results]
        return next((result.failed for result in results if result.failed), "")

    def final_folder(self, trial: CandidateTrial) -> Path | None:
        """Return the folder with the scores of the trial's test rows, if it was trained to the end."""
        key = self._rung_keys(trial)[-1]
        return self.folder / "jobs" / key if self._value(key) else None

    def _rung_keys(self, trial: CandidateTrial) -> list[str]:
        assert self.plan is not None
        return [rung_key(trial, until) for until in (self.plan.first, self.plan.second, self.plan.steps)]

    def _value(self, key: str) -> dict[str, Any] | None:
        return self.results[key].value if key in self.results else None

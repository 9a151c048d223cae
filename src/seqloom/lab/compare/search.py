"""The search for the best model: baselines, a plan, and successive halving of the models.

Every decision follows from results on disk, in an order that does not depend on which job was faster. To resume is
therefore to run the same search again: finished jobs return their stored results. Only if the machine turns out to be
slower than the plan assumed does the clock decide: trainings stop before their last step, and the last jobs of a stage
are skipped, so that there is time to score and to report.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from seqloom.lab.compare.folds import add_fold
from seqloom.lab.compare.jobs import CandidateTrial, JobFactory, rung_key
from seqloom.lab.compare.plan import (
    JOB_OVERHEAD,
    Limits,
    TrainingCost,
    TrainingPlan,
    plan_budget,
    plan_steps,
    share_time,
)
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.compare.timing import measure_task
from seqloom.lab.console import format_seconds
from seqloom.lab.data.task import Task
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.jobs.job import Job, Result
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats.metrics import Metric
from seqloom.lab.training.calibration import AIM_SETTINGS, resolve_objective
from seqloom.lab.training.candidates import (
    PROPOSALS_AT_ONCE,
    Candidate,
    Hyperparameters,
    choose_for_task,
    default_hyperparameters,
    propose_hyperparameters,
)
from seqloom.lab.training.sizes import Size, default_parameters, fit_size

SMALL_DATA, LARGE_DATA = 500, 50_000  # training examples: batches of 16 up to SMALL_DATA, of 64 above LARGE_DATA
SPEED_SHARE, SPEED_SECONDS = 0.08, 3.0  # share of the budget for measuring speeds; at most so long for one model
SPEED_DEADLINES = ((0.3, 4), (0.45, 1), (0.7, 0))  # (share of the budget, number of models that are measured after it)
NAMED_DEADLINE = 0.5  # the same for models that were chosen by name: past it, no more are measured
BASELINE_SHARE = 0.3  # share of all workers' budget for fitting the baselines
LATENCY_SECONDS, REPORT_SECONDS = 0.6, 3.0  # reserved for each model's latency and for the report
MOST_REPORT_SHARE = 0.15  # maximum share of the budget that is reserved for the report
# Share of the budget for scoring once, if rows are suggested; minimum rows.
SCORING_SHARE, FEWEST_SUGGESTED = 0.05, 1_000
PLAN_FILE = "plan.json"
Jobs = Iterator[Job | None]


class Search:
    """A comparison of models on one task, in one folder.

    `jobs()` yields the work; whoever runs a job must put its result into `results`.
    """

    def __init__(
        self,
        folder: Path,
        settings: CompareSettings,
        source: Mapping[str, Any],
        task: Task,
        workers: int,
        began: float | None = None,
        clock: Callable[[], float] = time.time,
        models: Sequence[str] | None = None,
    ) -> None:
        """Prepare a comparison.

        Args:
            workers: number of processes.
            began: when the budget began, in seconds since the epoch. Default: now.
            clock: returns the seconds since the epoch.
            models: the models of the settings, with the copies of cells in place of their files. Default: as they are.
        """
        self.folder, self.settings, self.source, self.task = folder.resolve(), settings, source, task
        self.workers, self.clock, self.began = workers, clock, clock() if began is None else began
        self.end = math.inf if settings.steps is not None else self.began + settings.seconds
        examples = task.splits["train"].size
        small, large = examples is not None and examples <= SMALL_DATA, (examples or 0) > LARGE_DATA
        self.batch = 16 if small else 64 if large else 32
        self.task_size = measure_task(task, self.batch)
        self.metric, aim = resolve_aim(task, settings)
        self.folds = settings.folds or 1
        self.repeats = self.folds if self.folds > 1 else settings.seeds  # trainings of each finalist
        sources = [add_fold(source, k, self.folds) for k in range(self.folds)]
        self.job_factory = JobFactory(self.folder, sources, task.kind, self.batch, self.task_size, aim)
        names, seconds = list(baselines(task)), None
        if settings.steps is None:  # the same when the comparison is resumed
            part = min(1.0, workers / (len(names) * self.folds))
            seconds = round(BASELINE_SHARE * settings.seconds * part, 1)
        folds = range(self.folds)
        self.baseline_jobs = [self.job_factory.baseline(name, seconds, k) for k in folds for name in names]
        self.candidates = {c.name: c for c in choose_for_task(task, models or settings.models, self.task_size.length)}
        self.parameters = settings.parameters or default_parameters(task)
        self.results: dict[str, Result] = {}
        self.failed: dict[str, str] = {}  # models that could not be built or tried
        self.sizes: dict[str, Size] = {}
        self.speeds: dict[str, TrainingCost] = {}
        self.plan: TrainingPlan | None = None
        self.trials: dict[str, list[CandidateTrial]] = {}  # trials of each model, with the first seed
        self.finalists: list[list[CandidateTrial]] = []  # a trial for each seed
        self.slowness = 1.0  # wall time of this process relative to its CPU time, above 1 if others use the machine
        self.skipped: set[str] = set()  # models with trainings that were skipped for lack of time
        self.is_out_of_time = False  # whether running jobs were stopped because the budget was used up
        self.deadlines: dict[str, float] = {}  # stage -> when it must end, in seconds since the epoch

    def jobs(self) -> Jobs:
        """Yield all jobs in order, and None while the next job depends on results that are not there yet."""
        yield from self._prepare(self.baseline_jobs)
        assert self.plan is not None
        self._set_deadlines(self.plan)
        yield from self._screen()
        finals = [trial for trials in self.finalists for trial in trials]
        yield from self._train(finals, self.plan.steps, "final")
        tested = [name for name in self.trials if any(self.final_folder(t) for t in self.finals_of(name))]
        for name in [*tested, *(name for name in self.trials if name not in tested)]:
            # one at a time: a latency is measured on an otherwise idle machine
            trials = [t for t in self.trials[name] if self.latest_value(t)]
            if trials and self.clock() + LATENCY_SECONDS < self.end - self.report_seconds:
                yield from self._run([self.job_factory.latency(min(trials, key=self.rank_of))])

    def finals_of(self, name: str) -> list[CandidateTrial]:
        """Return the final trainings of a model, one for each seed or fold; [] if it is no finalist."""
        return next((trials for trials in self.finalists if trials[0].candidate.name == name), [])

    @property
    def report_seconds(self) -> float:
        """Seconds to reserve for the report, which predicts the test rows once more."""
        test = max((cost.test for cost in self.speeds.values()), default=0.0)
        return self.slowness * REPORT_SECONDS + min(test, MOST_REPORT_SHARE * self.settings.seconds)

    def seconds_for_jobs(self) -> float:
        """Return the seconds until running jobs must be stopped, to leave time for the report."""
        left = self.end - self.slowness * REPORT_SECONDS - self.clock()
        self.is_out_of_time = self.is_out_of_time or left <= 0
        return left

    @property
    def seconds_left(self) -> float:
        """Seconds until the budget is used up; infinite without a budget, negative afterwards."""
        return self.end - self.clock()

    def _set_deadlines(self, plan: TrainingPlan) -> None:
        """Divide the remaining time among the stages, and write the deadlines to disk for the jobs.

        A resumed comparison has the whole budget again.
        """
        if self.settings.steps is not None or not plan.models:
            return
        now = self.clock()
        last = max(now, self.end - self.report_seconds - LATENCY_SECONDS * min(len(plan.models), plan.finalists))
        self.deadlines = {stage: now + share * (last - now) for stage, share in share_time(plan, self.speeds).items()}
        checkpoint.write_file(self.job_factory.deadline_file, json.dumps(self.deadlines).encode())

    @property
    def expected(self) -> int:
        """Total number of jobs, as far as it is known."""
        before = len(baselines(self.task)) * self.folds + len(self.candidates)
        plan = self.plan
        if plan is None:
            return before
        screening = plan.rates * len(plan.models) + plan.survivors if plan.is_screened else 0
        return before + screening + plan.finalists * plan.seeds + len(plan.models)

    @property
    def seeds(self) -> int:
        """Number of final trainings of a model: one for each seed or fold."""
        return self.plan.seeds if self.plan else self.repeats

    @property
    def valid_rows(self) -> int | None:
        return self.task.splits["valid"].size

    def format_time_left(self) -> str:
        """Return the remaining time as text, or "" if it is unknown."""
        if self.plan is None or self.settings.steps is not None:
            return ""
        return f"about {format_seconds(max(1.0, self.end - self.clock()))} left"

    def _run(self, jobs: Sequence[Job]) -> Jobs:
        """Yield jobs and wait for their results."""
        yield from jobs
        yield from self._wait(jobs)

    def _wait(self, jobs: Sequence[Job]) -> Jobs:
        while any(job.key not in self.results for job in jobs):
            yield None

    def _train(self, trials: Sequence[CandidateTrial], steps: int, stage: str) -> Jobs:
        """Train seed by seed, so that an interrupted comparison has all models; slow models first, so all end together.

        If time is short, preferred models come first, because trainings that could not end within the stage are
        skipped.
        """
        assert self.plan is not None
        order = list(self.plan.models)
        speeds = self.speeds

        def place_of(trial: CandidateTrial) -> tuple[int, float]:
            name = trial.candidate.name
            return trial.seed, order.index(name) if self.plan and self.plan.is_short else -speeds[name].step

        ordered = sorted(trials, key=place_of)
        started: list[Job] = []
        for trial in ordered:
            cost = self.speeds[trial.candidate.name]
            job = self.job_factory.rung(trial, self.plan, steps, stage, cost if self.deadlines else None)
            # the first one may use the reserve: a stage without any result would leave no answer
            end = self.deadlines.get(stage, math.inf) if started else self.end
            needed = JOB_OVERHEAD + cost.step + cost.valid + (cost.test if stage == "final" else 0.0)
            if self.clock() + needed > end:
                self.skipped.add(trial.candidate.name)
                continue
            yield job
            started.append(job)
        yield from self._wait(started)

    def _prepare(self, baseline_jobs: list[Job]) -> Jobs:
        """Fit the baselines, and read the plan or create one from measured speeds; a stored plan never changes."""
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
        speed_jobs: dict[str, Job] = {}
        yield from self._measure_speeds(baseline_jobs, speed_jobs)
        for name, job in speed_jobs.items():
            result = self.results[job.key]
            if result.value is None:
                self.failed[name] = result.failed
            else:
                self.speeds[name] = TrainingCost(*(result.value[part] for part in ("step", "valid", "test", "memory")))
        self.plan = self._make_plan()
        record = {"plan": asdict(self.plan), "failed": self.failed, "workers": self.workers}
        record |= {what: {n: asdict(v) for n, v in getattr(self, what).items()} for what in ("sizes", "speeds")}
        checkpoint.write_file(place, sealed.dumps(record, indent=1))

    def _measure_speeds(self, baseline_jobs: list[Job], speed_jobs: dict[str, Job]) -> Jobs:
        """Fit the baselines, and measure the speeds of as many models as there is time for; fill in `speed_jobs`."""
        yield from baseline_jobs
        share = 0.0 if self.settings.steps else SPEED_SHARE * self.settings.seconds * self.workers
        seconds = min(SPEED_SECONDS, share / max(1, len(self.candidates)))
        for name, candidate in self.candidates.items():
            if self._is_late_to_measure(len(speed_jobs)):
                break
            try:
                self.sizes[name] = fit_size(self.task, candidate, self.parameters)
            except (ValueError, RuntimeError, TypeError) as error:
                self.failed[name] = " ".join(str(error).split())
                continue
            trial = CandidateTrial(candidate, Hyperparameters(1e-3), self.sizes[name].hidden)
            speed_jobs[name] = self.job_factory.speed(trial, seconds)
            yield speed_jobs[name]
        yield from self._wait([*baseline_jobs, *speed_jobs.values()])

    def _is_late_to_measure(self, measured: int) -> bool:
        if self.settings.steps is not None:
            return False
        share = (self.clock() - self.began) / self.settings.seconds
        if self.settings.models:
            return share > NAMED_DEADLINE and measured > 0
        return any(share > limit and measured >= count for limit, count in SPEED_DEADLINES)

    def _make_plan(self) -> TrainingPlan:
        """Plan for the budget, or for the requested number of steps."""
        s = self.settings
        if s.steps is not None:
            return plan_steps(tuple(self.speeds), s.steps, self.repeats, s.tune)
        spent = self.clock() - self.began + LATENCY_SECONDS * len(self.speeds) + self.report_seconds
        epoch = self.task_size.batches
        limits = Limits(s.seconds - spent, self.workers, self.repeats, epoch, bool(s.models), s.tune, spent)
        plan = plan_budget(self.speeds, limits)
        return plan if plan.models or not self.speeds else replace(plan, more=self._suggest_rows(plan.more))

    def _suggest_rows(self, more: str) -> str:
        """Add to a suggestion the number of rows that could be scored in a small part of the budget."""
        scoring = min(cost.valid + cost.test for cost in self.speeds.values())
        total = sum(split.size or 0 for split in self.task.splits.values())
        rows = int(total * SCORING_SHARE * self.settings.seconds / max(scoring, 1e-6))
        if self.task.encoding is None or rows >= total or rows < FEWEST_SUGGESTED:
            return more
        sample = f"--rows {rows // FEWEST_SUGGESTED * FEWEST_SUGGESTED} would leave time to train"
        return f"{more}; {sample}" if more else sample

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
            yield from self._train(best, plan.second, "second")
            best = self._rank_survivors(best)
        self.finalists = [
            [CandidateTrial(t.candidate, t.settings, t.hidden, seed) for seed in range(plan.seeds)]
            for t in best[: plan.finalists]
        ]

    def _rank_survivors(self, trials: Sequence[CandidateTrial]) -> list[CandidateTrial]:
        """Return the trials of the second rung, best first, then those it skipped, in the order of the first rung."""
        assert self.plan is not None
        second = self.plan.second
        done = [t for t in trials if self._value(rung_key(t, second))]
        unfinished = [t for t in trials if t not in done and rung_key(t, second) not in self.results]
        return [*sorted(done, key=self.rank_of), *unfinished]

    def _run_first_rung(self) -> Jobs:
        """Train the default settings; with --tune, then proposals that follow from the results so far."""
        assert self.plan is not None
        first, rates = self.plan.first, self.plan.rates
        yield from self._train([t for trials in self.trials.values() for t in trials], first, "first")
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
            yield from self._train(list({t.key: t for t in new}.values()), first, "first")

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
        return rank(self.metric, value["valid"])

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


def resolve_aim(task: Task, settings: CompareSettings) -> tuple[Metric, dict[str, Any]]:
    """Return the metric that ranks the models, and the settings for each training; add a note to the task.

    Raises:
        UserError: If a setting does not fit the task.
    """
    aim, note = resolve_objective(task, TrainSettings(**{name: getattr(settings, name) for name in AIM_SETTINGS}))
    if note:
        task.notes.say(note)
    options = {name: getattr(aim, name) for name in AIM_SETTINGS}
    kind = kind_of(task)
    if (settings.folds or 1) > 1:
        options["positive"] = kind.name_positive(task, settings.positive)  # the rarer class of folds may differ
    return kind.choose_objective(task, aim.metric).metric, options


def rank(metric: Metric, valid: Mapping[str, float | None]) -> tuple[float, float]:
    """Return a sort key, smallest first: the metric, then the loss.

    The loss replaces a metric that was not computed, such as BLEU during training.
    """
    loss = _number(valid.get("loss"))
    if metric.name not in valid:
        return loss, loss
    value = _number(valid[metric.name])
    return (-value if metric.higher and math.isfinite(value) else value), loss


def _number(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value

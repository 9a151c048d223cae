"""The report of a study of trainings: table, comparisons, one dot per seed, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from research.studies.support.conditions import TEST, VALID, Condition, TrialSettings
from research.studies.support.contenders import CUDNN
from research.studies.support.metric import TrialMetric
from research.studies.support.outcome import EFFECTS, Group, Trial, groups, tabulate_contests
from research.studies.support.summary import summarise
from seqloom.core.plurals import count
from seqloom.lab.report.page import Chart, Curve, Dots, PageBlock, Table

EDGES_NAMED = 4  # more of them are only counted

if TYPE_CHECKING:
    from research.studies.support.trials import Trials


def table(study: Trials[Any], rows: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return one row per condition and model: mean, interval, published number, trivial baseline and settings."""
    first, *others = study.metrics
    by_name = {c.name: c for c in study.settings.conditions}
    by_model = groups(rows)
    has_article = any(study.article_value(by_name[g.condition], g.model) is not None for g in by_model)
    table_rows = []
    for g in by_model:
        c, mean, t = by_name[g.condition], g.summary(first.name), g.trials[0]
        row: dict[str, Any] = {"condition": g.condition, "model": g.model, first.name: mean.mean}
        row |= {"low": first.cut(mean.low), "high": first.cut(mean.high), "seeds": mean.n, "failed": mean.failed}
        row |= {"article": study.article_value(c, g.model)} if has_article else {}
        row |= {"trivial": study.trivial(c)}
        row |= {m.name: g.summary(m.name).mean for m in others}
        row |= {"parameters": max(t.parameters for t in g.trials), "hidden": t.hidden, "lr": t.lr, "start": t.start}
        table_rows.append(row | {"ms/step": summarise([t.ms_per_step for t in g.trials]).mean})
    return table_rows


def caption(study: Trials[Any]) -> str:
    """Describe the fair protocol."""
    s, tried = study.settings, len(study.settings.lrs) * len(study.settings.starts)
    size = (
        f"h = {s.hidden}"
        if s.hidden
        else f"hidden sizes chosen for {s.budget:,} trained parameters{describe_steps(study)}"
    )
    share = "" if s.tuning == 1 else f" with {s.tuning:g} of the steps"
    tuned = (
        f"tuning: learning rates {', '.join(f'{lr:g}' for lr in s.lrs)} x {count(len(s.starts), 'start')} for every "
        f"model{share} on {s.valid:,} validation sequences, with {_describe_tuning_seeds(s.tuning_seeds)}"
        f"{_describe_more_tuning(study)}; then "
    )
    return (
        f"a new model for every condition; {size}; batches of {s.batch}, Adam, warm-up, cosine decay, clip 1.\n"
        f"{tuned if tried > 1 else ''}{count(s.seeds, 'new seed')}, "
        f"{count(s.test, 'test sequence')}; low, high: 95% t-interval over seeds, cut to possible values.\n"
        f"on {study.device} {_describe_precision(study)}; "
        "ms/step: while other trainings run on the same device."
    )


def find_edges(study: Trials[Any], rows: Sequence[Trial]) -> dict[tuple[str, str], float | None]:
    """Return, for each tuned pair of condition and model, its rate if that is the lowest or highest tried, else None.

    A condition that takes over the tuning of another has the rate of that one.
    """
    tunings = [t for t in rows if t.split == VALID]
    tried: dict[tuple[str, str], list[Trial]] = {}
    for t in tunings:
        tried.setdefault((t.condition, t.model), []).append(t)
    tested = dict.fromkeys((t.condition, t.model) for t in rows if t.split == TEST)
    sources = {c.name: c.sources for c in study.settings.conditions}
    grids = {}
    for condition, model in tested:
        source = study.find_source(sources.get(condition) or (condition,), model, tunings)
        grids[condition, model] = tried.get((source, model), [])
    return {place: study.find_edge(mine, place[1]) for place, mine in grids.items() if len({t.lr for t in mine}) > 1}


def describe_edges(study: Trials[Any], rows: Sequence[Trial]) -> str:
    """Say which models are not tuned, because their best learning rate is the lowest or highest one tried."""
    here = {t.condition for t in rows if t.split == VALID}  # others take over a rate
    found = {place: lr for place, lr in find_edges(study, rows).items() if place[0] in here}
    edges = [f"{condition}: {model} {lr:g}" for (condition, model), lr in found.items() if lr is not None]
    if not edges:
        return ""
    named = f" ({'; '.join(edges)})" if len(edges) <= EDGES_NAMED else ""
    return (
        f"Not tuned: the best learning rate is the lowest or highest one tried in {len(edges)} of {len(found)} "
        f"pairs of condition and model{named}."
    )


def _describe_more_tuning(study: Trials[Any]) -> str:
    """Describe what follows the first grid: further rates, and a second round."""
    s, parts = study.settings, list[str]()
    if s.widen:
        by = f" by {s.widen_by:g}" if s.widen_by else ""
        parts.append(f"if the lowest or highest rate was the best{by}, the next was tried for all models")
    if s.finalists:
        seeds = count(s.finalist_seeds or s.tuning_seeds, "other seed")
        parts.append(f"the best {s.finalists} settings of each model again with all steps and {seeds}")
    short = [c.name for c in s.conditions if not (c.widens or c.sources)]
    without = f" (not with {'; '.join(short)})" if short and parts else ""
    return "".join(f"; {part}" for part in parts) + without


def _describe_tuning_seeds(n: int) -> str:
    return "a separate seed" if n == 1 else f"{n} separate seeds"


def _describe_precision(study: Trials[Any]) -> str:
    if study.device != "cuda" or study.settings.precision == "float32":
        return "in float32"
    if study.settings.precision == "bfloat16":
        return "under bfloat16 autocast"
    return "in float32, AttnRNN under bfloat16 autocast"


def describe_schedule(study: Trials[Any]) -> str:
    """Describe the training of the protocol "paper", and whether it is the author's."""
    s, author = study.settings, study.paper
    assert author is not None

    def describe(settings: TrialSettings, steps: int) -> str:
        rate = "a constant rate of" if settings.constant_rate else "warm-up and cosine decay from"
        return f"{steps:,} steps of {settings.batch} sequences per length, Adam with {rate} {settings.lrs[0]:g}"

    mine = describe(s, study.steps(s.conditions[0]))
    theirs = describe(author, author.conditions[0].steps)
    size = f"h = {s.hidden}" if s.hidden else f"{s.budget:,} parameters"
    differs = f". The author's training differs: {theirs}." if mine != theirs else ", as the author trained;"
    return f"{mine}{differs} {size} and gradients clipped at 1 are chosen here."


def describe_steps(study: Trials[Any]) -> str:
    """Describe the steps of the hidden sizes on a GPU if they are large."""
    steps = {model: study.multiple(model) for model in study.settings.models} if study.device == "cuda" else {}
    largest = max(steps.values(), default=0)
    if largest < CUDNN:
        return ""
    named = ", ".join(model for model, step in steps.items() if step == largest)
    return f" (multiples of {largest} for {named}, because cuDNN is several times slower at other sizes)"


def blocks(study: Trials[Any], rows: Sequence[Trial]) -> list[PageBlock]:
    first = study.metrics[0]
    blocks: list[PageBlock] = [Table(f"{first.name} by condition and model", table(study, rows), study.caption())]
    apart = study.compare_models(rows)
    if any(c.p is not None for c in apart):
        blocks.append(Table(f"Differences in {first.name}", tabulate_contests(apart, first), _describe_tests(first)))
    blocks += _across(study, groups(rows))
    for c in study.settings.conditions:
        mine = [g for g in groups(rows) if g.condition == c.name]
        if mine:
            blocks += [_dots(study, c, mine), _losses(c.name, study.steps(c), mine)]
    return blocks


def _describe_tests(metric: TrialMetric) -> str:
    scales = {"plain": "the values", "log": "logarithms", "logit": "log odds"}
    effect = EFFECTS[metric.scale]
    counts = (
        "; where only some seeds of a model solve the problem, Fisher's exact test on the seeds that do"
        if metric.solved is not None
        else ""
    )
    return (
        f"{effect} with its 95% interval, p: Welch's test on {scales[metric.scale]}; "
        f"seeds are not pairs{counts}. "
        "If trainings failed, they are the worst results, and p is that of the Mann-Whitney test. "
        "p, Holm: corrected over the conditions of each pair of models"
    )


def _across(study: Trials[Any], all_groups: Sequence[Group]) -> list[Chart]:
    """Draw the first metric against the conditions, one chart per kind of condition."""
    first, charts = study.metrics[0], []
    placed = [(c, x) for c in study.settings.conditions if (x := study.at(c)) is not None]
    for kind in dict.fromkeys(study.kind(c) for c, _ in placed):
        x_of = {c.name: x for c, x in placed if study.kind(c) == kind}
        if len(x_of) < 2:
            continue
        curves = []
        for model in dict.fromkeys(g.model for g in all_groups):
            mine = [g for g in all_groups if g.model == model and g.condition in x_of]
            points = sorted((x_of[g.condition], [v for v in g.values(first.name) if v is not None]) for g in mine)
            where, y = [x for x, values in points if values], [values for _, values in points if values]
            if where:
                means = [sum(values) / len(values) for values in y]
                curves.append(Curve(model, where, means, [min(values) for values in y], [max(values) for values in y]))
        lines = [(x_of[c.name], study.trivial(c)) for c, _ in placed if c.name in x_of]
        known_lines = [(x, y) for x, y in lines if y is not None]
        if known_lines:
            curves.append(Curve("trivial baseline", [x for x, _ in known_lines], [y for _, y in known_lines]))
        title = f"{first.name} against {study.axis}{f', {kind}' if kind else ''}"
        note = "band: lowest to highest seed"
        charts.append(Chart(title, study.axis, first.name, curves, log_x=True, log_y=first.log, note=note))
    return charts


def _dots(study: Trials[Any], c: Condition, mine: Sequence[Group]) -> Dots:
    first = study.metrics[0]
    lines = {f"article, {g.model}": study.article_value(c, g.model) for g in mine} | {
        "trivial baseline": study.trivial(c)
    }
    return Dots(
        f"{c.name}: all seeds",
        first.name,
        {g.model: [v for v in g.values(first.name) if v is not None] for g in mine},
        {name: value for name, value in lines.items() if value is not None},
        first.log,
        intervals=_list_intervals(mine, first),
    )


def _list_intervals(mine: Sequence[Group], metric: TrialMetric) -> dict[str, tuple[float, float]]:
    """Return the 95% t-interval of each mean that has one, as in the table."""
    means = {g.model: g.summary(metric.name) for g in mine}
    ends = {model: (metric.cut(m.low), metric.cut(m.high)) for model, m in means.items()}
    return {model: (low, high) for model, (low, high) in ends.items() if low is not None and high is not None}


def _losses(name: str, steps: int, mine: Sequence[Group]) -> Chart:
    curves = []
    for g in mine:
        runs = [t.losses for t in g.trials if not t.failed and t.losses]
        if runs:
            points = min(map(len, runs))
            y = [sum(run[i] for run in runs) / len(runs) for i in range(points)]
            curves.append(Curve(g.model, [steps * (i + 0.5) / points for i in range(points)], y))
    return Chart(f"{name}: training loss", "step", "loss, mean over seeds", curves, log_y=True)

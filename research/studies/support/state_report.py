"""The report of the study of state tracking: seeds that solve a problem, primary contrasts, length generalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from research.studies.support import trial_report
from research.studies.support.conditions import Condition
from research.studies.support.counts import Count, compare_counts, count_hits
from research.studies.support.mixers import HEADS, NEGATIVE, is_linear
from research.studies.support.outcome import LEVEL, Group, Trial, groups
from research.studies.support.summary import holm
from research.studies.support.unpaired import SMALLEST, Change, compare_on_scale
from seqloom.lab.report.page import Chart, Curve, PageBlock, Table

if TYPE_CHECKING:
    from research.studies.state import State

SOLVED = 0.99  # accuracy from which a length counts as solved
LINEAR = ("min_gru", "min_gru_4", "min_lstm")
ATTENTION = ("transformer", "transformer_4")
PRIMARY = ("attn_rnn", "uniform weights", "gru", "min_gru")  # models with all seeds

DELETANG = "Deletang et al. 2023, arXiv 2207.02098: best seed, trained up to 40, mean accuracy of 41 to 500"
GRAZZI = "Grazzi et al. 2025, arXiv 2411.12537: scaled accuracy, (accuracy - chance) / (1 - chance)"
MERRILL = "Merrill et al. 2024, arXiv 2404.08819: labels after every symbol"
PUBLISHED = (
    ("parity", "rnn 1.00, lstm 1.00, transformer 0.52", DELETANG),
    ("parity", "transformer 0.02, mLSTM 0.09, sLSTM 1.00, Mamba 0.00, DeltaNet 0.02", GRAZZI),
    ("parity", "with negative eigenvalues: Mamba 1.00, DeltaNet 1.00", GRAZZI),
    ("arithmetic", "rnn 1.00, lstm 1.00, transformer 0.24", DELETANG),
    ("arithmetic", "transformer 0.03, mLSTM 0.04, sLSTM 0.79, Mamba 0.10, DeltaNet 0.31", GRAZZI),
    ("arithmetic", "with negative eigenvalues: Mamba 0.24, DeltaNet 0.97", GRAZZI),
    ("cycle", "rnn 1.00, lstm 1.00, transformer 0.62", DELETANG),
    ("A5", "one layer of an RNN solves it; the depth of Transformers and Mamba must grow with the length", MERRILL),
)


@dataclass(frozen=True)
class Contrast:
    """Two groups of models under one condition: seeds that solve it, and steps until they do."""

    question: str
    condition: str
    a: Count
    b: Count
    p: float | None
    steps: Change
    holm: float | None = None  # p, corrected for the conditions of the question
    steps_holm: float | None = None

    @property
    def better(self) -> bool | None:
        """Whether more seeds of the first group solve it; None without a significant difference."""
        if self.holm is None or self.holm >= LEVEL:
            return None
        return self.a.hits / self.a.n > self.b.hits / self.b.n

    @property
    def faster(self) -> bool | None:
        """Whether the first group needs fewer steps; None without a significant difference."""
        if self.steps_holm is None or self.steps_holm >= LEVEL or self.steps.effect is None:
            return None
        return self.steps.effect < 1


def count_solved(trials: Sequence[Trial], steps: int) -> Count:
    """Count the seeds that solve sequences of this length; a failed training does not."""
    return count_hits(t.scores.get(f"T = {steps:,}", 0.0) >= SOLVED for t in trials)


def questions(models: Sequence[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the primary contrasts: the models of both sides, by name."""
    linear = tuple(m for m in models if m in LINEAR or is_linear(m))
    nonlinear = tuple(m for m in models if m not in (*linear, *ATTENTION))
    negative = tuple(m for m in models if m.endswith(NEGATIVE) and m.removesuffix(NEGATIVE) in models)
    pairs = {
        "attn_rnn - uniform weights": (("attn_rnn",), ("uniform weights",)),
        "attn_rnn - gru": (("attn_rnn",), ("gru",)),
        "nonlinear - linear": (nonlinear, linear),
        "negative eigenvalues - positive": (negative, tuple(m.removesuffix(NEGATIVE) for m in negative)),
    }
    has = set(models)
    return {name: (a, b) for name, (a, b) in pairs.items() if has.intersection(a) and has.intersection(b)}


def contrasts(study: State, rows: Sequence[Trial]) -> list[Contrast]:
    """Compare both sides of each question under each condition; p-values are corrected within a question."""
    results = [t for t in rows if t.split == "test"]
    answers = []
    for question, (a, b) in questions(list(dict.fromkeys(t.model for t in results))).items():
        mine = []
        for c in dict.fromkeys(t.condition for t in results):
            one, other = ([t for t in results if t.condition == c and t.model in side] for side in (a, b))
            if one and other:
                mine.append(_contrast(question, c, one, other, study.settings.main_length))
        corrected = zip(holm([m.p for m in mine]), holm([m.steps.p for m in mine]), mine, strict=True)
        for p, steps_p, m in corrected:
            answers.append(Contrast(m.question, m.condition, m.a, m.b, m.p, m.steps, p, steps_p))
    return answers


def _contrast(question: str, condition: str, a: Sequence[Trial], b: Sequence[Trial], length: int) -> Contrast:
    mine, theirs = ([t.scores["steps to solve"] for t in side if "steps to solve" in t.scores] for side in (a, b))
    one, other = count_solved(a, length), count_solved(b, length)
    steps = compare_on_scale(mine, theirs, "log", SMALLEST)
    return Contrast(question, condition, one, other, compare_counts(one, other), steps)


def table(study: State, rows: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return one row per condition and model."""
    s, by_name, table_rows = study.settings, {c.name: c for c in study.settings.conditions}, []
    for g in groups(rows):
        ok = [t for t in g.trials if not t.failed]
        solved, t = count_solved(g.trials, s.main_length), g.trials[0]
        row: dict[str, Any] = {"condition": g.condition, "model": g.model}
        row |= {f"solved to {s.main_length:,}": str(solved), "low": solved.low, "high": solved.high}
        row |= {f"T={T}": _mean(ok, f"T = {T:,}") for T in s.test_lengths}
        steps = [t.scores["steps to solve"] for t in ok if "steps to solve" in t.scores]
        row |= {"chance": study.trivial(by_name[g.condition]), "scaled": _mean(ok, "scaled")}
        row |= {"steps to solve": median(steps) if steps else None, "failed": len(g.trials) - len(ok)}
        row |= {"parameters": max(t.parameters for t in g.trials), "hidden": t.hidden, "lr": t.lr, "start": t.start}
        table_rows.append(row)
    return table_rows


def _mean(trials: Sequence[Trial], name: str) -> float | None:
    return sum(t.scores[name] for t in trials) / len(trials) if trials else None


def blocks(study: State, rows: Sequence[Trial]) -> list[PageBlock]:
    s = study.settings
    title = "Accuracy by condition, model and test length"
    page: list[PageBlock] = [Table(title, table(study, rows), study.caption())]
    apart = contrasts(study, rows)
    if apart:
        page.append(Table("Primary contrasts", [_format_contrast(c) for c in apart], _NOTE))
    page.append(Table("Published results", _tabulate_published(s.conditions), "with other models, sizes and lengths"))
    for c in s.conditions:
        mine = [g for g in groups(rows) if g.condition == c.name]
        if mine:
            page += [_by_length(study, c, mine), _while_training(study, c, mine)]
    return page


_NOTE = (
    "solved: seeds of n; p: Fisher's exact test. steps: ratio of the steps until 99% at the training length, over the "
    "seeds that get there, with its 95% interval (Welch on logarithms). Holm: corrected over the conditions"
)


def _format_contrast(c: Contrast) -> dict[str, Any]:
    words = {None: "no significant difference", True: "solved by more seeds", False: "solved by fewer seeds"}
    speeds = {None: "", True: ", in fewer steps", False: ", in more steps"}
    return {
        "contrast": c.question,
        "condition": c.condition,
        "solved": f"{c.a} / {c.b}",
        "p": c.p,
        "p, Holm": c.holm,
        "steps": c.steps.effect,
        "low": c.steps.low,
        "high": c.steps.high,
        "p of steps, Holm": c.steps_holm,
        "result": words[c.better] + speeds[c.faster],
    }


def _tabulate_published(conditions: Sequence[Condition]) -> list[dict[str, Any]]:
    problems = {c.task["problem"] for c in conditions}
    rows = [{"problem": p, "published": text, "source": source} for p, text, source in PUBLISHED if p in problems]
    return rows or [{"problem": "", "published": "none for these conditions", "source": ""}]


def _by_length(study: State, c: Condition, mine: Sequence[Group]) -> Chart:
    lengths, curves = study.settings.test_lengths, []
    for g in mine:
        runs = [t.scores for t in g.trials if not t.failed]
        if runs:
            values = [[run[f"T = {T:,}"] for run in runs] for T in lengths]
            curves.append(_curve(g.model, [float(T) for T in lengths], values))
    curves.append(Curve("chance", [float(T) for T in lengths], [study.trivial(c)] * len(lengths)))
    note = f"trained up to {study.length(c)}; mean, lowest and highest seed"
    return Chart(f"{c.name}: accuracy against length", "test length", "accuracy", curves, log_x=True, note=note)


def _while_training(study: State, c: Condition, mine: Sequence[Group]) -> Chart:
    rounds, curves = study.settings.rounds, []
    for g in mine:
        runs = [t.scores for t in g.trials if not t.failed]
        if runs:
            x = [study.steps(c) * (k + 1) / rounds for k in range(rounds)]
            curves.append(_curve(g.model, x, [[run[f"round {k + 1}"] for run in runs] for k in range(rounds)]))
    title = f"{c.name}: validation accuracy at length {study.length(c)} while training"
    return Chart(title, "step", "accuracy", curves, note="mean, lowest and highest seed")


def _curve(name: str, x: list[float], values: list[list[float]]) -> Curve:
    return Curve(name, x, [sum(v) / len(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def caption(study: State) -> str:
    s = study.settings
    tried = len(s.lrs) * len(s.starts)
    widened = (
        f" If the lowest or highest learning rate was better than all others by {s.widen_by:g}, the next was tried for "
        "all models."
        if s.widen
        else ""
    )
    tuned = (
        f"tuning: learning rates {', '.join(f'{lr:g}' for lr in s.lrs)} x {len(s.starts)} starts, {s.tuning_seeds} "
        f"seeds each, {s.tuning:g} of the steps, on {s.valid:,} validation sequences of "
        f"{' and '.join(map(str, s.valid_lengths))} steps.{widened}\n"
        if tried > 1
        else ""
    )
    later = (
        "\nlower rate: the next lower learning rate, because a seed had solved the problem and lost it again; "
        "this condition was added after the test sequences had been read."
        if any(c.lower for c in s.conditions)
        else ""
    )
    longer = "".join(
        f"\n{c.name}: trained on up to {study.length(c)} steps"
        f"{', a length that grows with the square of the steps' if c.task.get('growth') == 2 else ''}, "
        f"tuned {_describe_sources(c) if c.tuned_at else f'at {_list_lengths(study, c)}'}."
        for c in s.conditions
        if "length" in c.task
    )
    linear = (
        f" Linear recurrences: one block of convolution, recurrence with {HEADS} heads and feed-forward network; "
        '"negative": with negative eigenvalues of the transition.'
        if any(map(is_linear, s.models))
        else ""
    )
    sources = "; ".join(f"{p}: {text} ({source.partition(',')[0]})" for p, text, source in _published_here(study))
    return (
        f"trained on sequences of up to {s.train_length} steps, a length that grows from 1 in the first 60% of the "
        f"steps; label after every symbol; batches of {s.batch}, Adam, warm-up, cosine decay, clip 1, float32.\n"
        f"hidden sizes chosen for {s.budget:,} trained parameters{trial_report.describe_steps(study)}; one layer; "
        f"min_gru and transformer (rotary positions) two. uniform weights: AttnRNN with W_q = 0.{linear}\n"
        f"{tuned}T=...: accuracy in the last eighth of {s.test:,} test sequences, mean of all seeds. solved to "
        f"{s.main_length:,}: seeds with at least {SOLVED:.0%}; low, high: exact 95% interval of their share. scaled: "
        f"(accuracy - chance) / (1 - chance) at {s.main_length:,}. steps to solve: median of the steps until "
        f"{SOLVED:.0%} on validation sequences of {s.train_length} steps, over the seeds that get there."
        f"{later}{longer}" + (f"\npublished: {sources}." if sources else "")
    )


def _describe_sources(condition: Condition) -> str:
    best = ", whichever has the higher accuracy on validation sequences" if len(condition.sources) > 1 else ""
    return f"as {' or '.join(condition.sources)}{best}"


def _list_lengths(study: State, condition: Condition) -> str:
    """Return the lengths of the validation sequences of a condition."""
    return " and ".join(map(str, condition.task.get("valid_lengths", study.settings.valid_lengths)))


def _published_here(study: State) -> list[tuple[str, str, str]]:
    problems = {c.task["problem"] for c in study.settings.conditions}
    return [row for row in PUBLISHED if row[0] in problems]


def verdict(study: State, rows: Sequence[Trial]) -> str:
    """Say who solved what, and answer each primary question with counts."""
    length = study.settings.main_length
    by_condition: dict[str, dict[str, Count]] = {}
    for g in groups(rows):
        by_condition.setdefault(g.condition, {})[g.model] = count_solved(g.trials, length)
    if not by_condition:
        return ""
    if not any(count.hits for counts in by_condition.values() for count in counts.values()):
        return f"No seed of any model solved a problem to length {length:,}; train longer (--effort 2)."
    listed = "; ".join(f"{c}: {_list_solvers(counts)}" for c, counts in by_condition.items())
    sentences = [f"Solved to length {length:,} (at least {SOLVED:.0%} in the last eighth): {listed}."]
    apart = contrasts(study, rows)
    for question in dict.fromkeys(c.question for c in apart):
        sentences.append(_answer(question, [c for c in apart if c.question == question]))
    return " ".join(sentences)


def _list_solvers(counts: dict[str, Count]) -> str:
    everyone = [m for m, n in counts.items() if n.hits == n.n]
    nobody = [m for m, n in counts.items() if not n.hits]
    some = [f"{m} by {n}" for m, n in counts.items() if 0 < n.hits < n.n]
    parts = [f"{', '.join(everyone)} by every seed"] if everyone else []
    parts += some + ([f"{', '.join(nobody)} by none"] if nobody else [])
    return ", ".join(parts)


def _answer(question: str, mine: Sequence[Contrast]) -> str:
    a = question.partition(" - ")[0]
    told = []
    for word, better in (("more", True), ("fewer", False)):
        here = [c for c in mine if c.better is better]
        if here:
            details = ", ".join(f"{c.condition} {c.a} against {c.b}" for c in here)
            told.append(f"{a} solved {len(here)} of {len(mine)} conditions with {word} seeds ({details})")
    if not told:
        told.append(f"no significant difference in the seeds that solve {_all(len(mine))}")
    for word, faster in (("fewer", True), ("more", False)):
        here = [c for c in mine if c.faster is faster]
        if here:
            details = ", ".join(
                f"{c.condition} {c.steps.effect:.2f} times, {c.steps.low:.2f} to {c.steps.high:.2f}" for c in here
            )
            told.append(f"{a} needed {word} steps in {len(here)} ({details})")
    return f"{question}: {'; '.join(told)}."


def _all(n: int) -> str:
    return "the condition" if n == 1 else f"any of {n} conditions"

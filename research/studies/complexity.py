"""Time, memory and longest path against the length, for every form from recurrence to attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from research.record import PROCESSOR, Stopwatch, measure
from research.studies.study import Study
from research.studies.support.forms import CHUNK, FORMS, HEADS, KERNEL, WINDOW, Count, Form
from research.studies.support.ledger import Ledger
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.report.page import Chart, Curve, PageBlock, Table
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import ROUND

MIDDLE = 1.5  # between T and T^2
NEAR = 0.25  # exponents that differ by less agree


@dataclass(frozen=True)
class ComplexitySettings:
    """Width d, one sequence; lengths start at the longest of each form and shrink by `ratio`."""

    width: int = 64
    lengths: int = 7
    fitted: int = 5  # the longest lengths, where constant costs are small
    ratio: float = math.sqrt(2)
    shorten: int = 1  # the longest length of each form is divided by it
    rounds: int = 8
    reach: int = 257  # T at which gradients show how many layers connect the first and the last step


@dataclass(frozen=True)
class Exponent:
    """The p of T^p: counted, and fitted with its 95 % t-interval, value +- half."""

    counted: float
    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.2f} +- {self.half:.2f}"


@dataclass(frozen=True)
class Growth:
    """Measurements of one form at all its lengths."""

    form: str
    lengths: tuple[int, ...]
    seconds: tuple[float, ...]  # processor time of forward and backward
    saved_bytes: tuple[int, ...]  # between forward and backward
    path: tuple[int, ...]
    time_exponent: Exponent
    memory_exponent: Exponent
    layers: int | None  # fewest that connect both ends at settings.reach; None: not as counted
    layers_counted: int

    def __str__(self) -> str:
        return f"{self.form}: time as T^{self.time_exponent}, memory as T^{self.memory_exponent}"


class Complexity(Study[ComplexitySettings, Growth], name="complexity"):
    """How time, memory and the longest path grow with the sequence length, from RNN to attention."""

    full = ComplexitySettings()
    quick = ComplexitySettings(lengths=5, shorten=2, rounds=2)

    @property
    def parts(self) -> int:
        return len(FORMS) * self.settings.rounds

    def run(self, before: Callable[[str], None]) -> Iterator[Growth]:
        ledger = Ledger(self.folder)
        for form in FORMS:
            key = {"study": self.name, "form": form.name, "settings": asdict(self.settings)}
            if ledger.get(key) is None and self.replays:
                self.missing.append(form.name)
                continue
            if ledger.get(key) is None:
                with use_one_thread(), torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    ledger.add(key, asdict(self._measure(form, before)))
            else:
                for n in range(self.settings.rounds):
                    before(f"{form.name}, round {n + 1}: known")
            yield _read_growth(ledger.get(key) or {})

    def _measure(self, form: Form, before: Callable[[str], None]) -> Growth:
        d, lengths = self.settings.width, self._lengths(form)
        calls, saved = [], []
        for T in lengths:
            layer, x = form.make(d, T), torch.randn(1, T, d, requires_grad=True)
            saved.append(saved_bytes(layer, x))
            calls.append(partial(_call, layer, x))
        best = [math.inf] * len(lengths)
        for n in range(self.settings.rounds):  # alternate between lengths: disturbances affect all alike
            before(f"{form.name}, round {n + 1}")
            best = [min(b, _seconds(call)) for b, call in zip(best, calls, strict=True)]
        counted = form.layers(self.settings.reach)
        return Growth(
            form=form.name,
            lengths=lengths,
            seconds=tuple(best),
            saved_bytes=tuple(saved),
            path=tuple(form.path[1](T) for T in lengths),
            time_exponent=self._exponent(lengths, best, form.work),
            memory_exponent=self._exponent(lengths, saved, form.keeps),
            layers=counted if self._connects(form, counted) and not self._connects(form, counted - 1) else None,
            layers_counted=counted,
        )

    def _lengths(self, form: Form) -> tuple[int, ...]:
        """Shortest first; multiples of 64, in which blocks and chunks come out even."""
        s = self.settings
        longest = form.longest // s.shorten
        return tuple(64 * round(longest / s.ratio**n / 64) for n in reversed(range(s.lengths)))

    def _exponent(self, lengths: Sequence[int], values: Sequence[float], count: Count) -> Exponent:
        from scipy import stats

        upper = slice(-self.settings.fitted, None)
        logs = [math.log(T) for T in lengths[upper]]
        line = stats.linregress(logs, [math.log(f) for f in values[upper]])
        theory = stats.linregress(logs, [math.log(count(T, self.settings.width)) for T in lengths[upper]])
        half = stats.t.ppf(0.975, len(logs) - 2) * line.stderr
        return Exponent(float(theory.slope), float(line.slope), float(half))

    def _connects(self, form: Form, layers: int) -> bool:
        """Return whether the gradient of the last output reaches the first input."""
        if layers == 0:
            return False
        d, T = self.settings.width, self.settings.reach
        x = torch.randn(1, T, d, dtype=torch.float64, requires_grad=True)
        y, _ = form.stack(d, T, layers).double()(x)
        w = torch.randn_like(y[0, -1])  # random, because a plain sum is constant after a LayerNorm
        (gradient,) = torch.autograd.grad(y[0, -1] @ w, x)
        return bool(gradient[0, 0].any())

    def table(self, rows: Sequence[Growth]) -> list[dict[str, Any]]:
        forms = {form.name: form for form in FORMS}
        return [
            {
                "form": row.form,
                "time": forms[row.form].time,
                "counted": f"T^{row.time_exponent.counted:.2f}",
                "measured": f"T^{row.time_exponent}",
                "memory": forms[row.form].memory,
                "saved": f"T^{row.memory_exponent}",
                "sequential": forms[row.form].steps[0],
                "path": forms[row.form].path[0],
                f"layers, T = {self.settings.reach}": row.layers,
                "max T": row.lengths[-1],
                "ms": 1e3 * row.seconds[-1],
                "MB": row.saved_bytes[-1] / 1e6,
            }
            for row in rows
        ]

    def caption(self) -> str:
        s = self.settings
        return (
            f"one sequence, d = {s.width}, {HEADS} heads, w = {WINDOW}, chunks of {CHUNK}, convolutions of {KERNEL}; "
            "causal, float32, one thread.\n"
            "one layer each; the TCN is as deep as T requires, and RNN + attention has a window of T.\n"
            f"exponents: slopes of log against log over the upper {s.fitted} of {s.lengths} lengths, "
            f"each {s.ratio:.2f} times the one before; +- is their 95% t-interval;\n"
            "counted: multiply-adds of the forward; measured: processor time of forward and backward, "
            f"fastest of {s.rounds} rounds; saved: bytes saved for the backward.\n"
            "sequential: steps that must run one after another; path: longest path, both counted; layers: the "
            "fewest with "
            "which the gradient reaches the first step from the last, measured; ms, MB: at max T"
        )

    def verdict(self, rows: Sequence[Growth]) -> str:
        time_ = {row.form: row.time_exponent for row in rows}
        slow = [form for form, p in time_.items() if p.value + p.half < MIDDLE]
        fast = [form for form, p in time_.items() if p.value - p.half > MIDDLE]
        unclear = [form for form in time_ if form not in (*slow, *fast)]
        square = [row.form for row in rows if row.memory_exponent.value > MIDDLE]
        off = [form for form, p in time_.items() if abs(p.value - p.counted) > max(p.half, NEAR)]
        wrong = [row.form for row in rows if row.layers is None]
        parts = [f"Time grows closer to T than to T^2: {_list_names(slow)}; closer to T^2: {_list_names(fast)}"]
        parts += [f"undecided: {_list_names(unclear)}"] if unclear else []
        text = "; ".join(parts) + f". Memory grows closer to T^2: {_list_names(square)}."
        text += (
            f" Measured exponent differs from the counted one by more than {NEAR} and the interval: {_list_names(off)}."
            if off
            else ""
        )
        return text + (
            f" The measured number of layers differs from the counted one: {_list_names(wrong)}." if wrong else ""
        )

    def blocks(self, rows: Sequence[Growth]) -> list[PageBlock]:
        panels: tuple[tuple[str, str, Callable[[Growth], Sequence[float]]], ...] = (
            ("Time of forward and backward", "ms", lambda row: [1e3 * s for s in row.seconds]),
            ("Saved for the backward", "MB", lambda row: [b / 1e6 for b in row.saved_bytes]),
            ("Longest path, counted", "steps", lambda row: row.path),
        )
        charts = [
            Chart(title, "length T", unit, [_curve(row, values(row)) for row in rows], log_x=True, log_y=True)
            for title, unit, values in panels
        ]
        return [Table("Exponents and paths", self.table(rows), self.caption()), *charts]


def _read_growth(stored: Mapping[str, Any]) -> Growth:
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    values |= {name: Exponent(**stored[name]) for name in ("time_exponent", "memory_exponent")}
    return Growth(**values)


def _curve(row: Growth, values: Sequence[float]) -> Curve:
    return Curve(row.form, [float(T) for T in row.lengths], [float(v) for v in values])


def _call(layer: nn.Module, x: Tensor) -> None:
    y, _ = layer(x)
    torch.autograd.grad(y.sum(), [x, *layer.parameters()], allow_unused=True)


def _seconds(call: Callable[[], None]) -> float:
    """Return the processor time of the fastest call of a round, independent of other programs."""
    best, begun = math.inf, Stopwatch()
    while best == math.inf or begun.seconds < ROUND:
        best = min(best, measure(call, clock=PROCESSOR))
    return best


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

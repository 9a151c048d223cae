"""What length costs: time, memory and the longest path of every form between recurrence and attention."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.lab.report.page import Chart, Curve, PageBlock, Table
from seqloom.lab.studies.study import Study
from seqloom.lab.studies.support.forms import CHUNK, FORMS, HEADS, KERNEL, WINDOW, Count, Form
from seqloom.lab.training.cpu import use_one_thread
from seqloom.tools.measure import saved_bytes
from seqloom.tools.timing import ROUND

MIDDLE = 1.5  # between T and T^2
NEAR = 0.25  # an exponent this far from the counted one still agrees with it


@dataclass(frozen=True)
class Settings:
    """Width d, one sequence; lengths from the longest of each form down, each the next over `ratio`."""

    width: int = 64
    lengths: int = 7
    fitted: int = 5  # the longest ones, where what does not grow has become small
    ratio: float = math.sqrt(2)
    shorten: int = 1  # the longest length of each form is divided by it
    rounds: int = 8
    reach: int = 257  # T at which gradients say how many layers connect the first step with the last


@dataclass(frozen=True)
class Exponent:
    """The p of T^p: counted over these lengths, and fitted with its 95% t-interval, value +- half."""

    counted: float
    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.2f} +- {self.half:.2f}"


@dataclass(frozen=True)
class Growth:
    """One form at all its lengths; the paths are counted, the layers measured and counted."""

    form: str
    lengths: tuple[int, ...]
    seconds: tuple[float, ...]  # forward and backward, of a processor
    saved_bytes: tuple[int, ...]  # between forward and backward
    path: tuple[int, ...]
    time_exponent: Exponent
    memory_exponent: Exponent
    layers: int | None  # with which the gradient arrives at settings.reach, one fewer does not; None: it differs
    layers_counted: int

    def __str__(self) -> str:
        return f"{self.form}: time as T^{self.time_exponent}, memory as T^{self.memory_exponent}"


class Complexity(Study[Settings, Growth], name="complexity"):
    """How time, memory and the longest path grow with the length, from the RNN to attention and beyond."""

    full = Settings()
    quick = Settings(lengths=5, shorten=2, rounds=2)

    @property
    def parts(self) -> int:
        return len(FORMS) * self.settings.rounds

    def run(self, before: Callable[[str], None]) -> Iterator[Growth]:
        for form in FORMS:
            with use_one_thread(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                row = self._measured(form, before)
            yield row

    def _measured(self, form: Form, before: Callable[[str], None]) -> Growth:
        d, lengths = self.settings.width, self._lengths(form)
        calls, kept = [], []
        for T in lengths:
            layer, x = form.make(d, T), torch.randn(1, T, d, requires_grad=True)
            kept.append(saved_bytes(layer, x))
            calls.append(partial(_call, layer, x))
        best = [math.inf] * len(lengths)
        for n in range(self.settings.rounds):  # each length in its turn: what slows the machine slows all
            before(f"{form.name}, round {n + 1}")
            best = [min(b, _seconds(call)) for b, call in zip(best, calls, strict=True)]
        counted = form.layers(self.settings.reach)
        return Growth(
            form=form.name,
            lengths=lengths,
            seconds=tuple(best),
            saved_bytes=tuple(kept),
            path=tuple(form.path[1](T) for T in lengths),
            time_exponent=self._exponent(lengths, best, form.work),
            memory_exponent=self._exponent(lengths, kept, form.keeps),
            layers=counted if self._connects(form, counted) and not self._connects(form, counted - 1) else None,
            layers_counted=counted,
        )

    def _lengths(self, form: Form) -> tuple[int, ...]:
        """Shortest first; multiples of 64, in which blocks and chunks come out even."""
        s = self.settings
        longest = form.longest // s.shorten
        return tuple(64 * round(longest / s.ratio**n / 64) for n in reversed(range(s.lengths)))

    def _exponent(self, lengths: Sequence[int], found: Sequence[float], count: Count) -> Exponent:
        from scipy import stats

        upper = slice(-self.settings.fitted, None)
        logs = [math.log(T) for T in lengths[upper]]
        line = stats.linregress(logs, [math.log(f) for f in found[upper]])
        theory = stats.linregress(logs, [math.log(count(T, self.settings.width)) for T in lengths[upper]])
        half = stats.t.ppf(0.975, len(logs) - 2) * line.stderr
        return Exponent(float(theory.slope), float(line.slope), float(half))

    def _connects(self, form: Form, layers: int) -> bool:
        """Whether the gradient of the last output reaches the first input."""
        if layers == 0:
            return False
        d, T = self.settings.width, self.settings.reach
        x = torch.randn(1, T, d, dtype=torch.float64, requires_grad=True)
        y, _ = form.stack(d, T, layers).double()(x)
        w = torch.randn_like(y[0, -1])  # a plain sum is constant after a LayerNorm
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
                "kept": f"T^{row.memory_exponent}",
                "in order": forms[row.form].steps[0],
                "path": forms[row.form].path[0],
                f"layers, T = {self.settings.reach}": row.layers,
                "longest T": row.lengths[-1],
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
            "one layer; but a TCN as deep as T needs, and RNN + attention with a window of T.\n"
            f"exponents: slopes of log against log over the upper {s.fitted} of {s.lengths} lengths, "
            f"each {s.ratio:.2f} times the one before; +- is their 95% t-interval;\n"
            "counted: multiply-adds of the forward; measured: processor time of forward and backward, "
            f"fastest of {s.rounds} rounds; kept: bytes saved for the backward.\n"
            "in order, path: counted; layers: with so many the gradient goes from the last step to the first, "
            "with one fewer it does not; ms, MB: at the longest T"
        )

    def verdict(self, rows: Sequence[Growth]) -> str:
        time_ = {row.form: row.time_exponent for row in rows}
        slow = [form for form, p in time_.items() if p.value + p.half < MIDDLE]
        fast = [form for form, p in time_.items() if p.value - p.half > MIDDLE]
        unclear = [form for form in time_ if form not in (*slow, *fast)]
        square = [row.form for row in rows if row.memory_exponent.value > MIDDLE]
        off = [form for form, p in time_.items() if abs(p.value - p.counted) > max(p.half, NEAR)]
        wrong = [row.form for row in rows if row.layers is None]
        parts = [f"Time grows nearer to T than to T^2: {_and(slow)}; nearer to T^2: {_and(fast)}"]
        parts += [f"not told apart here: {_and(unclear)}"] if unclear else []
        text = "; ".join(parts) + f". Memory nearer to T^2: {_and(square)}."
        text += f" Away from the count by more than {NEAR} and the interval: {_and(off)}." if off else ""
        return text + (f" Gradients contradict the counted layers: {_and(wrong)}." if wrong else "")

    def blocks(self, rows: Sequence[Growth]) -> list[PageBlock]:
        panels: tuple[tuple[str, str, Callable[[Growth], Sequence[float]]], ...] = (
            ("Time of forward and backward", "ms", lambda row: [1e3 * s for s in row.seconds]),
            ("Kept for the backward", "MB", lambda row: [b / 1e6 for b in row.saved_bytes]),
            ("Longest path, counted", "steps", lambda row: row.path),
        )
        charts = [
            Chart(title, "length T", unit, [_curve(row, values(row)) for row in rows], log_x=True, log_y=True)
            for title, unit, values in panels
        ]
        return [Table("Exponents and paths", self.table(rows), self.caption()), *charts]


def _curve(row: Growth, values: Sequence[float]) -> Curve:
    return Curve(row.form, [float(T) for T in row.lengths], [float(v) for v in values])


def _call(layer: nn.Module, x: Tensor) -> None:
    y, _ = layer(x)
    torch.autograd.grad(y.sum(), [x, *layer.parameters()], allow_unused=True)


def _seconds(call: Callable[[], None]) -> float:
    """Of this process on its processor, so that other programs do not count; the fastest call of a round."""
    best, begun = math.inf, time.perf_counter()
    while best == math.inf or time.perf_counter() < begun + ROUND:
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def _and(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"

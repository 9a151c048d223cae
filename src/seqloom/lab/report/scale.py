"""Axes: where a value lies on them, and their tick labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqloom.lab.report.text import format_number, is_number

PAD = 0.04  # share of the axis beyond the outermost values
FLOOR = 0.07  # share of a logarithmic axis for values of 0 or less
HUGE = 1e300  # differences between larger numbers overflow


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    at: float  # share of the axis, 0 to 1
    text: str


@dataclass(frozen=True)
class AxisScale:
    """An axis from `low` to `high`; on a logarithmic axis both are exponents of 10, with `floor` below them."""

    low: float
    high: float
    log: bool = False
    floor: float = 0.0
    ticks: tuple[Tick, ...] = ()

    def at(self, value: float) -> float:
        """Return the position of a value as a share of the axis, 0 to 1."""
        if self.log and value <= 0:
            return 0.0
        value = math.log10(value) if self.log else max(-HUGE, min(HUGE, value))
        share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, self.floor + (1 - self.floor) * share))


def make_scale(
    values: Iterable[float | None], log: bool = False, marks: Sequence[float] = (), count: int = 6
) -> AxisScale:
    """Fit an axis to the values; `marks` are the ticks of a logarithmic axis."""
    finite = [max(-HUGE, min(HUGE, float(v))) for v in values if v is not None and is_number(v)]
    return _make_logarithmic(finite, marks, count) if log else _make_linear(finite, count)


def _make_linear(values: list[float], count: int) -> AxisScale:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)
    at_zero = 0 <= low <= 0.35 * high  # then the axis begins at 0
    low, high = (0.0 if at_zero else low - PAD * (high - low)), high + PAD * (high - low)
    bare = AxisScale(low, high)
    ticks = pick_round_numbers(low, high, count)
    return AxisScale(low, high, ticks=tuple(Tick(bare.at(t), text) for t, text in _format_ticks(ticks)))


def _format_ticks(ticks: list[float]) -> list[tuple[float, str]]:
    """Label evenly spaced numbers with as many decimals as they need."""
    if not ticks:
        return []
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    last = math.floor(math.log10(step) + 1e-9)  # the place of the digit that changes
    last -= round(step / 10.0**last, 6) == 2.5
    largest = max(map(abs, ticks))
    if last >= -4 and largest < 1e6:
        return [(t, f"{t:,.{max(0, -last)}f}" if t else "0") for t in ticks]
    return [(t, format_number(t, max(1, math.floor(math.log10(largest)) - last + 1))) for t in ticks]


def pick_round_numbers(low: float, high: float, count: int) -> list[float]:
    """Return about `count` multiples of 1, 2, 2.5 or 5 times a power of 10."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= rough * 0.999), 10 * power)
    first = math.ceil(low / step - 1e-9)
    ticks = [i * step for i in range(first, first + 2 * count + 2)]
    return [t for t in ticks if t <= high + 1e-9 * step]


def _make_logarithmic(values: list[float], marks: Sequence[float], count: int) -> AxisScale:
    positive = [math.log10(v) for v in values if v > 0]
    low, high = min(positive, default=-1.0), max(positive, default=0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - PAD * (high - low), high + PAD * (high - low)
    floor = FLOOR if len(positive) < len(values) else 0.0
    bare = AxisScale(low, high, True, floor)
    ticks = [Tick(bare.at(v), text) for v, text in _choose_ticks(low, high, marks, count)]
    if floor:
        ticks.insert(0, Tick(0.0, "0" if min(values) == 0 else "≤ 0"))
    return AxisScale(low, high, True, floor, tuple(ticks))


def _choose_ticks(low: float, high: float, marks: Sequence[float], count: int) -> list[tuple[float, str]]:
    if marks:
        return [(v, format_number(v)) for v in marks]
    if high - low < 0.7:  # less than from 1 to 5
        return _format_ticks([v for v in pick_round_numbers(10.0**low, 10.0**high, count) if v > 0])
    exponents = range(math.ceil(low), math.floor(high) + 1)
    if high - low < 2.5:
        ones = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        return [(v, format_number(v)) for v in ones if v and low <= math.log10(v) <= high]
    step = -(-len(exponents) // count)
    chosen = [e for e in exponents if e % step == 0 and 10.0**e > 0]
    powers = min(chosen) < -3 or max(chosen) > 5
    return [(10.0**e, f"10{_superscript(e)}" if powers else format_number(10.0**e)) for e in chosen]


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

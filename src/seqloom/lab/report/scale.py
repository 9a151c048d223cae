"""An axis: where a value stands on it, and the round numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seqloom.lab.report.text import known, number

PAD = 0.04  # of the axis, beyond the outermost values
FLOOR = 0.07  # of a logarithmic axis, for what is 0 or less
HUGE = 1e300  # differences of numbers beyond it overflow


@dataclass(frozen=True)
class Tick:
    at: float  # a share of the axis
    text: str


@dataclass(frozen=True)
class Scale:
    """From `low` to `high`; on a logarithmic one both are exponents of 10, and `floor` is below them."""

    low: float
    high: float
    log: bool = False
    floor: float = 0.0
    ticks: tuple[Tick, ...] = ()

    def at(self, value: float) -> float:
        """The value's share of the axis, 0 to 1."""
        if self.log and value <= 0:
            return 0.0
        value = math.log10(value) if self.log else max(-HUGE, min(HUGE, value))
        share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, self.floor + (1 - self.floor) * share))


def scale(values: Iterable[float | None], log: bool = False, marks: Sequence[float] = (), count: int = 6) -> Scale:
    """An axis that holds the values; a logarithmic one has its ticks at the few `marks` where they are given."""
    there = [max(-HUGE, min(HUGE, float(v))) for v in values if v is not None and known(v)]
    return _logarithmic(there, marks, count) if log else _linear(there, count)


def _linear(values: list[float], count: int) -> Scale:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)
    at_zero = 0 <= low <= 0.35 * high  # then the axis begins at 0
    low, high = (0.0 if at_zero else low - PAD * (high - low)), high + PAD * (high - low)
    bare = Scale(low, high)
    ticks = round_numbers(low, high, count)
    return Scale(low, high, ticks=tuple(Tick(bare.at(t), text) for t, text in _even(ticks)))


def _even(ticks: list[float]) -> list[tuple[float, str]]:
    """Numbers a step apart, with the decimals that tell one from the next."""
    if not ticks:
        return []
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    last = math.floor(math.log10(step) + 1e-9)  # the place of the digit that changes
    last -= round(step / 10.0**last, 6) == 2.5
    largest = max(map(abs, ticks))
    if last >= -4 and largest < 1e6:
        return [(t, f"{t:,.{max(0, -last)}f}" if t else "0") for t in ticks]
    return [(t, number(t, max(1, math.floor(math.log10(largest)) - last + 1))) for t in ticks]


def round_numbers(low: float, high: float, count: int) -> list[float]:
    """About so many multiples of 1, 2, 2.5 or 5 times a power of 10."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= rough * 0.999), 10 * power)
    first = math.ceil(low / step - 1e-9)
    ticks = [i * step for i in range(first, first + 2 * count + 2)]
    return [t for t in ticks if t <= high + 1e-9 * step]


def _logarithmic(values: list[float], marks: Sequence[float], count: int) -> Scale:
    positive = [math.log10(v) for v in values if v > 0]
    low, high = min(positive, default=-1.0), max(positive, default=0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - PAD * (high - low), high + PAD * (high - low)
    floor = FLOOR if len(positive) < len(values) else 0.0
    bare = Scale(low, high, True, floor)
    ticks = [Tick(bare.at(v), text) for v, text in _labels(low, high, marks, count)]
    if floor:
        ticks.insert(0, Tick(0.0, "0" if min(values) == 0 else "≤ 0"))
    return Scale(low, high, True, floor, tuple(ticks))


def _labels(low: float, high: float, marks: Sequence[float], count: int) -> list[tuple[float, str]]:
    if marks:
        return [(v, number(v)) for v in marks]
    if high - low < 0.7:  # less than from 1 to 5
        return _even([v for v in round_numbers(10.0**low, 10.0**high, count) if v > 0])
    exponents = range(math.ceil(low), math.floor(high) + 1)
    if high - low < 2.5:
        ones = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        return [(v, number(v)) for v in ones if v and low <= math.log10(v) <= high]
    step = -(-len(exponents) // count)
    kept = [e for e in exponents if e % step == 0 and 10.0**e > 0]
    powers = min(kept) < -3 or max(kept) > 5
    return [(10.0**e, f"10{_raised(e)}" if powers else number(10.0**e)) for e in kept]


def _raised(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

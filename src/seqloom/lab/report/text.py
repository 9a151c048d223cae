"""How numbers and facts read, in every format alike."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "-"
# "79.4%", "80.2 +- 0.6", "1.2 [0.9, 1.5]", "3.4x": a number, and what may follow it.
NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?) ?(?:%|x|[µmn]?s|[kMG]i?B|\+-.*|±.*|\[.*|\(.*|\.\..*)?")


def known(value: Any) -> bool:
    """Whether there is a number to show or to draw; one that is not finite is missing."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, digits: int = 4) -> str:
    """So many significant digits, without zeros at the end."""
    if value is None or not known(value):
        return MISSING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    if not 1e-3 <= abs(value) < 1e6:
        return _short(f"{value:.{digits - 1}e}")
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _short(text: str) -> str:
    """1.500e-02 as 1.5e-2."""
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def column(values: Sequence[Any]) -> list[str]:
    """One column of a table: floats of like size share their number of decimals."""
    floats = [abs(v) for v in values if isinstance(v, float) and known(v) and v]
    form = ""
    if floats and max(floats) < 1e6 and not all(v == int(v) for v in floats):
        decimals = min(6, max(0, 3 - math.floor(math.log10(max(floats)))))
        form = f",.{decimals}f"
        if min(floats) < 10.0 ** (1 - decimals):  # the smallest would lose its digits
            form = ".3e" if max(floats) < 1 else ""
    return [_cell(value, form) for value in values]


def _cell(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and known(value) and value and form:
        return re.sub(r"e([-+])0?", r"e\1", f"{value:{form}}").replace("e+", "e")
    return number(value) if value is None or isinstance(value, int | float) else str(value)


def leading(value: Any) -> float | None:
    """The number that a cell is sorted by: itself, or the one its text starts with."""
    if isinstance(value, str):
        found = NUMBER.fullmatch(value.strip())
        return float(found[1].replace(",", "")) if found else None
    return float(value) if known(value) else None


def numeric(values: Sequence[Any]) -> bool:
    """Whether a column is one of numbers: most of what is there is."""
    there = [v for v in values if v is not None and v != ""]
    return sum(leading(v) is not None and not isinstance(v, bool) for v in there) > len(there) / 2


def said(value: Any) -> str:
    """A setting or a fact in one line: a record as `name: value`, a list with commas."""
    if isinstance(value, Mapping) and "name" in value:  # a GPU
        others = {k: v for k, v in value.items() if k != "name"}
        return f"{said(value['name'])} ({said(others).replace('; ', ', ')})" if others else said(value["name"])
    if isinstance(value, Mapping):
        return "; ".join(f"{str(k).replace('_', ' ')}: {said(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        inner = [f"({said(v)})" if isinstance(v, list | tuple) else said(v) for v in value]
        return ", ".join(inner) or "none"
    if value == "":
        return MISSING
    return _cell(value, "")


def slug(title: str, taken: set[str], otherwise: str) -> str:
    """A title as a name for a file or a place on the page, which is then taken."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-") or otherwise
    free, number_ = name, 2
    while free in taken:
        free, number_ = f"{name}-{number_}", number_ + 1
    taken.add(free)
    return free

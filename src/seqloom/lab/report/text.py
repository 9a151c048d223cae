"""Format numbers and facts the same way in every output format."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

MISSING = "-"
# A number with an optional unit and interval: "79.4%", "80.2 +- 0.6", "78.1% +- 1.9", "1.2 [0.9, 1.5]", "3.4x".
NUMBER = re.compile(
    r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?) ?(?:%|x|[µmn]?s|[kMG]i?B)? ?(?:\+-.*|±.*|\[.*|\(.*|\.\..*)?"
)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether the value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def format_number(value: float | None, digits: int = 4) -> str:
    """Format with the given number of significant digits, without trailing zeros."""
    if value is None or not is_number(value):
        return MISSING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    if not 1e-3 <= abs(value) < 1e6:
        return _trim_exponent(f"{value:.{digits - 1}e}")
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _trim_exponent(text: str) -> str:
    """Shorten 1.500e-02 to 1.5e-2."""
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def format_column(values: Sequence[Any]) -> list[str]:
    """Format the cells of a column; floats of similar size get the same number of decimals."""
    floats = [abs(v) for v in values if isinstance(v, float) and is_number(v) and v]
    form = ""
    if floats and max(floats) < 1e6 and not all(v == int(v) for v in floats):
        decimals = min(6, max(0, 3 - math.floor(math.log10(max(floats)))))
        form = f",.{decimals}f"
        if min(floats) < 10.0 ** (1 - decimals):  # the smallest would lose its digits
            form = ".3e" if max(floats) < 1 else ""
    return [_format_cell(value, form) for value in values]


def _format_cell(value: object, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and is_number(value) and value and form:
        return re.sub(r"e([-+])0?", r"e\1", f"{value:{form}}").replace("e+", "e")
    return format_number(value) if value is None or isinstance(value, int | float) else str(value)


def parse_number(value: object) -> float | None:
    """Return the number to sort a cell by: the value, or the number that its text starts with."""
    if isinstance(value, str):
        match = NUMBER.fullmatch(value.strip())
        return float(match[1].replace(",", "")) if match else None
    return float(value) if is_number(value) else None


def is_numeric(values: Sequence[Any]) -> bool:
    """Return whether most non-empty cells of a column are numbers."""
    present = [v for v in values if v is not None and v != ""]
    return sum(parse_number(v) is not None and not isinstance(v, bool) for v in present) > len(present) / 2


def format_fact(value: object) -> str:
    """Format a setting or fact on one line: a record as `name: value`, a list with commas."""
    if isinstance(value, Mapping) and "name" in value:  # a GPU
        others = {k: v for k, v in value.items() if k != "name"}
        name = format_fact(value["name"])
        return f"{name} ({format_fact(others).replace('; ', ', ')})" if others else name
    if isinstance(value, Mapping):
        return "; ".join(f"{str(k).replace('_', ' ')}: {format_fact(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        inner = [f"({format_fact(v)})" if isinstance(v, list | tuple) else format_fact(v) for v in value]
        return ", ".join(inner) or "none"
    if value == "":
        return MISSING
    return _format_cell(value, "")


def make_slug(title: str, taken: set[str], otherwise: str) -> str:
    """Turn a title into a file name or anchor that is not in `taken`, and add it there."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-") or otherwise
    free, number_ = name, 2
    while free in taken:
        free, number_ = f"{name}-{number_}", number_ + 1
    taken.add(free)
    return free

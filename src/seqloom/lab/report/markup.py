"""Build HTML and SVG; every text that is not Markup is escaped."""

from __future__ import annotations

import math
import re
from html import escape

from seqloom.core.errors import UserError

EMPTY = {"line", "path"}  # elements without content


class Markup(str):
    """Text that is already HTML and is not escaped again."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | float | bool | None) -> Markup:
    """Build an element: `data_curve=3` becomes data-curve="3", `class_` class; None and False omit the attribute."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        words.append(plain if value is True else f'{plain}="{escape(_format_attribute(key, value))}"')
    opening = " ".join(words)
    return Markup(f"<{opening}/>" if name in EMPTY else f"<{opening}>{join(*inside)}</{name}>")


def join(*pieces: str) -> Markup:
    """Concatenate pieces, escaping those that are not Markup."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(piece) for piece in pieces))


def _format_attribute(key: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        raise UserError(f"{key} is {value}; a picture needs a finite number")
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def prose(text: str) -> Markup:
    """Render a sentence; text between `backticks` becomes code."""
    parts = re.split(r"`([^`\n]+)`", text)
    return join(*(tag("code", part) if i % 2 else typeset(part) for i, part in enumerate(parts)))


def typeset(text: str) -> str:
    """Replace +- by a plus-minus sign with non-breaking spaces."""
    return text.replace(" +- ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")

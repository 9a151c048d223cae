"""HTML and SVG from Python: everything that is not made here is escaped."""

from __future__ import annotations

import math
import re
from html import escape

from seqloom.core.errors import UserError

EMPTY = {"line", "path"}  # they hold nothing


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | float | bool | None) -> Markup:
    """One element. `data_curve=3` is data-curve="3", `class_` is class; None and False leave an attribute out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        words.append(plain if value is True else f'{plain}="{escape(_text(key, value))}"')
    opened = " ".join(words)
    return Markup(f"<{opened}/>" if name in EMPTY else f"<{opened}>{join(*inside)}</{name}>")


def join(*pieces: str) -> Markup:
    """Pieces one after the other, each escaped unless it is markup."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(piece) for piece in pieces))


def _text(key: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        raise UserError(f"{key} is {value}: a picture has no place for it")
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def prose(text: str) -> Markup:
    """A sentence; what stands between `backticks` is code."""
    parts = re.split(r"`([^`\n]+)`", text)
    return join(*(tag("code", part) if i % 2 else typeset(part) for i, part in enumerate(parts)))


def typeset(text: str) -> str:
    """1.3 +- 0.6 with its sign, and never broken there."""
    return text.replace(" +- ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")

"""Build HTML; every text that is not Markup is escaped."""

from __future__ import annotations

import re
from html import escape


class Markup(str):
    """Text that is already HTML and is not escaped again."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | int | None) -> Markup:
    """Build an element: `aria_label="x"` becomes aria-label="x", `class_` class; None omits the attribute."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"')
    return Markup(f"<{' '.join(words)}>{join(*inside)}</{name}>")


def join(*pieces: str) -> Markup:
    """Concatenate pieces, escaping those that are not Markup."""
    return Markup("".join(piece if isinstance(piece, Markup) else escape(piece) for piece in pieces))


def prose(text: str) -> Markup:
    """Render a sentence; text between `backticks` becomes code."""
    parts = re.split(r"`([^`\n]+)`", text)
    return join(*(tag("code", part) if i % 2 else typeset(part) for i, part in enumerate(parts)))


def typeset(text: str) -> str:
    """Replace +- with a plus-minus sign with non-breaking spaces."""
    return text.replace(" +- ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")

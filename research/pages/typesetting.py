"""Extend Python-Markdown: typeset formulas as MathML, and mark the cells of tables by their length."""

from __future__ import annotations

import re
from typing import Any

import latex2mathml.converter
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor

# Fenced code, inline code, display formulas and inline formulas, in this order.
PIECES = re.compile(
    r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|\$(?P<line>[^\s$][^$\n]*?)\$", re.S | re.M
)
TABLE = re.compile(r"<table>.*?</table>", re.S)
CELL = re.compile(r"<td((?! class)[^>]*)>(.*?)</td>", re.S)
SHORT_CELL = 24  # letters; in a table without long cells such a cell stays on one line
LONG_CELL = 60  # letters; longer cells get a larger minimum width, which matters on phones


class Formulas(Preprocessor):
    """Replace $...$ and $$...$$ by MathML."""

    def run(self, lines: list[str]) -> list[str]:
        return PIECES.sub(typeset, "\n".join(lines)).split("\n")


class Tables(Postprocessor):
    """Give the cells of tables a class; assets/site.css gives them their width."""

    def run(self, text: str) -> str:
        return TABLE.sub(mark_cells, text)


class Typesetting(Extension):
    """Add both to a converter."""

    def extendMarkdown(self, md: Markdown) -> None:  # the name of the library
        md.preprocessors.register(Formulas(md), "formulas", 28)  # after white space, before fenced code
        md.postprocessors.register(Tables(md), "tables", 0)


def makeExtension(**settings: Any) -> Typesetting:  # the name of the library
    return Typesetting(**settings)


def typeset(match: re.Match[str]) -> str:
    """Return code as it is and a formula as MathML."""
    if match["code"]:
        return match["code"]
    if match["block"]:
        return latex2mathml.converter.convert(match["block"], display="block")
    # Markdown would end the paragraph before a line that starts with <math>; <span> belongs to the paragraph.
    return f"<span>{latex2mathml.converter.convert(match['line'], display='inline')}</span>"


def mark_cells(match: re.Match[str]) -> str:
    """Return a table whose cells have a class: `medium` and `long`, and `short` if the table has no long cell."""
    texts = [re.sub(r"<[^>]*>", "", cell[2]) for cell in CELL.finditer(match[0])]
    is_prose = any(len(text) >= LONG_CELL for text in texts)

    def mark(cell: re.Match[str], text: str) -> str:
        length = "long" if len(text) >= LONG_CELL else "medium" if len(text) > SHORT_CELL else "short"
        if "<math" in cell[2] or (is_prose and length == "short"):
            return cell[0]
        return f'<td class="{length}"{cell[1]}>{cell[2]}</td>'

    remaining = iter(texts)
    return CELL.sub(lambda cell: mark(cell, next(remaining)), match[0])

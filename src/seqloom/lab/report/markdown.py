"""A page as Markdown: the same words and tables; a picture is a table of its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seqloom.lab.report import tables, values
from seqloom.lab.report.page import Block, Chart, Dots, Grid, Page, Table, Words
from seqloom.lab.report.text import column, numeric, said

WIDEST = 24  # columns that still read as a table


def markdown(page: Page) -> str:
    parts = [f"# {line(page.title)}", prose(page.verdict), *(_block(block) for block in page.blocks)]
    return "\n\n".join([*parts, "## How this was made", *made(page.facts)]) + "\n"


def _block(block: Block) -> str:
    words = [prose(text) for text in block.paragraphs] if isinstance(block, Words) else _shown(block)
    return "\n\n".join([f"## {line(block.title or 'Untitled')}", *words])


def _shown(block: Table | Chart | Dots | Grid) -> list[str]:
    if isinstance(block, Grid) and len(block.columns) > tables.NUMBERED:
        return [f"{len(block.rows)} rows and {len(block.columns)} columns: see report.html."]
    return [text for text in (table(_numbers(block)), prose(block.note)) if text]


def _numbers(block: Table | Chart | Dots | Grid) -> Table:
    if isinstance(block, Table):
        return block
    if isinstance(block, Chart):
        return values.of_chart(block)
    return values.of_dots(block) if isinstance(block, Dots) else values.of_grid(block)


def table(table: Table) -> str:
    """As a Markdown table, numbers to the right."""
    heads = tables.headings(table)
    if not table.rows:
        return "Nothing to show: the table is empty."
    if len(heads) > WIDEST:
        return f"{len(table.rows)} rows and {len(heads)} columns: see report.html."
    columns = [[row.get(heading) for row in table.rows] for heading in heads]
    marks = ["--:" if k and numeric(column_) else "---" for k, column_ in enumerate(columns)]
    lines = [[line(heading) for heading in heads], marks]
    lines += [list(map(line, cells)) for cells in zip(*map(column, columns), strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prose(text: str) -> str:
    """Text whose lines stay lines."""
    return "\\\n".join(line(part) for part in text.splitlines())


def line(text: str) -> str:
    """Text in which nothing but `code` means anything to Markdown, in one line."""
    parts = re.split(r"(`[^`\n]+`)", " ".join(text.split()))
    quoted = [part.replace("|", "\\|") if i % 2 else _escaped(part) for i, part in enumerate(parts)]
    return "".join(quoted)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\`*\[\]<>|~]|\b_|_\b|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"^(\d*)([#.](?=[# ])|[-+](?= ))", r"\1\\\2", text)


def made(facts: Mapping[str, Any]) -> list[str]:
    """The command in a block of its own, then a list of the facts."""
    parts = []
    if facts.get("command"):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", str(facts["command"]))), default=0))
        parts.append(f"{fence}sh\n{facts['command']}\n{fence}")
    others = {k: v for k, v in facts.items() if k != "command" and v not in (None, "", {}, [])}
    if others:
        parts.append("\n".join(f"- {line(str(k).replace('_', ' '))}: {line(said(v))}" for k, v in others.items()))
    return parts

"""A page as Markdown, with a table of numbers in place of each picture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from seqloom.core.plurals import count
from seqloom.lab.report import values
from seqloom.lab.report.page import Gallery, Grid, Page, PageBlock, Table, Words
from seqloom.lab.report.text import format_column, format_fact, is_numeric

MAX_COLUMNS = 24  # wider tables are not readable as Markdown
MAX_GRID_COLUMNS = 14  # nor are wider matrices


def render_markdown(page: Page) -> str:
    """Return the page as a Markdown document."""
    parts = [
        f"# {escape_line(page.title)}",
        escape_prose(page.verdict),
        *(_render_block(block) for block in page.blocks),
    ]
    return "\n\n".join([*parts, "## How this was made", *format_facts(page.facts)]) + "\n"


def _render_block(block: PageBlock) -> str:
    words = [escape_prose(text) for text in block.paragraphs] if isinstance(block, Words) else _render_content(block)
    return "\n\n".join([f"## {escape_line(block.title or 'Untitled')}", *words])


def _render_content(block: values.Tabular | Gallery) -> list[str]:
    if isinstance(block, Gallery):
        titles = [f"- {escape_line(picture.title)}" for picture in block.pictures]
        return [text for text in ("Drawn in report.html:", "\n".join(titles), escape_prose(block.note)) if text]
    if isinstance(block, Grid) and len(block.columns) > MAX_GRID_COLUMNS:
        return [f"{count(len(block.rows), 'row')} and {count(len(block.columns), 'column')}: see report.html."]
    return [text for text in (format_table(values.tabulate(block)), escape_prose(block.note)) if text]


def format_table(table: Table) -> str:
    """Return a Markdown table with numbers right-aligned."""
    heads = values.list_headings(table)
    if not table.rows:
        return "The table is empty."
    if len(heads) > MAX_COLUMNS:
        return f"{count(len(table.rows), 'row')} and {count(len(heads), 'column')}: see report.html."
    columns = [[row.get(heading) for row in table.rows] for heading in heads]
    marks = ["--:" if k and is_numeric(column_) else "---" for k, column_ in enumerate(columns)]
    lines = [[escape_line(heading) for heading in heads], marks]
    lines += [list(map(escape_line, cells)) for cells in zip(*map(format_column, columns), strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escape_prose(text: str) -> str:
    """Escape text for Markdown and keep its line breaks."""
    return "\\\n".join(escape_line(part) for part in text.splitlines())


def escape_line(text: str) -> str:
    """Escape text for Markdown on one line; only `code` keeps its meaning."""
    parts = re.split(r"(`[^`\n]+`)", " ".join(text.split()))
    quoted = [part.replace("|", "\\|") if i % 2 else _escape(part) for i, part in enumerate(parts)]
    return "".join(quoted)


def _escape(text: str) -> str:
    text = re.sub(r"([\\`*\[\]<>|~]|\b_|_\b|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"^(\d*)([#.](?=[# ])|[-+](?= ))", r"\1\\\2", text)


def format_facts(facts: Mapping[str, Any]) -> list[str]:
    """Return the command as a code block, then the other facts as a list."""
    parts = []
    if facts.get("command"):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", str(facts["command"]))), default=0))
        parts.append(f"{fence}sh\n{facts['command']}\n{fence}")
    others = {k: v for k, v in facts.items() if k != "command" and v not in (None, "", {}, [])}
    if others:
        names = {k: str(k).replace("_", " ") for k in others}
        parts.append("\n".join(f"- {escape_line(names[k])}: {escape_line(format_fact(v))}" for k, v in others.items()))
    return parts

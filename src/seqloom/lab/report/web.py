"""A page as one self-contained HTML file: no other files, no network.

The page holds its content twice: as data for its script (built from `frontend/` into `static/`), which draws it, and as
plain tables, which are what a reader without JavaScript sees.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, cast

from seqloom.lab.report.page import Chart, Dots, Gallery, Grid, Page, PageBlock, Table, Words
from seqloom.lab.report.stored import NAMES, to_plain, to_record
from seqloom.lab.report.text import format_column, format_fact, is_numeric, make_slug, parse_number
from seqloom.lab.report.values import list_headings, tabulate

FACTS_ID = "how-this-was-made"


def render_html(page: Page) -> str:
    """Return the page as an HTML document with inline style, script, data and tables."""
    payload = build_payload(page)
    style, script = (
        files(__package__).joinpath("static", f"report.{kind}").read_text("utf-8") for kind in ("css", "js")
    )
    # "<" would end the script element; in JSON it stands only inside texts
    data = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        title=join(page.title),
        content=_render_content(page, payload),
        style=style,
        data=data,
        script=script,
        # The content security policy allows this script only, and no loading from elsewhere.
        allowed=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _render_content(page: Page, payload: Mapping[str, Any]) -> Markup:
    """Return what a reader without JavaScript sees: the verdict, and the numbers of every block as a table."""
    parts = [tag("h1", page.title)]
    if payload["when"]:
        parts.append(tag("p", payload["when"], class_="when"))
    parts.append(tag("p", prose(page.verdict), class_="verdict"))
    for block, record in zip(page.blocks, payload["blocks"], strict=True):
        head = tag("h2", block.title or "Untitled")
        parts.append(tag("section", head, _render_block(block), class_="card", id=record["id"]))
    parts.append(_render_facts(payload))
    return tag("main", *parts)


def _render_block(block: PageBlock) -> Markup:
    if isinstance(block, Words):
        return tag("div", *(tag("p", prose(text)) for text in block.paragraphs), class_="words")
    if isinstance(block, Gallery):
        table = Table(block.title, [{"drawn with JavaScript": picture.title} for picture in block.pictures])
    else:
        table = tabulate(block)
    notes = [table.note, block.note] if table is not block else [block.note]
    note = " ".join(text for text in notes if text)
    return join(_render_table(table), tag("p", prose(note), class_="note") if note else Markup())


def _render_table(table: Table) -> Markup:
    if not table.rows:
        return tag("p", "There is nothing to show.", class_="hint")
    columns = build_columns(table)
    kinds = ["n" if column["keys"] is not None else None for column in columns]
    top = [tag("th", column["name"], scope="col", class_=kind) for column, kind in zip(columns, kinds, strict=True)]
    rows = []
    for texts in zip(*(column["texts"] for column in columns), strict=True):
        first, *others = (typeset(text) for text in texts)
        cells = [tag("td", text, class_=kind) for text, kind in zip(others, kinds[1:], strict=True)]
        rows.append(tag("tr", tag("th", first, scope="row", class_=kinds[0]), *cells))
    inside = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *rows))
    return tag("div", inside, class_="scroll", role="region", tabindex=0, aria_label=f"Table: {table.title}")


def _render_facts(payload: Mapping[str, Any]) -> Markup:
    """Return the command to reproduce the report, then all other facts."""
    parts = [tag("h2", "How this was made")]
    if payload["command"]:
        parts.append(tag("div", tag("pre", tag("code", payload["command"]), tabindex=0), class_="run"))
    for name, pairs in payload["facts"]:
        rows = [tag("div", tag("dt", key or name), tag("dd", prose(text))) for key, text in pairs]
        parts.append(tag("div", tag("h3", name), tag("dl", *rows), class_="fact"))
    return tag("section", *parts, class_="card", id=FACTS_ID)


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


def build_payload(page: Page) -> dict[str, Any]:
    """Return the page as JSON types. Everything with an order is a list, because a script would sort keys like "10"."""
    taken = {FACTS_ID, "verdict", "report", "page", "scheme"}
    blocks = [_build_block(block) | {"id": make_slug(block.title, taken, "part")} for block in page.blocks]
    facts = {name: fact for name, fact in page.facts.items() if name != "command" and fact not in (None, "", {}, [])}
    record = {
        "title": page.title,
        "verdict": page.verdict,
        "when": _describe_origin(page.facts),
        "blocks": blocks,
        "command": str(page.facts.get("command") or ""),
        "facts": [[name.replace("_", " ").capitalize(), _list_fact(fact)] for name, fact in facts.items()],
    }
    return cast(dict[str, Any], to_plain(record, "page"))


def _build_block(block: PageBlock) -> dict[str, Any]:
    about = {"kind": NAMES[type(block)], "title": block.title, "note": "" if isinstance(block, Words) else block.note}
    match block:
        case Table():
            return about | {"columns": build_columns(block)}
        case Dots():
            groups = [
                {"name": name, "values": values, "interval": block.intervals.get(name)}
                for name, values in block.groups.items()
            ]
            lines = [[name, value] for name, value in block.lines.items()]
            plain = {"y_label": block.y_label, "log_y": block.log_y, "by_seed": block.by_seed}
            return about | plain | {"groups": groups, "lines": lines}
        case Chart() | Grid() | Gallery() | Words():
            return to_record(block) | about


def build_columns(table: Table) -> list[dict[str, Any]]:
    """Return the columns of a table: texts, numbers to sort by, and values with every digit if they are not texts."""
    columns = []
    for place, name in enumerate(list_headings(table)):
        values = [row.get(name) for row in table.rows]
        has_text = any(isinstance(value, str) for value in values)
        is_number = is_numeric(values) and not (place == 0 and has_text)  # the first column names the rows
        column: dict[str, Any] = {"name": name, "texts": format_column(values)}
        column["keys"] = [parse_number(value) for value in values] if is_number else None
        columns.append(column if all(isinstance(value, str) for value in values) else column | {"values": values})
    return columns


def _describe_origin(facts: Mapping[str, Any]) -> str:
    """Return the line under the title: date and machine."""
    machine = facts.get("hardware")
    if isinstance(machine, Mapping):
        gpus = [gpu["name"] if isinstance(gpu, Mapping) else str(gpu) for gpu in machine.get("gpus") or []]
        machine = ", ".join(gpus) or machine.get("cpu")
    return " · ".join(str(fact) for fact in (str(facts.get("date") or "")[:10], machine) if fact)


def _list_fact(fact: object) -> list[list[str]]:
    records = fact if isinstance(fact, Mapping) else {"": fact}
    return [[str(name).replace("_", " "), format_fact(value)] for name, value in records.items()]

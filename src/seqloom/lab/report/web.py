"""A page as one self-contained HTML file: no other files, no network.

The page holds its content twice: as data for its script (built from `frontend/` into `static/`), which draws it, and as
plain tables, which are what a reader without JavaScript sees.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from seqloom.lab.report.markup import Markup, join, prose, tag, typeset
from seqloom.lab.report.page import Gallery, Page, PageBlock, Table, Words
from seqloom.lab.report.payload import FACTS_ID, build_columns, build_payload
from seqloom.lab.report.values import tabulate


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

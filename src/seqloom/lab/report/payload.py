"""The data for a page's script to draw, and for its tables without a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from seqloom.lab.report.page import Chart, Dots, Gallery, Grid, Page, PageBlock, Table, Words
from seqloom.lab.report.stored import NAMES, to_plain, to_record
from seqloom.lab.report.text import format_column, format_fact, is_numeric, make_slug, parse_number
from seqloom.lab.report.values import list_headings

FACTS_ID = "how-this-was-made"


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

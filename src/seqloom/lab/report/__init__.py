"""Reports: a finished study as one self-contained HTML page, and as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from seqloom.lab.files.scratch import write_text
from seqloom.lab.report.markdown import render_markdown
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.stored import page_from_json, page_to_json, to_plain
from seqloom.lab.report.text import make_slug
from seqloom.lab.report.values import format_csv
from seqloom.lab.report.web import render_html

__all__ = ["page_from_json", "store_document", "write_report"]


def write_report(page: Page, folder: Path, document: Mapping[str, Any]) -> list[Path]:
    """Write report.html, report.md, study.json and one CSV per table; each file is written atomically.

    Args:
        page: What to show.
        folder: Created if missing.
        document: The measurements. study.json is this document plus the page under the key "page".

    Returns:
        The paths of the files. NaN and infinity appear in none of them: such a number counts as missing.
    """
    stored = _combine(page, document)
    page = page_from_json(stored)  # every file shows exactly what study.json stores
    taken: set[str] = set()
    texts = {"report.html": render_html(page), "report.md": render_markdown(page)}
    for block in page.blocks:
        if isinstance(block, Table):
            texts[f"{make_slug(block.title, taken, 'table')}.csv"] = format_csv(block)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [*(folder / name for name in texts), store_document(page, folder, document)]


def store_document(page: Page, folder: Path, document: Mapping[str, Any]) -> Path:
    """Write study.json alone, as `write_report` does."""
    fields = ",\n".join(f"{_dump(name)}:{_dump_lines(value)}" for name, value in _combine(page, document).items())
    write_text(folder / "study.json", f"{{\n{fields}\n}}\n")
    return folder / "study.json"


def _combine(page: Page, document: Mapping[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], to_plain(document)) | {"page": page_to_json(page)}


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _dump_lines(value: object) -> str:
    """Return JSON with one line per row of a list, so that changing a row changes one line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(_dump, value)) + "\n]"
    return _dump(value)

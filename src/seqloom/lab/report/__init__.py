"""A finished study as one self-contained page, and the same as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.lab.files.scratch import write_atomically
from seqloom.lab.report.markdown import markdown
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.sheets import sheet
from seqloom.lab.report.stored import page_as_json, page_from, plain
from seqloom.lab.report.text import slug
from seqloom.lab.report.web import html

__all__ = ["page_from", "write"]


def write(page: Page, folder: Path, document: Mapping[str, Any]) -> list[Path]:
    """report.html, report.md, a CSV for every table, study.json; each is there as a whole or not at all.

    study.json is the document with the page in it, as `page_from` reads it. A number that is not
    finite is missing in all of them.
    """
    stored = plain(document) | {"page": page_as_json(page)}
    page = page_from(stored)  # so that every file shows what is stored
    taken: set[str] = set()
    texts = {"report.html": html(page), "report.md": markdown(page)}
    for block in page.blocks:
        if isinstance(block, Table):
            texts[f"{slug(block.title, taken, 'table')}.csv"] = sheet(block)
    texts["study.json"] = json.dumps(stored, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with write_atomically(folder / name) as work:
            work.write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in texts]

"""Combine all stored studies into one Markdown document, from their study.json files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.report.markdown import escape_line, escape_prose, format_facts, format_table
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.stored import page_from_json
from seqloom.lab.report.text import make_slug

FILE = "study.json"
NOTE = "note.md"  # optional, written by hand: what later measurements say about a stored study
FACTS = ("command", "date", "data", "hardware")  # shown here; the others are only in study.json


def build_results(folder: Path) -> str:
    """Return the verdict, tables and command of every FOLDER/*/study.json as Markdown, after its note.md if any."""
    documents = read_documents(folder)
    taken: set[str] = set()
    pages = [page_from_json(document) for document in documents.values()]
    titles = [escape_line(_format_title(page)) for page in pages]
    places = [make_slug(_format_title(page), taken, "study") for page in pages]
    parts = [
        "# Results",
        f"The results of {count(len(pages), 'stored study', 'stored studies')}. `seqloom results` generates "
        f"this page from their {FILE} files; "
        "do not edit it by hand.",
        "\n".join(f"- [{title}](#{place})" for title, place in zip(titles, places, strict=True)),
    ]
    for page, place, (name, document) in zip(pages, places, documents.items(), strict=True):
        parts += _render_study(page, place, document, folder / name / NOTE)
    return "\n\n".join(parts) + "\n"


def _format_title(page: Page) -> str:
    """Return the title with the protocol, because a study may be stored once per protocol."""
    protocol = page.facts.get("protocol")
    return f"{page.title} (protocol: {protocol})" if protocol else page.title


def read_documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the documents of all subfolders by folder name, in alphabetical order."""
    files = sorted(folder.glob(f"*/{FILE}"))
    if not files:
        raise UserError(
            f"{folder} contains no stored study ({folder / '*' / FILE}); create one with `seqloom study NAME --out`"
        )
    documents = {}
    for file in files:
        try:
            documents[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))
            page_from_json(documents[file.parent.name])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} is not the document of a study: {error}") from error
    return documents


def _render_study(page: Page, place: str, document: dict[str, Any], note: Path) -> list[str]:
    parts = [f'<a id="{place}"></a>\n\n## {escape_line(_format_title(page))}']
    if document.get("finished") is False:
        parts.append("This study was interrupted; the results are incomplete.")
    if note.exists():
        parts.append(note.read_text(encoding="utf-8").strip())
    parts.append(f"**{escape_line(page.verdict)}**")
    for block in page.blocks:
        if isinstance(block, Table):
            parts += [
                part
                for part in (f"### {escape_line(block.title)}", format_table(block), escape_prose(block.note))
                if part
            ]
    return [*parts, "### Reproduce", *format_facts({name: page.facts[name] for name in FACTS if name in page.facts})]

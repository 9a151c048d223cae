"""All stored studies as one Markdown document: made from their study.json, never by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.report.markdown import line, made, prose, table
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.stored import page_from
from seqloom.lab.report.text import slug

FILE = "study.json"
SHOWN = ("command", "date", "data", "hardware")  # of the facts; the rest is in study.json


def results(folder: Path) -> str:
    """What FOLDER/*/study.json say: for each study its verdict, its tables, and how to run it again."""
    documents = stored(folder)
    taken: set[str] = set()
    pages = [page_from(document) for document in documents.values()]
    titles = [line(_title(page)) for page in pages]
    places = [slug(_title(page), taken, "study") for page in pages]
    parts = [
        "# Results",
        f"What {len(pages)} stored studies found. This page is made by `seqloom results` from their {FILE}; "
        "change those, not this.",
        "\n".join(f"- [{title}](#{place})" for title, place in zip(titles, places, strict=True)),
    ]
    for page, place, document in zip(pages, places, documents.values(), strict=True):
        parts += _study(page, place, document)
    return "\n\n".join(parts) + "\n"


def _title(page: Page) -> str:
    """With its protocol, for a study may be stored under each."""
    protocol = page.facts.get("protocol")
    return f"{page.title} (protocol: {protocol})" if protocol else page.title


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The documents below this folder by the name of theirs, in alphabetical order."""
    found = sorted(folder.glob(f"*/{FILE}"))
    if not found:
        raise UserError(f"{folder} holds no stored study ({folder / '*' / FILE}); `seqloom study NAME --out` makes one")
    documents = {}
    for file in found:
        try:
            documents[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))
            page_from(documents[file.parent.name])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file} is not a study's document: {error}") from error
    return documents


def _study(page: Page, place: str, document: dict[str, Any]) -> list[str]:
    parts = [f'<a id="{place}"></a>\n\n## {line(_title(page))}']
    if document.get("finished") is False:
        parts.append("Interrupted before its end: this is what was finished.")
    parts.append(f"**{line(page.verdict)}**")
    for block in page.blocks:
        if isinstance(block, Table):
            parts += [part for part in (f"### {line(block.title)}", table(block), prose(block.note)) if part]
    return [*parts, "### Run it again", *made({name: page.facts[name] for name in SHOWN if name in page.facts})]

"""Prepare pages for the site: show files of the repository's root, typeset formulas, and fix links between both."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files outside docs/ that the site shows, with their page.
SHOWN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/LOG.md": "results/log.md",
    "benchmarks/results/2026-11-15/complexity.svg": "images/complexity.svg",
}
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
# Fenced code, inline code, display formulas and inline formulas, in this order.
PIECES = re.compile(
    r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|\$(?P<line>[^\s$][^$\n]*?)\$", re.S | re.M
)
TABLE = re.compile(r"<table>.*?</table>", re.S)
CELL = re.compile(r"<td((?! class)[^>]*)>(.*?)</td>", re.S)
SHORT_CELL = 24  # letters; in a table without long cells such a cell stays on one line
LONG_CELL = 60  # letters; longer cells get a larger minimum width, which matters on phones


def on_files(files: Files, config: Any) -> Files:
    """Add the files of SHOWN and the help of the command line to the site."""
    for source, page in SHOWN.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "reference/cli.md", content=describe_commands()))
    return files


def describe_commands() -> str:
    """Return the help of every command as Markdown."""
    from seqloom.cli.main import app

    text = app.generate_docs(output_format="markdown", heading_level=1)
    text = re.sub(r"## Table of Contents\n.*?(?=\*\*Commands\*\*)", "", text, flags=re.S)  # the site has its own
    return re.sub(r"^# .*$", "# Command line", text, count=1, flags=re.M)


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Typeset formulas as MathML, and point links at pages of the site."""
    uri = page.file.src_uri
    markdown = re.sub(r"^( *```\w+) (?:no-)?run$", r"\1", markdown, flags=re.M)  # words for the tests
    source = next((s for s, shown in SHOWN.items() if shown == uri), f"docs/{uri}")
    return PIECES.sub(typeset, LINK.sub(lambda match: link(match, source, uri), markdown))


def typeset(match: re.Match[str]) -> str:
    """Return code as it is and a formula as MathML."""
    if match["code"]:
        return match["code"]
    if match["block"]:
        return latex2mathml.converter.convert(match["block"], display="block")
    # Markdown would end the paragraph before a line that starts with <math>; <span> belongs to the paragraph.
    return f"<span>{latex2mathml.converter.convert(match['line'], display='inline')}</span>"


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Mark the cells of tables by their length; assets/site.css gives them their width."""
    return TABLE.sub(mark_cells, html)


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


def link(match: re.Match[str], source: str, uri: str) -> str:
    """Return a link from one file of the repository to another as a link between pages; other files become text."""
    target, anchor = match[1], match[2] or ""
    if re.match(r"[a-z]+:", target):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path == "README.md":
        path = "docs/index.md"
    if path in SHOWN:
        path = f"docs/{SHOWN[path]}"
    if not path.startswith("docs/"):
        return "]" if (ROOT / path).exists() else match[0]  # mkdocs reports a file that is missing
    if path == "docs/decisions":
        path = "docs/decisions/0001-dependencies.md"
    return f"]({posixpath.relpath(path[5:], posixpath.dirname(uri) or '.')}{anchor})"

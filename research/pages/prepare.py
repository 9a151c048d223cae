"""Write the pages of the site, as plain Markdown for any builder, to build/pages: python -m research prepare.

Copies the pages and images of docs/, adds files of the repository's root, the help of the command line and a notebook
for each tutorial, points links at pages of the site, and leaves results and decisions out of the search.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path

from research.pages.notebooks import make_notebook

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
# Files outside docs/ that the site shows, with their page.
SHOWN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "research/LOG.md": "results/log.md",
    "research/results/2026-11-15/complexity.svg": "images/complexity.svg",
}
# What a builder may publish; a script or a data file is not.
PUBLISHED = (".md", ".css", ".html", ".png", ".svg")
# Records of the project: read by those who check it, not by those who look up how to use it.
RECORDS = ("results/", "decisions/", "changelog.md", "releasing.md")
# Code, in which nothing is a link; or a link: its text, which may hold an image, its file and its anchor.
LINK = re.compile(
    r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)|\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)", re.S | re.M
)
TITLE = re.compile(r"^# .*\n", re.M)


def main() -> None:
    if PAGES.exists():
        shutil.rmtree(PAGES)
    for name, content in make_pages().items():
        file = PAGES / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def make_pages() -> dict[str, bytes]:
    """Return every file of the site by its path: pages, images, style sheets and notebooks."""
    sources = {file.relative_to(DOCS).as_posix(): file for file in sorted(DOCS.rglob("*")) if file.suffix in PUBLISHED}
    sources |= {page: ROOT / source for source, page in SHOWN.items()}
    files = {name: file.read_bytes() for name, file in sources.items()}
    files["reference/cli.md"] = describe_commands().encode()
    for name in [name for name in files if name.startswith("tutorials/") and b"```python" in files[name]]:
        text = files[name].decode()
        notebook = f"{posixpath.splitext(posixpath.basename(name))[0]}.ipynb"
        files[f"tutorials/{notebook}"] = (json.dumps(make_notebook(text, DOCS / "tutorials"), indent=1) + "\n").encode()
        files[name] = add_download(text, notebook).encode()
    return {
        name: finish(content.decode(), name).encode() if name.endswith(".md") else content
        for name, content in files.items()
    }


def describe_commands() -> str:
    """Return the help of every command as Markdown."""
    from seqloom.cli.main import app

    text = app.generate_docs(output_format="markdown", heading_level=1)
    text = re.sub(r"## Table of Contents\n.*?(?=\*\*Commands\*\*)", "", text, flags=re.S)  # the site has its own
    return re.sub(r"^# .*$", "# Command line", text, count=1, flags=re.M)


def add_download(text: str, notebook: str) -> str:
    """Put a link to a tutorial's notebook below its title."""
    return TITLE.sub(
        lambda match: f'{match[0]}\n[Download as a notebook]({notebook}){{ download="" }}\n', text, count=1
    )


def finish(text: str, page: str) -> str:
    """Return a page with links to pages of the site, without the words for the tests, and with its front matter."""
    text = re.sub(r"^( *```\w+) (?:no-run|run)\b", r"\1", text, flags=re.M)
    text = re.sub(r"^( *```python) needs=\S+", r"\1", text, flags=re.M)
    source = next((source for source, shown in SHOWN.items() if shown == page), f"docs/{page}")
    text = LINK.sub(lambda match: point(match, source, page), text)
    front = "---\nsearch:\n  exclude: true\n---\n\n" if page.startswith(RECORDS) else ""
    return front + text


def point(match: re.Match[str], source: str, page: str) -> str:
    """Return a link from one file of the repository to another as a link between pages; other files become text."""
    if match["code"]:
        return match[0]
    text, target, anchor = LINK.sub(lambda inner: point(inner, source, page), match[2]), match[3], match[4] or ""
    if re.match(r"[a-z]+:", target) or target.endswith(".ipynb"):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path == "README.md":
        path = "docs/index.md"
    if path in SHOWN:
        path = f"docs/{SHOWN[path]}"
    if not path.startswith("docs/") or path.endswith(".py"):
        return text if (ROOT / path).exists() else match[0]  # a link to a file that is missing is reported
    if path == "docs/decisions":
        path = "docs/decisions/0001-dependencies.md"
    return f"[{text}]({posixpath.relpath(path[5:], posixpath.dirname(page) or '.')}{anchor})"

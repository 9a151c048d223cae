"""Read the fenced blocks of a page, and make a Jupyter notebook of a tutorial."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!https?:)[^)\s]+\)")  # a notebook is read without the site
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
GENERATED = re.compile(r"<!-- .*? -->\n?")
MIME = {".png": "image/png", ".svg": "image/svg+xml"}
BACKEND = re.compile(r"^import matplotlib\n\nmatplotlib\.use\(.*\n", re.M)  # a notebook has its own
INTRODUCTION = """*This notebook is a page of seqloom's documentation. It needs seqloom with the extra `lab`: run
`pip install '.[lab]'` in a checkout.*
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its fences are on the lines `line` and `end`."""

    line: int
    end: int
    info: str
    text: str
    follows: bool  # nothing but blank lines since the block before

    @property
    def runs(self) -> bool:
        words = self.info.split()
        return (words[:1] == ["python"] and "no-run" not in words) or words == ["sh", "run"]

    @property
    def needs(self) -> list[str]:
        """The packages that it needs beside the extras of the tests."""
        named = re.search(r"needs=(\S+)", self.info)
        return named[1].split(",") if named else []

    @property
    def is_output(self) -> bool:
        """Whether it shows what the block above prints."""
        return self.follows and self.info in ("", "text", "console")

    @property
    def cell(self) -> str:
        """The source of the notebook cell that does the same."""
        file = re.search(r'title="([^"]+)"', self.info)
        if file:
            return f"%%writefile {file[1]}\n{self.text}"
        if self.info == "sh run":
            return "\n".join(f"!{line}" for line in self.text.split("\n"))
        return BACKEND.sub("", self.text)


def find_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order.

    Raises:
        ValueError: If a block has no end.
    """
    found: list[Block] = []
    fence, indent, start, info, body, alone = "", "", 0, "", [""], True
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"(\s*)(`{3,})\s*([^`]*)$", line)
        if not fence and mark:
            indent, fence, start, info, body = mark[1], mark[2], number, mark[3].strip(), []
        elif fence and mark and not mark[3] and len(mark[2]) >= len(fence):
            found.append(Block(start, number, info, "\n".join(body), alone))
            fence, alone = "", True
        elif fence:
            body.append(line.removeprefix(indent))
        elif line.strip():
            alone = False
    if fence:
        raise ValueError(f"line {start}: this block has no end")
    return found


def make_notebook(text: str, folder: Path) -> dict[str, Any]:
    """Return a page as a notebook: each block that runs is a cell of code, with the output and picture that follow.

    Args:
        text: The page.
        folder: Where its links start.
    """
    lines, cells, done = text.splitlines(keepends=True), [make_text(INTRODUCTION, folder)], 0
    blocks = find_blocks(text)
    for block, after in zip(blocks, [*blocks, None][1:], strict=True):
        if not block.runs:
            continue
        cells.append(make_text("".join(lines[done : block.line - 1]), folder))
        done, outputs = block.end, []
        if after and after.is_output:
            done = after.end
            outputs.append({"name": "stdout", "output_type": "stream", "text": split_lines(f"{after.text}\n")})
        picture = re.match(r"\s*!\[([^\]]*)\]\(([^)\s]+)\)\n", "".join(lines[done:]))
        if picture and "savefig" in block.text:
            done += picture[0].count("\n")
            data = {Path(picture[2]).suffix: read_picture(folder / picture[2])}
            shown = {MIME[suffix]: content for suffix, content in data.items()}
            outputs.append({"data": shown, "metadata": {}, "output_type": "display_data"})
        code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": outputs}
        cells.append(code | {"source": split_lines(block.cell)})
    cells.append(make_text("".join(lines[done:]), folder))
    cells = [cell | {"id": f"cell-{i}"} for i, cell in enumerate(cell for cell in cells if cell["source"])]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def make_text(text: str, folder: Path) -> dict[str, Any]:
    """Return a Markdown cell; pictures are attached, links to other pages become text."""
    attachments: dict[str, dict[str, str]] = {}

    def attach(match: re.Match[str]) -> str:
        file = folder / match[2]
        attachments[file.name] = {MIME[file.suffix]: base64.b64encode(file.read_bytes()).decode()}
        return f"![{match[1]}](attachment:{file.name})"

    text = re.sub(r"^( *```\w+) no-run\b", r"\1", GENERATED.sub("", text), flags=re.M)
    text = SOURCE_LINK.sub(r"\1", IMAGE.sub(attach, text)).strip()
    cell = {"cell_type": "markdown", "metadata": {}, "source": split_lines(text)}
    return cell | ({"attachments": attachments} if attachments else {})


def read_picture(file: Path) -> str | list[str]:
    """Return a picture as an output of a cell holds it."""
    if file.suffix == ".svg":
        return split_lines(file.read_text(encoding="utf-8"))
    return base64.b64encode(file.read_bytes()).decode()


def split_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def list_code(notebook: dict[str, Any]) -> list[str]:
    """Return the source of each cell of code."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def translate_magic(source: str) -> str:
    """Return the Python that a cell stands for: `%%writefile` and `!seqloom` as calls, all else as it is."""
    if source.startswith("%%writefile "):
        head, text = source.split("\n", 1)
        return f"__import__('pathlib').Path({json.dumps(head.split()[1])}).write_text({text!r})"
    if source.startswith("!"):
        commands = "\n".join(line.removeprefix("!") for line in source.split("\n"))
        return f"__shell__({commands!r})"
    return source

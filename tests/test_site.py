"""The documentation site is whole: navigation, links, anchors, images and notebooks. `make docs` builds it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import posixpath
import re
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import seqloom
from research.pages.arguments import complete_arguments, read_arguments
from research.pages.notebooks import find_blocks, list_code, make_notebook, translate_magic
from research.pages.prepare import PUBLISHED, SHOWN, finish, make_pages

ROOT = Path(__file__).resolve().parents[1]

LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
ENTRY = re.compile(r"^::: (\S+)$", re.M)
TUTORIALS = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if "```python" in page.read_text())
USE_WITH = sorted((ROOT / "docs" / "use-with").glob("*.md"))


@pytest.fixture(scope="module")
def site() -> dict[str, bytes]:
    """Return the files that a builder reads, by path."""
    return make_pages()


def test_the_navigation_lists_every_page_once(site: dict[str, bytes]) -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert ROOT / settings["docs_dir"] == ROOT / "build" / "pages"
    assert sorted(list_pages(settings["nav"])) == sorted(name for name in site if name.endswith(".md"))


def test_every_link_anchor_and_image_of_the_site_leads_somewhere(site: dict[str, bytes]) -> None:
    assert find_dead_links(site) == []


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("# A\n\n[b](b.md) [b](b.md#two-words) [top](#a) [out](https://example.org) `[no](link.md)`", []),
        ("[b](c.md)", ["a.md: c.md"]),
        ("[b](b.md#three)", ["a.md: b.md#three"]),
        ("[b](#b)", ["a.md: #b"]),
        ("![b](b.svg)", ["a.md: b.svg"]),
    ],
)
def test_a_dead_link_is_found(text: str, dead: list[str]) -> None:
    assert find_dead_links({"a.md": text.encode(), "b.md": b"# B\n\n## Two words\n"}) == dead


def test_only_pages_pictures_and_notebooks_are_published(site: dict[str, bytes]) -> None:
    assert {Path(name).suffix for name in site} <= {*PUBLISHED, ".ipynb"}
    assert not any(suffix in PUBLISHED for suffix in (".py", ".json", ".toml"))


def test_results_and_decisions_are_not_searched_and_tutorials_are(site: dict[str, bytes]) -> None:
    hidden = {name.split("/")[0] for name in site if site[name].startswith(b"---\nsearch:\n  exclude: true\n---\n")}
    assert hidden == {"results", "decisions", "changelog.md", "releasing.md"}
    assert SHOWN["research/LOG.md"].startswith("results/")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("lightning", "lightning"),
        ("fsdp", "distributed"),
        ("jupyter", "jupyter"),
        ("wandb", "trackers"),
        ("early stopping", "early-stopping"),
    ],
)
def test_a_heading_of_a_searched_page_has_the_words_that_users_search_for(
    words: str, page: str, site: dict[str, bytes]
) -> None:
    headings = re.findall(r"^#+ (.*)$", site[f"use-with/{page}.md"].decode(), re.M)
    assert any(words in heading.lower() for heading in headings)


def test_words_for_the_tests_are_not_shown(site: dict[str, bytes]) -> None:
    words = re.compile(rb"^ *```\w+.*(?:no-run|\brun\b|needs=)", re.M)
    assert [name for name, text in site.items() if name.endswith(".md") and words.search(text)] == []


def test_a_link_to_a_file_that_the_site_does_not_show_becomes_text() -> None:
    text = "[log](../../research/LOG.md#a), [`make`](../../Makefile), [![x](../images/x.svg)](../index.md)"
    assert finish(text, "how-to/a.md") == "[log](../results/log.md#a), `make`, [![x](../images/x.svg)](../index.md)"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_has_a_notebook_with_its_code_and_output(page: Path, site: dict[str, bytes]) -> None:
    notebook = json.loads(site[f"tutorials/{page.stem}.ipynb"])
    assert f"({page.stem}.ipynb)".encode() in site[f"tutorials/{page.name}"]
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    blocks = find_blocks(page.read_text())
    assert len(cells) == sum(block.runs for block in blocks)
    assert "matplotlib.use" not in "".join(list_code(notebook))
    printed = ["".join(output["text"]) for cell in cells for output in cell["outputs"] if "text" in output]
    after = pairwise(blocks)
    assert printed == [f"{shown.text}\n" for block, shown in after if block.runs and shown.is_output]
    texts = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not re.search(r"\]\((?!https?:|attachment:)", texts), "a notebook is read without the site"
    assert {cell["id"] for cell in notebook["cells"]} == {f"cell-{i}" for i in range(len(notebook["cells"]))}


def test_there_are_six_notebooks(site: dict[str, bytes]) -> None:
    assert sum(name.endswith(".ipynb") for name in site) == 6 == len(TUTORIALS)


def test_a_notebook_writes_files_runs_commands_and_shows_pictures(tmp_path: Path) -> None:
    (tmp_path / "p.svg").write_text("<svg/>")
    page = (
        'A [page](b.md).\n\n```python title="a.py"\nx = 1\n```\n\n```sh run\nseqloom list\n```\n'
        '```python\nimport matplotlib\n\nmatplotlib.use("svg")  # why\nsavefig("p.svg")\n```\n\n'
        "![P](p.svg)\n\nEnd ![P](p.svg)\n"
    )
    notebook = make_notebook(page, tmp_path)
    code = list_code(notebook)
    assert code == ["%%writefile a.py\nx = 1", "!seqloom list", 'savefig("p.svg")']
    assert [translate_magic(cell) for cell in code] == [
        "__import__('pathlib').Path(\"a.py\").write_text('x = 1')",
        "__shell__('seqloom list')",
        'savefig("p.svg")',
    ]
    *_, cell, end = notebook["cells"]
    assert cell["outputs"][0]["data"] == {"image/svg+xml": ["<svg/>"]}
    assert "".join(end["source"]) == "End ![P](attachment:p.svg)" and list(end["attachments"]) == ["p.svg"]
    assert "".join(notebook["cells"][1]["source"]) == "A page."


@pytest.mark.parametrize("page", USE_WITH, ids=lambda page: page.stem)
def test_snippets_for_other_libraries_call_seqloom_correctly(page: Path) -> None:
    """Also where the library is not installed, so that the snippet does not run."""
    code = "\n".join(block.text for block in find_blocks(page.read_text()) if block.runs)
    assert find_wrong_calls(code) == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("import seqloom\nseqloom.GRU(1, 2, batch_first=True, kernel='loop')", []),
        (
            "import seqloom\nseqloom.GRU(1, 2, batchfirst=True)",
            ["seqloom.GRU: got an unexpected keyword argument 'batchfirst'"],
        ),
        ("import seqloom\nseqloom.GRUU(1)", ["seqloom has no GRUU"]),
        ("import seqloom\nseqloom.Forecast()", ["seqloom.Forecast: missing a required argument: 'layer'"]),
        ("import seqloom\nseqloom.train('a', hiden=3)", ["seqloom.train: no argument 'hiden'"]),
        ("from seqloom.core.cell import Sell", ["seqloom.core.cell has no Sell"]),
    ],
)
def test_a_wrong_call_is_found(code: str, wrong: list[str]) -> None:
    assert find_wrong_calls(code) == wrong


@pytest.mark.parametrize("name", [name for name in seqloom.__all__ if inspect.isclass(getattr(seqloom, name))])
def test_the_reference_describes_every_argument_of_a_class(name: str) -> None:
    """As research/pages/docstrings.py writes it: with the arguments that a layer passes on to `Recurrent`."""
    kind = getattr(seqloom, name)
    names = list(inspect.signature(kind).parameters)
    if issubclass(kind, seqloom.Cell):  # the page of cells describes these once
        names = [parameter for parameter in names if parameter not in ("device", "dtype")]
    doc = inspect.getdoc(kind) or ""
    if issubclass(kind, seqloom.Recurrent) and kind is not seqloom.Recurrent:
        doc = complete_arguments(doc, read_arguments(inspect.getdoc(seqloom.Recurrent) or ""), names)
    described = {argument.lstrip("*") for argument in read_arguments(doc)}
    assert [parameter for parameter in names if parameter not in described] == []


def list_pages(nav: Any) -> list[str]:
    """Return the pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in list_pages(part)]


def find_dead_links(site: dict[str, bytes]) -> list[str]:
    """Return "page: target" for each link to a file or an anchor that does not exist."""
    pages = {name: text.decode() for name, text in site.items() if name.endswith(".md")}
    anchors = {name: list_anchors(text) for name, text in pages.items()}
    dead = []
    for name, text in pages.items():
        for target in LINK.findall(strip_code(text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if file not in site or (anchor and file in anchors and not is_anchor(anchor, anchors[file])):
                dead.append(f"{name}: {target}")
    return dead


def is_anchor(name: str, anchors: set[str]) -> bool:
    """Return whether a page has this anchor: its own, or a member's of a class that it describes."""
    if name in anchors:
        return True
    parent, _, member = name.rpartition(".")
    return bool(parent) and parent in anchors and hasattr(pkgutil.resolve_name(parent), member)


def strip_code(text: str) -> str:
    """Return a page without its fenced and inline code."""
    return re.sub(r"`[^`\n]+`", "`code`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M))


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page, named as Python-Markdown and mkdocstrings do."""
    anchors = {"", *ENTRY.findall(text), *re.findall(r"\{[^}\n]*#([\w-]+)", text), *re.findall(r'id="([^"]+)"', text)}
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M), re.M):
        plain = unicodedata.normalize("NFKD", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        plain = re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower()
        slug, count = re.sub(r"[-\s]+", "-", plain), 0
        while (anchor := f"{slug}_{count}" if count else slug) in anchors:
            count += 1
        anchors.add(anchor)
    return anchors


def find_wrong_calls(code: str) -> list[str]:
    """Return what is wrong with the imports from seqloom in a snippet, and with the calls of what it imports."""
    tree, known, wrong = ast.parse(code), dict[str, Any](), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.name: seqloom for alias in node.names if alias.name == "seqloom"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seqloom"):
            if node.module in ("seqloom.tools.rl.sb3", "seqloom.tools.rl.tensordicts"):
                continue  # what they import may not be installed
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if hasattr(module, alias.name):
                    known[alias.name] = getattr(module, alias.name)
                else:
                    wrong.append(f"{node.module} has no {alias.name}")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, head = node.func, node.func
        while isinstance(head, ast.Attribute):
            head = head.value
        if not (isinstance(head, ast.Name) and head.id in known):
            continue
        name, function = ast.unparse(called), known[head.id]
        for part in name.split(".")[1:]:
            if not hasattr(function, part):
                wrong.append(f"{head.id} has no {part}")
                break
            function = getattr(function, part)
        else:
            problem = check_call(function, node)
            wrong += [f"{name}: {problem}"] if problem else []
    return wrong


def check_call(function: Any, node: ast.Call) -> str:
    """Return what is wrong with the arguments of a call, or ""."""
    keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
    signature = inspect.signature(function)
    try:
        signature.bind(*node.args, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    if function in (seqloom.train, seqloom.compare):
        from seqloom.lab.compare.settings import CompareSettings
        from seqloom.lab.data.pipeline.reading import Reading
        from seqloom.lab.kinds.settings import TrainSettings

        settings = TrainSettings if function is seqloom.train else CompareSettings
        known = {*signature.parameters, *settings.model_fields, *Reading.model_fields}
        return next((f"no argument {name!r}" for name in keywords if name not in known), "")
    return ""

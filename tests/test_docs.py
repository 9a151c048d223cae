"""The documents tell the truth: their snippets run, print what they show, and quote lines that exist.

In a markdown file all ```python blocks run in order in one namespace, in a process of their own, forked from one that
has imported torch. A
```text block directly below one is what it must print. ```python no-run is not run, ```python title="cell.py" is
written to that file, the lines of ```sh run are `seqloom` commands, and ```python needs=ray,torchrl runs where those
packages are installed. What runs of a tutorial are the cells of its notebook. Code is quoted
from the package in a table whose column is headed by the file, `cells/gru.py`, or in a ```python
no-run block whose first line is `# cells/gru.py`: each line must be one of that file's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import seqloom
from research.pages import facts, generate
from research.pages.notebooks import Block, find_blocks, list_code, make_notebook, translate_magic
from warm_python import WarmPython

ROOT = Path(__file__).resolve().parents[1]

PACKAGE = ROOT / "src" / "seqloom"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUN = [page for page in PAGES if page.parent != ROOT or page.name == "README.md"]
RUN = [page for page in RUN if not page.is_relative_to(ROOT / "docs" / "decisions")]

# Reads [page, [[line, code, may warn], ...]]; writes what each block printed, and the traceback that ended it.
RUNNER = """
import contextlib, io, json, sys, traceback, warnings
page, blocks = json.load(sys.stdin)
if any(".compare(" in code for _, code, _ in blocks):  # it needs no workers here, which take seconds to start
    from seqloom.lab.jobs import runner
    runner.Processes = lambda _: runner.Here()
printed, error, namespace = [], "", {"__name__": "__main__"}
def shell(commands):
    import shlex
    from seqloom.cli.main import main
    for command in commands.splitlines():
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(sys.stdout):
            main(shlex.split(command, comments=True)[1:])
namespace["__shell__"] = shell
for line, code, may_warn in blocks:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            if may_warn:  # other libraries warn about their own code
                warnings.simplefilter("ignore")
            exec(compile("\\n" * line + code, page, "exec"), namespace)
    except BaseException:
        error = traceback.format_exc()
        break
    printed.append(out.getvalue())
with open(sys.argv[1], "w") as file:
    json.dump([printed, error], file)
"""
# Warnings are errors; but torch deprecates its own calls, and a page cannot help that.
STRICT = ("-W", "error", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """Return what starts processes in which a warning is an error."""
    server = WarmPython(*STRICT, modules=("seqloom.layers.named", "seqloom.cells"))
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=ids)
def test_every_snippet_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path, python: WarmPython) -> None:
    problem = snippet_problem(page, tmp_path, python)
    assert not problem, problem
    missing = sorted({name for block in blocks(page) if block.runs for name in find_missing(block)})
    if missing:
        pytest.skip(f"the snippets that need {', '.join(missing)} did not run")


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_quoted_line_is_in_the_file_it_names(page: Path) -> None:
    missing = [
        f"{ids(page)}:{line}: {name} has no line: {code}" for line, name, code in quotes(page) if not has(name, code)
    ]
    assert not missing, "\n" + "\n".join(missing)


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("examples/*.md"), *ROOT.glob("research/*.md")], ids=ids)
def test_every_link_to_a_local_file_leads_somewhere(page: Path) -> None:
    broken = [f"{ids(page)}:{line}: {target}" for line, target in links(page) if not (page.parent / target).exists()]
    assert not broken, "\n" + "\n".join(broken)


def test_the_first_screen_of_the_readme_names_the_two_commands() -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:14]
    assert any(line.startswith("make compare") for line in screen)
    assert any(line.startswith("make test") for line in screen)


def test_the_readme_has_at_most_450_words_besides_tables_and_code() -> None:
    text = re.sub(r"^```.*?^```|<!--.*?-->|<[^>]+>|^\|.*?$", "", (ROOT / "README.md").read_text(), flags=re.S | re.M)
    assert len(re.findall(r"[A-Za-z]\w+", re.sub(r"\]\([^)]*\)", "]", text))) <= 450


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/results/attn-rnn.md",
        "docs/results/speed.md",
        "docs/results/overview.md",
        "docs/results/claims.md",
        "docs/tutorials/own-cell.md",
        "docs/reference/cell-map.md",
        "docs/theory/parallel.md",
        "docs/how-to/deep-stacks.md",
        "src/seqloom/kernels/README.md",
    ],
)
def test_the_figures_of_a_page_are_those_of_the_stored_records(page: str) -> None:
    text = (ROOT / page).read_text()
    assert generate.fill(text) == text, "run `python -m research generate`"
    assert generate.MARKS.search(text)


@pytest.mark.parametrize("page", sorted(facts.FACTS))
def test_every_number_that_a_page_states_by_hand_is_that_of_its_source(page: str) -> None:
    missing, unchecked = facts.find_unchecked((ROOT / page).read_text(), facts.FACTS[page]())
    assert not missing, f"{page} should say: {missing}"
    assert not unchecked, f"no record or constant is known for these numbers of {page}: {unchecked}; see facts.py"


def test_a_number_without_a_source_is_found() -> None:
    text = "Trained for 30 epochs. See `x = 3` and\n[three](3.md), 5 seeds.\n\n```\n7\n```\n"
    assert facts.find_unchecked(text, ["5 seeds", "with 2"]) == (
        ["with 2"],
        ["Trained for 30 epochs.", "See and [three], ."],
    )


def test_the_page_on_attn_rnn_names_every_study_in_which_it_is_worse() -> None:
    text = (ROOT / "docs" / "results" / "attn-rnn.md").read_text()
    for file in (ROOT / "research/results/studies").glob("*-fair/study.json"):
        study = json.loads(file.read_text())
        if "attn_rnn is worse than" in study["verdict"]:
            row = next(line for line in text.splitlines() if line.startswith(f"| {study['study']}"))
            cells = [cell.strip() for cell in row.split("|")]
            assert not cells[2].startswith("0 losses") or cells[4], f"the page hides a loss of {file.parent.name}"


def test_every_public_name_has_a_place_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    places = set(re.findall(r"^::: seqloom\.(?:tools\.)?(\w+)$", pages, re.M))
    lab = {name for name in dir(seqloom) if name[0] != "_" and name in seqloom._LAB}
    assert places == set(seqloom.__all__) | lab


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {seqloom.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\nprint(2)\n```\n\n```text\n3\n```\n", "page.md:1: the snippet printed\n2\nbut the page shows\n3"),
        ("x\n```python\na = 1\n```\n```python\nb = a\nc = d\n```\n", "line 7, in <module>"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
        ("```python\nprint(2)\n```\n```\n2\n```\n```python no-run\n1 / 0\n```\n```text\n3\n```\n", ""),
        ("1. A list:\n\n   ```python\n   print(2)\n   ```\n   ```text\n   2\n   ```\n", ""),
        ("```python\nprint(2)\n```\nOther words.\n```text\n3\n```\n", ""),
        ('```python title="two.py"\nx = 2\n```\n```python\nfrom two import x\nprint(x)\n```\n```text\n2\n```\n', ""),
    ],
    ids=[
        "another output",
        "an error",
        "a warning",
        "right",
        "right in a list",
        "right with words between",
        "right with a file",
    ],
)
def test_wrong_pages_are_detected_and_correct_ones_pass(
    text: str, says: str, tmp_path: Path, python: WarmPython
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    problem = snippet_problem(page, tmp_path, python)
    assert says in problem and bool(says) == bool(problem)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
def test_a_process_that_fails_or_takes_too_long_is_reported(tmp_path: Path, python: WarmPython) -> None:
    code = "import os, sys; print(sys.argv[1], input(), os.environ['A']); sys.exit(3)"
    done = python.run(code, "word", cwd=tmp_path, env={"A": "b"}, input="line\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "word line b\n", "")
    slow = python.run("import time; time.sleep(60)", cwd=tmp_path, env={}, timeout=0.1)
    assert slow.returncode == -signal.SIGKILL
    assert "ZeroDivisionError" in python.run("1 / 0", cwd=tmp_path, env={}).stderr


def test_a_quoted_line_that_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| is | `cells/gru.py` |\n|---|---|\n| `h` | `z = 0` |\n\n```python no-run\n# cells/gru.py\nz = 1\n```\n"
    )
    assert sorted(quotes(page)) == [(3, "cells/gru.py", "z = 0"), (7, "cells/gru.py", "z = 1")]
    assert not has("cells/gru.py", "z = 0") and has("cells/gru.py", "h = (1 - z) * n + z * h")


def snippet_problem(page: Path, folder: Path, python: WarmPython) -> str:
    """Return what is wrong with a page's snippets, or ""."""
    fenced = blocks(page)
    snippets = [b for b in fenced if b.runs and not find_missing(b)]
    if not snippets:
        return ""
    codes = [block.cell for block in snippets]
    if page.parent.name == "tutorials":
        codes = list_code(make_notebook(page.read_text(), page.parent))
    shown = {b.line: after for b, after in pairwise(fenced) if after.follows and after.info in ("", "text")}
    result = folder / "printed.json"  # a file, for a snippet may start programs that print
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # it sets the width of text
    run = python.run(
        RUNNER,
        str(result),
        input=json.dumps(
            [
                str(page),
                [[b.line, translate_magic(c), "needs=" in b.info] for b, c in zip(snippets, codes, strict=True)],
            ]
        ),
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "SEQLOOM_CACHE": str(folder / "cache")},
    )
    if run.returncode:
        return f"{page}: the process ended with {run.returncode}\n{run.stderr}"
    printed, error = json.loads(result.read_text())
    problems = []
    for block, got in zip(snippets, printed, strict=False):
        if block.line in shown and plain(got) != plain(shown[block.line].text):
            wanted = plain(shown[block.line].text)
            problems.append(f"{page}:{block.line}: the snippet printed\n{plain(got)}\nbut the page shows\n{wanted}")
    return "\n\n".join([*problems, *([error] if error else [])])


def find_missing(block: Block) -> list[str]:
    """Return the packages that a snippet needs and that are not installed."""
    return [name for name in block.needs if find_spec(name) is None]


def plain(text: str) -> str:
    """Return the text without trailing white space on any line or at the end."""
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return find_blocks(page.read_text())


def quotes(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, file, code) for every line of code that a page quotes."""
    for block in blocks(page):
        head, *code = block.text.split("\n")
        named = re.fullmatch(r"# (\S+\.py)", head)
        if named and not block.runs:
            yield from ((block.line + 2 + i, named[1], c.strip()) for i, c in enumerate(code) if c.strip())
    files: list[str] = []
    for number, line in enumerate(outside_blocks(page), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not files:
            files = [named[1] if (named := re.fullmatch(r"`(\S+\.py)`", cell)) else "" for cell in cells]
        else:
            pairs = [(name, cell.strip("`")) for name, cell in zip(files, cells, strict=False) if name]
            yield from ((number, name, code) for name, code in pairs if code.strip("-:"))
        files = files if cells else []


def has(name: str, code: str) -> bool:
    """Return whether a file of the package has this line, without indentation and comment."""
    file = next((f for f in (PACKAGE / name, ROOT / name) if f.is_file()), None)
    if file is None:
        return False
    lines = {line.strip() for line in file.read_text().splitlines()}
    return code in lines | {line.split("  # ")[0] for line in lines}


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, path) for every link to a local file."""
    for number, line in enumerate(outside_blocks(page), 1):
        for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:|#", target):
                yield number, re.sub(r"\.ipynb$", ".md", target.partition("#")[0])  # made of the page


def outside_blocks(page: Path) -> list[str]:
    """Return the lines of a page, with empty lines in place of its fenced blocks."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        lines[block.line - 1 : block.end] = [""] * (block.end - block.line + 1)
    return lines

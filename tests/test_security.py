"""SECURITY.md names the test of each promise; each of them exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
FILE_OF_LETTER = dict(re.findall(r"`(tests/[\w/]+\.py)` \(([A-Z])\)", PAGE))
NAMED = re.compile(r"(?:\b([A-Z]) )?`(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`")


@cache
def list_tests(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def find_missing(page: str) -> list[str]:
    """Return the names of tests in the tables of the page that do not exist, and how many were looked up."""
    letters = {letter: ROOT / file for file, letter in FILE_OF_LETTER.items()}
    missing, count = [], 0
    for row in page.splitlines():
        if not row.startswith("|"):
            continue
        file: Path | None = None
        for letter, path, name in NAMED.findall(row.rpartition("| ")[2]):
            if path:
                file = next((f for f in (ROOT / path, ROOT / "tests/lab" / path) if f.is_file()), None)
            elif letter:
                file = letters[letter]
            count += 1
            if file is None or (name and name not in list_tests(file)):
                missing.append(f"{path} {name}")
    return [*missing, *(["too few tests were found"] if count < 40 else [])]


def test_every_test_that_the_page_of_promises_names_exists():
    assert find_missing(PAGE) == []


def test_a_test_that_does_not_exist_is_noticed():
    changed = PAGE.replace("test_the_copy_of_a_cell_is_read_once", "test_nothing")
    assert changed != PAGE and find_missing(changed) == [" test_nothing"]

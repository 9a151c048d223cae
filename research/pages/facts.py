"""Numbers that people write by hand into the pages, each computed from its source: tests/test_docs.py compares them.

A page may contain a number outside its generated parts, code and links only as part of one of these phrases.
"""

from __future__ import annotations

import re
import tomllib

import seqloom.cells  # noqa: F401  (fills the registry)
from research.pages import parallel, study_pages
from research.pages.records import ROOT, SPEED_ROWS, SPEED_STEPS
from research.studies.support.reproduction import FACTOR, POINTS
from seqloom.core.cell import Cell
from seqloom.lab.advise.rules import MEMORY_STEPS

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = re.compile(
    rf"(?<![\w.,])\d[\d.,]*\d?x?|\b(?:{'|'.join(WORDS[2:])}|half|twice|hundred|thousand|million)\b", re.I
)
HIDDEN = (
    r"<!-- generated: \w+ -->\n.*?<!-- end -->",
    r"^```.*?^```",
    r"(?<=\])\([^)]*\)",
    r"`[^`]*`",
    r"</?t[dr][^>]*>",
)
FAR_BEHIND = 0.05  # difference in accuracy from which stacked layers are advised against


def readme_facts() -> list[str]:
    """Return the phrases with numbers that README.md may and must contain."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    title = (ROOT / "docs" / "tutorials" / "from-nn-gru.md").read_text(encoding="utf-8").partition("\n")[0]
    return [
        f"{SPEED_STEPS} steps, {SPEED_ROWS} rows",
        f"one sequence of {parallel.LONG:,} steps",
        "{:.0f} to {:.0f} times as fast, unchanged".format(*parallel.find_gains()),
        f"Python {project['requires-python'].removeprefix('>=')} or newer",
        title.removeprefix("# From ").join(("[From ", "]")),
        f"License: {project['license']}",
        f"{sum(kind.__module__.startswith('seqloom.cells.') for kind in Cell.registry.values())} recurrent cells",
        "until version 1.0",  # CHANGELOG.md says the same
    ]


def attn_rnn_facts() -> list[str]:
    """Return the phrases with numbers that docs/results/attn-rnn.md may and must contain."""
    return [
        f"no points for memory below {MEMORY_STEPS} steps",
        f"stacks of {WORDS[find_bad_stack()]} or more layers",
    ]


def claims_facts() -> list[str]:
    """Return the phrases with numbers that docs/results/claims.md may and must contain."""
    return [
        f"within a factor of {FACTOR:g}",
        f"an accuracy within {100 * POINTS:g} points",
        "95% intervals",
        "ratios of errors below 1 and ratios of odds above 1",
        f"{count_unstable()} did on permuted MNIST, {WORDS[permuted('gru')[2]]} GRU did",
        f"with {WORDS[deepest_stack()]} layers it falls behind every other cell",
        f"Arguments of the {WORDS[count_texts()]} texts",
        "its 95% interval",
    ]


FACTS = {
    "README.md": readme_facts,
    "docs/results/attn-rnn.md": attn_rnn_facts,
    "docs/results/claims.md": claims_facts,
}


def count_texts() -> int:
    """Return how many texts the first table of docs/sources.md lists."""
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    return len(re.findall(r"^\| the .*\|$", page.partition("\n## ")[0], re.M))


def find_bad_stack() -> int:
    """Return the fewest layers with which AttnRNN is far behind a GRU on names, from where on it stays so."""
    behind = {}
    for condition, models in accuracies("family-fair").items():
        match = re.fullmatch(r"(\d+) layers?", condition)
        if match:
            behind[int(match[1])] = models["gru"] - models["attn_rnn"] > FAR_BEHIND
    return min(n for n in behind if all(behind[m] for m in behind if m >= n))


def deepest_stack() -> int:
    """Return the most layers tried on names, if AttnRNN is behind every other cell there."""
    depth = max(int(m[1]) for m in (re.fullmatch(r"(\d+) layers", c) for c in accuracies("family-fair")) if m)
    models = accuracies("family-fair")[f"{depth} layers"]
    assert all(value > models["attn_rnn"] for model, value in models.items() if model != "attn_rnn")
    return depth


def accuracies(name: str) -> dict[str, dict[str, float]]:
    """Return {condition: {model: accuracy}} of a stored study."""
    table: dict[str, dict[str, float]] = {}
    for row in study_pages.load(name)["table"]:
        table.setdefault(row["condition"], {})[row["model"]] = row["accuracy"]
    return table


def permuted(model: str = "attn_rnn") -> tuple[float, int, int]:
    """Return the learning rate of a model on permuted MNIST, its trainings, and those without a result."""
    rows = study_pages.load("mnist-fair")["table"]
    row = next(r for r in rows if (r["condition"], r["model"]) == ("permuted MNIST", model))
    return row["lr"], row["seeds"] + row["failed"], row["failed"]


def count_unstable() -> str:
    _, n, failed = permuted()
    return f"{WORDS[failed]} of {WORDS[n]}"


def find_unchecked(text: str, facts: list[str]) -> tuple[list[str], list[str]]:
    """Return the facts that a page lacks, and its lines with numbers that are in no fact."""
    for pattern in HIDDEN:
        text = re.sub(pattern, "", text, flags=re.S | re.M)
    text = re.sub(r"[ \n]*\n(?!\n)|  +", lambda m: "\n" if "\n\n" in m[0] else " ", text)
    missing = [fact for fact in facts if fact not in text]
    for fact in facts:
        text = text.replace(fact, "")
    sentences = re.split(r"(?<=[.!?:;|])\s", text)
    return missing, [sentence.strip() for sentence in sentences if NUMBER.search(sentence)]

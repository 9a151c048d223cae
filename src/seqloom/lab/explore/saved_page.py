"""Write an explorer as one file: the page, and recorded examples instead of a server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from typing import Any

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.lab.explore.explanation import RowExplanation, pack_array
from seqloom.lab.explore.portable_model import explain_not_portable, pack_model
from seqloom.lab.explore.rows import HeldOutRow
from seqloom.lab.explore.service import RunEntry, Service
from seqloom.lab.explore.subject import Subject

EXAMPLES = 12  # recorded for each run by default
MAX_BYTES = 20_000_000  # bytes of arrays in a page; further examples are left out
Recording = dict[str, Any]
FILES = ("index.html", "app.js", "app.css")


def record_examples(
    service: Service, count: int = EXAMPLES, inputs: Iterable[str] = (), with_models: bool = True
) -> Recording:
    """Return what a page without a server can show: explanations of some rows, and of a text.

    Args:
        count: Rows of each run: a third each of the best, the worst, and the confident but wrong ones.
        inputs: Texts to record as further rows.
        with_models: Whether to include the models that a page can run without a server, so that any text can be typed.
    """
    recording: Recording = {
        "about": service.answer("about", {}),
        "rows": {},
        "curves": {},
        "explanations": {},
        "models": {},
        "arrays": {},
    }
    size = 0
    for name, entry in service.entries.items():
        if entry.describe()["problem"]:
            continue
        questions: list[dict[str, Any]] = [{"run": name, "input": text} for text in inputs]
        empty = {"truth": "", "prediction": "", "loss": None, "confidence": None}
        listed = [{"row": number, "text": q["input"], **empty} for number, q in enumerate(questions)]
        try:
            chosen = choose_rows(entry.rows, count)
            all_rows = {row["row"]: row for row in service.answer("rows", {"run": name})["rows"]}
        except (UserError, OSError):  # the data are gone; typed texts still work
            chosen, all_rows = [], {}
        questions += [{"run": name, "row": number} for number in chosen]
        explanations: dict[str, Any] = {}
        for number, question in enumerate(questions):
            document = service.answer("explain", question)
            key = f"{len(recording['explanations'])}.{number}"
            arrays = {
                f"{key}/{array}": base64.b64encode(service.get_array(document["key"], array)).decode()
                for array in document["arrays"]
            }
            size += sum(map(len, arrays.values()))
            if size > MAX_BYTES and explanations:
                break
            recording["arrays"] |= arrays
            explanations[str(number)] = document | {"key": key}
            if "row" in question:
                listed.append(all_rows[question["row"]] | {"row": number})
            else:
                listed[number]["prediction"] = document["prediction"]["text"]
        recording["explanations"][name] = explanations
        recording["rows"][name] = listed[: len(explanations)]
        if with_models and not explain_not_portable(entry.subject):
            recording["models"][name] = pack_model(entry.subject)
        recording["curves"][name] = service.answer("curves", {"run": name})
    return recording


def record_explanation(subject: Subject, explanation: RowExplanation) -> Recording:
    """Return a recording of one explanation."""
    entry, document = RunEntry(subject.name, subject=subject), explanation.document | {"key": "0"}
    arrays = {f"0/{name}": base64.b64encode(pack_array(array)).decode() for name, array in explanation.arrays.items()}
    text = " ".join(document["steps"][:100])
    row = {"row": 0, "text": text, "truth": "", "prediction": document["prediction"]["text"]}
    return {
        "about": {"version": __version__, "runs": [entry.describe()]},
        "rows": {subject.name: [row | {"loss": None, "confidence": None}]},
        "curves": {},
        "explanations": {subject.name: {"0": document}},
        "models": {},
        "arrays": arrays,
    }


def choose_rows(rows: list[HeldOutRow], count: int) -> list[int]:
    """Return the indices of rows to record: the best, the worst and the confident but wrong ones in turn."""
    numbers = range(len(rows))
    by_loss = sorted(numbers, key=lambda i: rows[i].loss or 0.0)
    wrong = [i for i in numbers if rows[i].prediction != rows[i].truth]
    surprising = sorted(wrong, key=lambda i: -(rows[i].confidence or 0.0))
    chosen: dict[int, None] = {}
    for group in zip(by_loss, by_loss[::-1], surprising + by_loss, strict=False):
        chosen |= dict.fromkeys(group)
    return list(chosen)[:count]


def build_page(recording: Mapping[str, Any], title: str = "seqloom explore") -> str:
    """Return a page that works from disk, without a server and without any request.

    The page's policy forbids all outside requests and all scripts except its own, which is named by its hash.
    """
    script, style = read_static("app.js").decode(), read_static("app.css").decode()
    assert "</script" not in script and "</style" not in style
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    arrays = recording["arrays"]  # outside the JSON: a page parses megabytes only when it draws them
    document = {**recording, "arrays": list(arrays)}
    data = json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    elements = "\n".join(f'<script class="array" type="text/plain">{array}</script>' for array in arrays.values())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n'
        '<div id="app"><p class="loading">Loading the recorded examples…</p></div>\n'
        "<noscript>This page needs JavaScript to draw what is inside a model.</noscript>\n"
        f'<script id="recording" type="application/json">{data}</script>\n'
        f"{elements}\n"
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def read_static(name: str) -> bytes:
    """Return a file of the built page.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if name not in FILES:
        raise FileNotFoundError(name)
    return (resources.files("seqloom.lab.explore") / "static" / name).read_bytes()

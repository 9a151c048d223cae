"""model.json: what a runner needs to know about a model to read rows and name predictions."""

from __future__ import annotations

import json
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.lab.data.coders.letters import WORD_LETTERS
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.coders.text import HAN, WORDS, JoinedTextCoder, SubwordCoder, TextCoder
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.results import get_values

FORMAT = 1
TOKENIZER = "tokenizer.json"
MOST_EXAMPLE = 60  # characters of an input that is shown on a command line


def describe(model: ForTask, task: Task) -> dict[str, Any]:
    """Return the content of model.json, without "file".

    Args:
        model: The trained model.
        task: Its task, read from files.
    """
    encoding = task.encoding
    assert encoding is not None
    about: dict[str, Any] = {
        "format": FORMAT,
        "kind": task.kind,
        "decoder": kind_of(task).decoder,
        "limit": encoding.options.limit,
        "names": list(getattr(task.target, "names", ())),
        "encoder": _describe_encoder(encoding.x, task, model),
    }
    example = _write_example(about["encoder"], task)
    about["example"] = shlex.quote(example) if len(example) <= MOST_EXAMPLE else "--file rows.jsonl"
    return about | kind_of(task).describe_export(task, model)


def _describe_encoder(coder: Any, task: Task, model: ForTask) -> dict[str, Any]:  # noqa: ANN401  # any input coder
    if isinstance(coder, TextCoder):
        about = {name: getattr(coder, name) for name in ("column", "unit", "lowercase", "end", "words")}
        about |= {"type": "text", "pattern": write_pattern() if coder.unit == "words" else ""}
        if getattr(model.model, "reads_letters", False) and task.encoding is not None:
            about |= {"letters": task.encoding.letters.letters, "word_letters": WORD_LETTERS}
        return about
    if isinstance(coder, SubwordCoder):
        common = {name: getattr(coder, name) for name in ("column", "lowercase", "end")}
        return {"type": "subwords", "file": TOKENIZER} | common
    if isinstance(coder, JoinedTextCoder):
        inner = _describe_encoder(coder.inner, task, model)
        return {"type": "joined", "columns": list(coder.columns), "inner": inner}
    if isinstance(coder, SeriesCoder):
        common = {"columns": list(coder.columns), "wide": coder.wide, "width": coder.width}
        return {"type": "series", "scale": coder.scale.state()} | common
    assert isinstance(coder, TableCoder)
    target = get_values(task)
    state = {k: v for k, v in coder.state().items() if k != "coder"}
    names = coder.space.names
    ahead = {"lookback": task.lookback, "horizon": target.steps, "targets": list(target.names)}
    return {"type": "table", "known_features": [names.index(n) for n in coder.space.known]} | state | ahead


def write_description(model: ForTask, task: Task, folder: Path, **facts: object) -> dict[str, Any]:
    """Write model.json and, for subwords, the tokenizer; return the content of model.json."""
    about = describe(model, task) | facts
    (folder / "model.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
    write_tokenizer(task, folder)
    return about


def write_tokenizer(task: Task, folder: Path) -> None:
    """Write the tokenizer of subwords as a separate file; do nothing for other inputs."""
    assert task.encoding is not None
    coder = task.encoding.x.inner if isinstance(task.encoding.x, JoinedTextCoder) else task.encoding.x
    if isinstance(coder, SubwordCoder):
        (folder / TOKENIZER).write_text(json.dumps(coder.state()["tokenizer"], ensure_ascii=False), encoding="utf-8")


def _write_example(about: dict[str, Any], task: Task) -> str:
    """Return an input for a command line."""
    if about["type"] in ("text", "subwords"):
        return "some text"
    if about["type"] == "joined":
        return json.dumps(dict.fromkeys(about["columns"], "some text"), ensure_ascii=False)
    if about["type"] == "table":
        ahead = about["horizon"]
        steps = {n: 2 + (ahead if n in about["known"] else 0) for n in about["columns"]}
        values = {n: about["categories"].get(n, [1])[0] for n in about["columns"]}
        if len(steps) == 1:
            return "[1, 2, 3]"
        return json.dumps({n: [values[n]] * steps[n] for n in about["columns"]}, ensure_ascii=False)
    if len(about["columns"]) > 1 and not about["wide"]:
        return json.dumps([[1] * len(about["columns"])] * 2)
    return json.dumps([1] * len(about["columns"]) if about["wide"] else [[1] * about["width"]] * 2)


@cache
def write_pattern() -> str:
    r"""Return the pattern of words for Python's `re`, which has neither scripts nor differences of sets.

    Every class of characters is written as ranges, because Python's \w and \s differ from those of polars.
    """
    word, han, blank = (_find_characters(c) for c in (r"\w", f"[{HAN}]", r"\s"))
    assert WORDS.startswith(r"</?\w[^<>]*>|[")  # written out below
    every, plain, scripts = _write_class(word), _write_class(word - han), _write_class(han)
    other = _write_class(word | blank)
    return rf"</?[{every}][^<>]*>|[{scripts}]|[{plain}]+(?:['\u2019][{plain}]+)*|[^{other}]"


def _find_characters(pattern: str) -> set[int]:
    """Return the code points that a class of polars' regular expressions contains."""
    codes = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]  # without surrogates
    hits = pl.Series([chr(c) for c in codes]).str.contains(pattern)
    return {c for c, is_in in zip(codes, hits.to_list(), strict=True) if is_in}


def _write_class(codes: set[int]) -> str:
    """Return code points as ranges inside the brackets of a regular expression."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in ranges)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

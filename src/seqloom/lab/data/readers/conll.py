"""CoNLL and CoNLL-U: one token a line, a blank line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.generated import generated, utf8

SUFFIXES = (".conll", ".conllu", ".iob", ".bio")
UNIVERSAL = ("id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
KEPT = ("tokens", "lemma", "upos", "xpos", "feats", "deprel")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    first = next((fields for _, fields in _lines(path) if fields), None)
    if first is None:
        raise UserError(f"{path}: the file is empty")
    universal = path.suffix == ".conllu"
    names = UNIVERSAL if universal else ("tokens", *(f"column_{i + 2}" for i in range(len(first) - 1)))
    kept = KEPT if universal else names
    return generated(lambda: _sentences(path, names, kept), {name: pl.List(pl.String) for name in kept})


def usual(frame: pl.LazyFrame) -> tuple[str, str]:
    """The token; the universal part of speech, else the last column."""
    names = frame.collect_schema().names()
    return "tokens", "upos" if "upos" in names else names[-1]


def _sentences(path: Path, names: tuple[str, ...], kept: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    universal = names is UNIVERSAL
    sentence: list[list[str]] = []
    for number, fields in _lines(path):
        if not fields:
            if sentence:
                yield _columns(sentence, names, kept)
            sentence = []
        elif len(fields) != len(names):
            raise UserError(f"{path}: line {number} has {len(fields)} fields, not {len(names)}; complete the line")
        elif not (universal and not fields[0].isdigit()):  # "3-4" and "5.1" are no words of their own
            sentence.append(fields)
    if sentence:
        yield _columns(sentence, names, kept)


def _columns(sentence: list[list[str]], names: tuple[str, ...], kept: tuple[str, ...]) -> dict[str, Any]:
    columns = dict(zip(names, zip(*sentence, strict=True), strict=True))
    return {name: list(columns[name]) for name in kept}


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields; no fields for a blank line. Comments and document marks are skipped."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = utf8(raw, path, number).rstrip("\r\n")
            if line.startswith("-DOCSTART-") or (line.startswith("#") and path.suffix == ".conllu"):
                continue
            yield number, (line.split("\t") if "\t" in line else line.split()) if line.strip() else []

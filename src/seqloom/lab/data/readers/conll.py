"""CoNLL and CoNLL-U: one token per line, a blank line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import read_lines, scan_rows

SUFFIXES = (".conll", ".conllu", ".iob", ".bio")
UNIVERSAL = ("id", "tokens", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # CoNLL-U fields
UNIVERSAL_READ = ("tokens", "lemma", "upos", "xpos", "feats", "deprel")


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan a file with one row per sentence and one list per field."""
    first = next((fields for _, fields in _read_lines(path) if fields), None)
    if first is None:
        raise UserError(f"{path}: the file is empty")
    is_universal = path.suffix == ".conllu"
    names = UNIVERSAL if is_universal else ("tokens", *(f"column_{i + 2}" for i in range(len(first) - 1)))
    columns = UNIVERSAL_READ if is_universal else names
    return scan_rows(lambda: _read_sentences(path, names, columns), {name: pl.List(pl.String) for name in columns})


def find_usual(frame: pl.LazyFrame) -> tuple[str, str]:
    """Return the usual input and target: tokens, and the universal part of speech or, without it, the last column."""
    names = frame.collect_schema().names()
    return "tokens", "upos" if "upos" in names else names[-1]


def _read_sentences(path: Path, names: tuple[str, ...], columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    is_universal = names is UNIVERSAL
    sentence: list[list[str]] = []
    for number, fields in _read_lines(path):
        if not fields:
            if sentence:
                yield _to_columns(sentence, names, columns)
            sentence = []
        elif len(fields) != len(names):
            raise UserError(
                f"{path}: line {number} has {count(len(fields), 'field')}, not {len(names)}; complete the line"
            )
        elif not (is_universal and not fields[0].isdigit()):  # "3-4" and "5.1" are not words of the sentence
            sentence.append(fields)
    if sentence:
        yield _to_columns(sentence, names, columns)


def _to_columns(sentence: list[list[str]], names: tuple[str, ...], columns: tuple[str, ...]) -> dict[str, Any]:
    fields = dict(zip(names, zip(*sentence, strict=True), strict=True))
    return {name: list(fields[name]) for name in columns}


def _read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and fields, which are empty for a blank line; skip comments and document marks."""
    for number, text in read_lines(path):
        line = text.rstrip("\r\n")
        if line.startswith("-DOCSTART-") or (line.startswith("#") and path.suffix == ".conllu"):
            continue
        yield number, (line.split("\t") if "\t" in line else line.split()) if line.strip() else []

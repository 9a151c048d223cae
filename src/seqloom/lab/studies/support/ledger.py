"""Finished trials in a file, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError

FILE = "trials.jsonl"


class Ledger:
    """One line a trial: a key that holds everything that determines it, and what came out.

    A line is written and synced as soon as its trial is finished. A last line that was torn by a kill
    is dropped, and its trial runs again. Without a folder nothing is kept beyond this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self.file = None if folder is None else folder / FILE
        self.found: dict[str, dict[str, Any]] = {}
        if self.file is not None and self.file.exists():
            self._read(self.file)

    def _read(self, file: Path) -> None:
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with file.open("r+b") as torn:
                torn.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                self.found[_text(record["key"])] = record["value"]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{file}, line {number}, is no trial: {error}; delete the line to go on") from error

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.found.get(_text(key))

    def add(self, key: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Keep a trial; one that is there stays as it is."""
        if _text(key) in self.found:
            return
        line = json.dumps({"key": key, "value": value}, allow_nan=False)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
                out.flush()
                os.fsync(out.fileno())
        self.found[_text(key)] = json.loads(line)["value"]


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)

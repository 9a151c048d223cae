"""Finished trials in a file, so that an interrupted study can continue."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError

FILE = "trials.jsonl"


class Ledger:
    """One line per trial: a key with everything that determines it, and its result.

    A line is written and synced as soon as its trial is finished. An incomplete last line is dropped, and its trial
    runs again. Without a folder, results are kept in memory only.
    """

    def __init__(self, folder: Path | None) -> None:
        self.file = None if folder is None else folder / FILE
        self.trials: dict[str, dict[str, Any]] = {}
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
                self.trials[_text(record["key"])] = record["value"]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{file}, line {number}, is not a trial: {error}; delete the line to continue"
                ) from error

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.trials.get(_text(key))

    def add(self, key: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Store a trial unless it is stored already."""
        if _text(key) in self.trials:
            return
        line = json.dumps({"key": key, "value": value}, allow_nan=False)
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
                out.flush()
                os.fsync(out.fileno())
        self.trials[_text(key)] = json.loads(line)["value"]


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)

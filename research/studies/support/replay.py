"""Compute stored studies again from their trials, without training."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from research.studies.study import Study, find_study
from research.studies.support.conditions import Condition
from research.studies.support.ledger import FILE
from seqloom.cells.lookup import split_name
from seqloom.core.errors import UserError
from seqloom.core.plurals import count

TRIALS, STUDY = FILE, "study.json"
KEPT = ("date", "versions", "hardware")  # facts of the training, not of the analysis


def replay(study: Study[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the stored rows of a study and their document; trials that are not stored are left out.

    Raises:
        UserError: If no trial of these settings is stored.
    """
    assert study.folder is not None
    study.replays = True
    rows = list(study.run(lambda _: None))
    if not rows:
        raise UserError(f"{study.folder / TRIALS} contains no trial of these settings; check --device and --conditions")
    document = study.document(rows, finished=not study.missing)
    earlier = study.folder / STUDY
    stored = json.loads(earlier.read_text(encoding="utf-8")) if earlier.exists() else {}
    unknown: dict[str, Any] = {
        "date": "",
        "versions": {},
        "hardware": {},
    }  # the trials do not say where they were trained
    document |= {name: stored.get(name, unknown[name]) for name in KEPT}
    return rows, document


def restore_study(folder: Path) -> Study[Any, Any]:
    """Return the study of a folder with the settings that its study.json stores."""
    file = folder / STUDY
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        _refuse_files(stored["settings"])
        kind = find_study(stored["study"])
        settings = _read_settings(type(kind.choose_settings(stored["protocol"])), stored["settings"])
        study = kind(settings, protocol=stored["protocol"], folder=folder, device=stored["device"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is not the document of a study of this version: {error}") from error
    for row in stored["rows"]:  # so that no model must be built to find its size
        if {"hidden", "model", "condition"} <= set(row):
            study.known_sizes[row["model"], row["condition"]] = row["hidden"]
    return study


def _refuse_files(value: object) -> None:
    """Raise a UserError if settings name the cell of a file, whose code building a model would execute."""
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _refuse_files(part)
    elif isinstance(value, str) and split_name(value) is not None:
        raise UserError(f"it names the cell of a file, {value!r}, which is never executed")


def _read_settings(kind: type, values: dict[str, Any]) -> Any:  # the settings of any study
    known = {field.name for field in fields(kind)}
    values = {name: _to_tuple(value) for name, value in values.items() if name in known}
    if "conditions" in values:
        values["conditions"] = tuple(
            Condition(**{name: value if name == "task" else _to_tuple(value) for name, value in c.items()})
            for c in values["conditions"]
        )
    return kind(**values)


def _to_tuple(value: Any) -> Any:  # of JSON
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value


def agree(stored: object, computed: object) -> bool:
    """Return whether two documents are equal; the last digits of numbers may differ between processors."""
    if isinstance(stored, float) and isinstance(computed, float):
        return math.isclose(stored, computed, rel_tol=1e-9)
    if isinstance(stored, dict) and isinstance(computed, dict):
        return list(stored) == list(computed) and all(agree(stored[key], computed[key]) for key in stored)
    if isinstance(stored, list) and isinstance(computed, list):
        return len(stored) == len(computed) and all(map(agree, stored, computed))
    return stored == computed


def rebuild(folder: Path) -> str:
    """Compute study.json again from the trials beside it; return what has changed in one line."""
    from seqloom.lab.report import store_document
    from seqloom.lab.report.stored import page_to_json

    study = restore_study(folder)
    before = json.loads((folder / STUDY).read_text(encoding="utf-8"))
    rows, document = replay(study)
    if study.missing:
        missing = count(len(study.missing), "trial")
        raise UserError(f"{folder / TRIALS} lacks {missing} of the study, such as {study.missing[0]}; run it again")
    page = study.page(rows, document)
    changed = [name for name in ("table", "verdict", "caption") if not agree(before[name], document[name])]
    changed += ["report"] if not agree(before["page"]["blocks"], page_to_json(page)["blocks"]) else []
    if changed:
        store_document(page, folder, document)
    return f"{folder.name}: {len(rows):,} trials, {' and '.join(changed) + ' changed' if changed else 'unchanged'}"

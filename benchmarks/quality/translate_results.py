"""The files that translate.py leaves: of one run, or of several runs of single models put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import alignments
from translate_training import MODELS

AIMS = {"additive": 27.0, "transformer": 35.0, "attention over none": 7.0}
OWN = ("command", "date", "seconds", "hardware")  # of each run; the rest must be the same in all that are joined


def write(folder: Path, document: dict[str, Any], shown: dict[str, list[dict[str, Any]]]) -> None:
    """The document with its aims judged, the alignments as numbers and as a picture; prints where they are."""
    models = {name: document["models"][name] for name in MODELS if name in document["models"]}
    document = document | {"aims": judged(models), "models": models}
    kind = document["hardware"]["device"].split()[-1].lower()
    some = "" if len(models) == len(MODELS) else "-" + "-".join(models)
    stem = f"{document['date'][:10]}-{kind}-translate{some}{'-quick' * document['quick']}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (f"{stem}.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n"),
        (f"{stem}-alignments.json", json.dumps(shown, ensure_ascii=False) + "\n"),
        (f"{stem}-alignments.svg", alignments.picture(shown)),
    ):
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


def judged(models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was aimed at, and what was reached."""
    bleu = {name: float(str(result["bleu"])) for name, result in models.items()}
    reached = dict(bleu)
    attention = [bleu[name] for name in ("additive", "dot") if name in bleu]
    if attention and "none" in bleu:
        reached["attention over none"] = round(min(attention) - bleu["none"], 2)
    return {n: {"aim": aim, "reached": reached[n], "ok": reached[n] >= aim} for n, aim in AIMS.items() if n in reached}


def merge(files: list[Path], folder: Path) -> None:
    """Several runs' documents, and the alignments beside them, as one."""
    first, *_ = documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    shared = [key for key in first if key not in (*OWN, "aims", "models")]
    models: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for file, document in zip(files, documents, strict=True):
        if differ := [key for key in shared if document.get(key) != first[key]]:
            raise SystemExit(
                f"{file} and {files[0]} differ in {', '.join(differ)}; join runs that differ in models only"
            )
        if twice := models.keys() & document["models"].keys():
            raise SystemExit(f"{file} has {', '.join(twice)} again; name each model's run once")
        models |= document["models"]
        shown |= json.loads(file.with_name(f"{file.stem}-alignments.json").read_text(encoding="utf-8"))
    runs = [{key: document[key] for key in OWN} | {"models": list(document["models"])} for document in documents]
    shown = {name: shown[name] for name in MODELS if name in shown}
    all_of = {"command": "; ".join(run["command"] for run in runs), "seconds": sum(run["seconds"] for run in runs)}
    write(folder, first | all_of | {"runs": runs, "models": models}, shown)

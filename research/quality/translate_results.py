"""Write the records of translate.py: of one run, or of several runs of single models put together."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from research.quality.translate_training import MODELS
from research.record import format_record

CELL, LETTER, GAP = 24, 7, 24  # pixels: a square, a letter's width, between grids
WRITTEN = 0.1  # weights from here on are written into their squares
BLUE = "#1f4e9c"
STYLE = (
    "text { font: 13px sans-serif } .name { font: bold 16px sans-serif } "
    ".weight { font: 10px sans-serif; text-anchor: middle }"
)
CAPTION = (
    "Each row is a word that was written; each column a word of the source. Numbers: the share of attention in percent."
)
AIMS = {"additive": 27.0, "transformer": 35.0, "attention over none": 7.0}
OWN = ("command", "date", "seconds", "hardware")  # of each run; the rest must be the same in all that are joined


def write(folder: Path, document: dict[str, Any], alignments: dict[str, list[dict[str, Any]]]) -> None:
    """Write the record with its aims judged, and the alignments as numbers and as a picture."""
    models = {name: document["models"][name] for name in MODELS if name in document["models"]}
    document = document | {"aims": judge_aims(models), "models": models}
    kind = document["hardware"]["device"].split()[-1].lower()
    some = "" if len(models) == len(MODELS) else "-" + "-".join(models)
    stem, folder = f"{kind}-translate{some}{'-quick' * document['quick']}", folder / document["date"][:10]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        (f"{stem}.json", format_record(document)),
        (f"{stem}-alignments.json", format_record(alignments)),
        (f"{stem}-alignments.svg", draw_alignments(alignments)),
    ):
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


def judge_aims(models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Compare each model's BLEU with its aim."""
    bleu = {name: float(str(result["bleu"])) for name, result in models.items()}
    reached = dict(bleu)
    attention = [bleu[name] for name in ("additive", "dot") if name in bleu]
    if attention and "none" in bleu:
        reached["attention over none"] = round(min(attention) - bleu["none"], 2)
    return {n: {"aim": aim, "reached": reached[n], "ok": reached[n] >= aim} for n, aim in AIMS.items() if n in reached}


def merge(files: list[Path], folder: Path) -> None:
    """Join the records of several runs and the alignments beside them."""
    first, *_ = documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    shared = [key for key in first if key not in (*OWN, "aims", "models")]
    models: dict[str, Any] = {}
    alignments: dict[str, Any] = {}
    for file, document in zip(files, documents, strict=True):
        if differ := [key for key in shared if document.get(key) != first[key]]:
            raise SystemExit(
                f"{file} and {files[0]} differ in {', '.join(differ)}; join runs that differ in models only"
            )
        if twice := models.keys() & document["models"].keys():
            raise SystemExit(f"{file} has {', '.join(twice)} again; name each model's run once")
        models |= document["models"]
        alignments |= json.loads(file.with_name(f"{file.stem}-alignments.json").read_text(encoding="utf-8"))
    runs = [{key: document[key] for key in OWN} | {"models": list(document["models"])} for document in documents]
    alignments = {name: alignments[name] for name in MODELS if name in alignments}
    all_of = {"command": "; ".join(run["command"] for run in runs), "seconds": sum(run["seconds"] for run in runs)}
    write(folder, first | all_of | {"runs": runs, "models": models}, alignments)


def draw_alignments(alignments: dict[str, list[dict[str, Any]]]) -> str:
    """Return an SVG picture with a row of grids for each model."""
    parts, y, wide = [f'<text x="{GAP}" y="24">{CAPTION}</text>'], 60, LETTER * len(CAPTION)
    for name, grids in alignments.items():
        parts.append(f'<text class="name" x="{GAP}" y="{y}">{html.escape(name)}</text>')
        longest = max((len(word) for grid in grids for word in grid["source"]), default=0)
        top = y + LETTER * longest + 12  # below words that lean by 60 degrees
        x, below = GAP, top
        for grid in grids:
            lines, right, bottom = _draw_grid(grid, x, top)
            parts += lines
            x, below = right + GAP, max(below, bottom)
        y, wide = below + 2 * GAP, max(wide, x)
    size = f'width="{wide}" height="{y}" viewBox="0 0 {wide} {y}"'
    back = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{back}{"".join(parts)}</svg>\n'


def _draw_grid(grid: dict[str, Any], x: int, top: int) -> tuple[list[str], int, int]:
    """Draw one sentence from (x, top) on; return its elements and where it ends."""
    source, target = grid["source"], grid["target"]
    left = x + LETTER * max(map(len, target)) + 8
    parts = []
    for j, word in enumerate(source):
        at = f"{left + j * CELL + 16} {top - 6}"
        parts.append(f'<text transform="translate({at}) rotate(-60)">{html.escape(word)}</text>')
    for i, word in enumerate(target):
        at_y = top + i * CELL
        parts.append(f'<text x="{left - 6}" y="{at_y + 16}" text-anchor="end">{html.escape(word)}</text>')
        for j, w in enumerate(grid["weights"][i]):
            at_x = left + j * CELL
            parts.append(
                f'<rect x="{at_x}" y="{at_y}" width="{CELL}" height="{CELL}" fill="{BLUE}" '
                f'fill-opacity="{w:.3f}" stroke="#ccc" stroke-width="0.5"/>'
            )
            if w >= WRITTEN:
                ink = "white" if w > 0.5 else "black"
                parts.append(
                    f'<text class="weight" x="{at_x + CELL // 2}" y="{at_y + 15}" fill="{ink}">{100 * w:.0f}</text>'
                )
    return parts, left + CELL * len(source), top + CELL * len(target)

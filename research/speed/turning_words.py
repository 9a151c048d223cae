"""Count the turning words that the explorer's first sentence names, in ten real sentences.

    python -m research turning_words RUN... --data DATA [--json FILE]

The sentences were chosen by reading, before any of these models was trained, from data that no model was trained on:
a word ("not", "but", "however") turns what the sentence says. DATA holds sentence_polarity/sentence_polarity.jsonl.gz
(Pang and Lee 2005) and imdb/test.jsonl.gz (Maas et al. 2011).
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from research.record import build_parser, print_row, write_record
from seqloom.lab.explore.explanation import explain
from seqloom.lab.explore.subject import open_subject
from seqloom.lab.training.run import Run

SENTENCES = (  # file, line, sentence of the line, word
    ("sentence_polarity/sentence_polarity", 4065, 0, "not"),
    ("imdb/test", 6179, 5, "not"),
    ("imdb/test", 5367, 26, "not"),
    ("imdb/test", 12985, 1, "not"),
    ("sentence_polarity/sentence_polarity", 5179, 0, "but"),
    ("sentence_polarity/sentence_polarity", 7019, 0, "but"),
    ("sentence_polarity/sentence_polarity", 1177, 0, "but"),
    ("sentence_polarity/sentence_polarity", 3757, 0, "but"),
    ("imdb/test", 8727, 1, "however"),
    ("imdb/test", 14744, 19, "however"),
)


def read_sentences(data: Path) -> list[tuple[str, str]]:
    """Return each sentence with its turning word."""
    files = {}
    for name in {name for name, *_ in SENTENCES}:
        with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            files[name] = [json.loads(line)["text"] for line in lines]
    sentences = []
    for name, line, number, word in SENTENCES:
        text = files[name][line]
        if name.startswith("imdb"):
            text = re.split(r"(?<=[.!?])\s+", text.replace("<br />", " "))[number]
        sentences.append((text, word))
    return sentences


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    flags = parser.parse_args()
    rows = []
    for folder in flags.runs:
        subject = open_subject(Run.load(folder))
        for number, (text, word) in enumerate(read_sentences(flags.data)):
            document = explain(subject, subject.read(text)).document
            first = document["findings"][0]
            value = round(document["prediction"]["value"], 3)
            rows.append(
                {
                    "run": folder.name,
                    "sentence": number,
                    "word": word,
                    "named": f"'{word}'" in first["text"] and first["confirmed"],
                    "prediction": document["prediction"]["text"],
                    "p": value,
                    "check": first["check"],
                }
            )
        mine = [row for row in rows if row["run"] == folder.name]
        print_row({"run": folder.name, "named": sum(row["named"] for row in mine), "of": len(mine)})
    write_record(flags.json, rows=rows)

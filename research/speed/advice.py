"""Check `seqloom advise` on ten data sets: is the winner of a comparison among its first three models?

    python -m research advice look --data DATA --out FILE     ask for advice on all data sets and store it
    python -m research advice table                           print the table of docs/how-to/choose.md
    python -m research advice store                           write src/seqloom/lab/advise/measurements.json

`table` reads the stored advice and the records of `seqloom compare` in research/results/compare, one per data set.
`store` collects measurements from all records in research/results.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from research.record import RESULTS, Stopwatch, build_parser, describe_run, format_record
from research.speed.advice_records import collect
from seqloom.lab.advise import measurements
from seqloom.lab.stats.metrics import METRICS

SETS: dict[str, tuple[str, ...]] = {
    "snips": ("snips", "--target", "intent"),
    "names_nationality": ("names_nationality",),
    "GunPoint": ("ucr_uea/GunPoint",),
    "JapaneseVowels": ("ucr_uea/JapaneseVowels",),
    "ETTh1": ("ett/ETTh1.csv.gz",),
    "spoken_digits": ("spoken_digits", "--target", "part_1"),
    "ud_english_ewt": ("ud_english_ewt",),
    "tatoeba_fra_eng": ("tatoeba_fra_eng", "--input", "column_1", "--target", "column_2"),
    "imdb": ("imdb",),
    "chnsenticorp_htl": ("chnsenticorp_htl",),
}
FIRST = 3


def main() -> None:
    flags = build_parser(__doc__, record=False)
    flags.add_argument("what", choices=["look", "table", "store"])
    flags.add_argument("--data", type=Path, help="the folder of the data sets")
    flags.add_argument("--sets", default=",".join(SETS), help="some of them, separated by commas")
    flags.add_argument("--seconds", type=float, default=22.0)
    flags.add_argument("--out", type=Path, default=RESULTS / "2026-11-18" / "advice.json")
    args = flags.parse_args()
    if args.what == "store":
        text = json.dumps(collect(RESULTS), indent=1) + "\n"
        measurements.FILE.write_text(text, encoding="utf-8")
    elif args.what == "table":
        print(table(json.loads(args.out.read_text(encoding="utf-8")), comparisons(RESULTS / "compare")))
    elif args.data is None:
        flags.error("look needs --data, the folder of the data sets")
    else:
        look(args.data, args.sets.split(","), args.seconds, args.out)


def look(data: Path, sets: list[str], seconds: float, out: Path) -> None:
    """Ask for advice on each set in a separate process; keep what the file says of other sets."""
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"date": "", "sets": {}}
    before = {name: {"date": stored["date"]} | entry for name, entry in stored["sets"].items()}
    results = {}
    for name in sets:
        path, *options = SETS[name]
        command = [sys.executable, "-m", "seqloom", "advise", str(data / path), *options, "--seconds", str(seconds)]
        start = Stopwatch()
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=os.environ)
        entry = json.loads(done.stdout)
        entry["date"] = describe_run()["date"]
        entry["wall_seconds"] = round(start.seconds, 1)
        entry["commands"] = [line.replace(str(data), "DATA") for line in entry["commands"]]
        results[name] = entry
        print(name, entry["wall_seconds"], *first_models(entry), file=sys.stderr, flush=True)
    document = {
        "study": "advice",
        **describe_run(command=f"python -m research advice look --data DATA --seconds {seconds:g}"),
        "sets": {name: results.get(name, before.get(name)) for name in SETS if name in results or name in before},
    }
    out.write_text(format_record(document), encoding="utf-8")


def first_models(entry: dict[str, Any]) -> list[str]:
    """Return the models that are advised first."""
    return [model["model"] for model in entry["models"][:FIRST]]


def comparisons(folder: Path) -> dict[str, dict[str, Any]]:
    """Load the finished records of `seqloom compare` by the name of the data set, which is that of the file."""
    records = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    return {name: record for name, record in records.items() if record["study"] == "compare" and record["finished"]}


def winner(record: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the name with the best test score, and the names within its interval; a baseline is `linear`."""
    rows = [row for row in record["rows"] if row["test"] is not None]
    sign = -1 if METRICS[record["metric"]].higher else 1
    rows.sort(key=lambda row: sign * row["test"]["mean"])
    best = rows[0]["test"]
    half = math.inf if best["half"] is None else best["half"]  # unknown with very few rows
    even = [row for row in rows[1:] if abs(row["test"]["mean"] - best["mean"]) <= half]
    return _name(rows[0]), list(dict.fromkeys(_name(row) for row in even))


def _name(row: dict[str, Any]) -> str:
    return "linear" if row["baseline"] else str(row["name"])


def table(advice: dict[str, Any], compared: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table, with the winner's columns if there are comparisons."""
    heads = ["data", "task", "median length", "information within", "linear", "advised first"]
    heads += ["winner of the comparison", "among the three"] if compared else []
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    hits = near = 0
    for name, entry in advice["sets"].items():
        facts, chosen = entry["facts"], first_models(entry)
        b, reach = facts["baseline"], facts["information"]["reach"]
        linear = f"{b['metric']} {b['linear']:.3f}" if b else "none"
        cells = [name, facts["kind"], f"{facts['median']:.0f}", f"{reach} steps", linear, ", ".join(chosen)]
        if name in compared:
            best, even = winner(compared[name])
            hits += best in chosen
            near += not {best, *even}.isdisjoint(chosen)
            tied = f" (even: {', '.join(even)})" if even else ""
            cells += [best + tied, "yes" if best in chosen else "no"]
        elif compared:
            cells += ["not compared yet", ""]
        lines.append(f"| {' | '.join(cells)} |")
    if compared:
        known = sum(name in compared for name in advice["sets"])
        lines.append(f"\nThe winner is among the first three on {hits} of {known} data sets,")
        lines.append(f"it or one that chance may have put behind it on {near}.")
    return "\n".join(lines)

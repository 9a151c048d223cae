"""Run `seqloom compare` on public data sets as a newcomer would, and check each answer.

python -m research answers --data DATA [--only snips imdb] [--budget 4m] [--out FILE] [--work FOLDER]

An answer is good if the command exits with 0, keeps its budget within 10 %, prints a table, its sentence agrees with
the scores of the table, and the command that it names next predicts new rows. The record is written after each data
set; data sets that it already holds are replaced.
"""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.record import Stopwatch, build_parser, write_record

SEQLOOM = [sys.executable, "-m", "seqloom"]
TOLERANCE = 1.1  # how much longer than its budget a comparison may take
NEW_LINES = 20
LOWER = {"loss", "log_loss", "perplexity", "mae", "mse", "rmse", "smape", "mase", "cer", "wer", "per"}  # is better


@dataclass(frozen=True)
class DataSet:
    """One data set: what is compared, and new rows to predict.

    Attributes:
        data: The paths below the data folder, one or two parallel ones.
        options: Further options of the command.
        new: The file from which new rows are taken.
        convert: Makes a file of another format from `data`; for formats that seqloom does not read.
    """

    data: str
    options: str = ""
    new: str = ""
    convert: Callable[[Path, Path], None] | None = None


def convert_scan(source: Path, target: Path) -> None:
    """Write lines such as "IN: jump OUT: I_JUMP" as a table."""
    lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    pairs = (line.removeprefix("IN: ").split(" OUT: ") for line in lines)
    target.write_text("command\tactions\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))


SETS = {
    "names": DataSet("names_nationality/names.csv.gz"),
    "imdb": DataSet("imdb", new="imdb/test.jsonl.gz"),
    "snips-intent": DataSet("snips", "--input tokens --target intent", "snips/test.jsonl.gz"),
    "snips-slots": DataSet("snips", "--input tokens --target slots", "snips/test.jsonl.gz"),
    "sentence-polarity": DataSet("sentence_polarity/sentence_polarity.jsonl.gz"),
    "hotels": DataSet("chnsenticorp_htl/chnsenticorp_htl.csv.gz"),
    "ewt": DataSet("ud_english_ewt", new="ud_english_ewt/en_ewt-ud-test.conllu.gz"),
    "conll2000": DataSet("conll2000", new="conll2000/test.txt.gz"),
    "tatoeba": DataSet("tatoeba_fra_eng/fra.txt.gz", "--input column_1 --target column_2"),
    "multi30k": DataSet("multi30k/raw/train.de.gz,multi30k/raw/train.en.gz", new="multi30k/raw/val.de.gz"),
    "e2e": DataSet("e2e_nlg", "--input mr --target ref", "e2e_nlg/devset.csv.gz"),
    "scan": DataSet("scan/tasks_train_simple.txt.gz", "--input command --target actions", convert=convert_scan),
    "etth1": DataSet("ett/ETTh1.csv.gz"),
    "airline": DataSet("forecast_small/airline-passengers.csv.gz"),
    "temperatures": DataSet("forecast_small/daily-min-temperatures.csv.gz"),
    "gunpoint": DataSet("ucr_uea/GunPoint", new="ucr_uea/GunPoint_TEST.ts.gz"),
    "italy-power": DataSet("ucr_uea/ItalyPowerDemand", new="ucr_uea/ItalyPowerDemand_TEST.ts.gz"),
    "japanese-vowels": DataSet("ucr_uea/JapaneseVowels", new="ucr_uea/JapaneseVowels_TEST.ts.gz"),
    "spoken-digits": DataSet("spoken_digits", "--input audio --target part_1"),
}


def main() -> int:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--budget", type=int, default=4, help="minutes for each comparison")
    parser.add_argument("--out", type=Path, help="the record to write or to add to")
    parser.add_argument("--work", type=Path, help="folder for the comparisons; by default a temporary one")
    args = parser.parse_args()
    answers: dict[str, Any] = {}
    if args.out and args.out.exists():
        answers = {answer["name"]: answer for answer in json.loads(args.out.read_text())["answers"]}
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        for name in args.only:
            answers[name] = answer = ask(name, SETS[name], args.data.resolve(), args.budget, work)
            print(name, json.dumps({k: answer[k] for k in ("seconds", "problems", "verdict")}), flush=True)
            write_record(args.out, study="answers", answers=list(answers.values()))
    return int(any(answers[name]["problems"] for name in args.only))


def ask(name: str, one: DataSet, data: Path, minutes: int, work: Path) -> dict[str, Any]:
    """Compare on one data set and check the answer."""
    folder = work / name
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir(parents=True)
    source = ",".join(str(data / path) for path in one.data.split(","))
    if one.convert:
        one.convert(Path(source), folder / f"{name}.tsv")
        source = f"{name}.tsv"
    words = ["compare", source, *shlex.split(one.options), "--budget", f"{minutes}m"]
    load, began = os.getloadavg()[0], Stopwatch()
    process = run(words, folder)
    seconds = began.seconds
    (folder / "stdout.txt").write_text(process.stdout)
    (folder / "stderr.txt").write_text(process.stderr)
    answer: dict[str, Any] = {
        "name": name,
        "command": shlex.join(["seqloom", *words]).replace(f"{data}/", ""),
        "budget": 60 * minutes,
        "seconds": round(seconds, 1),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "rc": process.returncode,
        "problems": [],
        "verdict": None,
    }
    problems = answer["problems"]
    if process.returncode:
        problems.append(f"exit {process.returncode}: {process.stderr.strip()[-300:]}")
    if seconds > TOLERANCE * 60 * minutes:
        problems.append(f"took {seconds:.0f} s")
    if too_wide := [line for line in process.stdout.splitlines() if len(line) > 80]:
        problems.append(f"wider than 80 columns: {too_wide[0]}")
    documents = list(folder.glob("comparisons/*/study.json"))
    if not documents:
        return answer
    document = json.loads(documents[0].read_text(encoding="utf-8"))
    answer |= {"verdict": document["verdict"], "metric": document["metric"], "recommended": document["recommended"]}
    answer["scores"] = {row["label"]: row["test"]["mean"] for row in document["rows"] if row["test"]}
    answer["stopped"] = {row["label"]: row["valid"] for row in document["rows"] if not row["test"] and row["valid"]}
    answer["plan"] = document["plan"]
    problems += check_verdict(document)
    problems += [f"{row['label']}: {row['note']}" for row in document["rows"] if row["note"].startswith("failed")]
    problems += check_prediction(answer, process.stderr, data / (one.new or one.data), folder)
    return answer


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run([*SEQLOOM, *words], check=False, cwd=folder, env=environment, capture_output=True, text=True)


def check_verdict(document: dict[str, Any]) -> list[str]:
    """Compare the sentence with the scores; return what does not agree."""
    problems = []
    verdict, margin = document["verdict"], document["settings"]["margin"]
    rows = {row["label"]: row["test"]["mean"] for row in document["rows"] if row["test"]}
    sign = -1 if document["metric"] in LOWER else 1
    chosen = next((row for row in document["rows"] if row["name"] == document["recommended"]), None)
    if chosen is None:
        return ["nothing is recommended"]
    if chosen["label"] not in verdict:
        problems.append(f"the sentence does not name {chosen['label']}")
    score = rows[chosen["label"]]
    percent = bool(re.search(r"\d%\)", verdict))
    for label, value in rows.items():
        lead = sign * (value - score)
        if lead > margin / 100 * (1 if percent else abs(score)) and document["has_learned"]:
            problems.append(f"{label} ({value:.4g}) is ahead of {chosen['label']} ({score:.4g}), which is recommended")
    for label, value in rows.items():
        for text in re.findall(rf"{re.escape(label)}(?: \(|, )[^()\d]*?(-?\d[\d.]*)(?=%?\))", verdict):
            number = float(text) / (100 if percent else 1)
            if abs(number - value) > 0.51 * 10 ** -len(text.partition(".")[2]) / (100 if percent else 1):
                problems.append(f"the sentence gives {label} {text}, the table {value:.5g}")
    return problems


def check_prediction(answer: dict[str, Any], stderr: str, source: Path, folder: Path) -> list[str]:
    """Run the command that the comparison names next on new rows."""
    commands = [line.strip() for line in stderr.splitlines() if "/best" in line and line.startswith("  seqloom")]
    commands = [line for line in commands if "evaluate" not in line]
    if not commands:
        return ["no command uses `best`"]
    words = shlex.split(commands[0])[1:]
    words = [str(take_rows(source, folder)) if word == "NEW_FILE" else word for word in words]
    process = run(words, folder)
    lines = process.stdout.splitlines()
    (folder / "predictions.txt").write_text(process.stdout)
    answer["predict"] = {"command": commands[0], "rc": process.returncode, "lines": len(lines), "first": lines[:2]}
    return [] if process.returncode == 0 and lines else [f"{commands[0]}: {process.stderr.strip()[-300:]}"]


def take_rows(source: Path, folder: Path) -> Path:
    """Write the first rows of a file to a new one; series, forecasts and recordings need whole files."""
    name = source.name.removesuffix(".gz")
    if source.is_dir():
        with tarfile.open(next(source.glob("*.tar.xz"))) as archive:
            members = [member for member in archive if member.isfile()][:NEW_LINES]
            archive.extractall(folder / "recordings", members, filter="data")
        return folder / "recordings"
    if name.endswith(".ts") or "forecast" in str(source) or "ett" in str(source):
        return source
    place = folder / f"new-{name}"
    if name.startswith("tasks_"):  # SCAN, of which a table was made
        place = folder / "new-scan.tsv"
        lines: Iterable[str] = (folder / "scan.tsv").read_text().splitlines()
    else:
        lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    place.write_text("\n".join(list(lines)[: NEW_LINES + 1]) + "\n", encoding="utf-8")
    return place

"""Train on a file that is larger than the allowed memory, predict all of it, and report the peak memory of both.

    python -m research large_file [--bytes 5e9] [--folder DIR] [--json results.json]

The file is generated: texts of 40 to 259 words out of 30,000; the label says whether one word occurs.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from research.record import Stopwatch, build_parser, write_record

TRAIN = "--model gru --hidden 32 --embedding 32 --steps 200 --threads 1"
PREDICT = "--keep number"


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--bytes", type=float, default=5e9)
    parser.add_argument(
        "--folder", type=Path, help="where the file, the cache and the run lie; by default a temporary one"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = args.folder or Path(own)
        file = folder / "large.jsonl"
        rows = write(file, int(args.bytes))
        seqloom = [sys.executable, "-m", "seqloom"]
        where = ["--runs", str(folder / "runs"), "--name", "large"]
        usage = {"train": run([*seqloom, "train", str(file), *TRAIN.split(), *where], folder, "train.out")}
        predict = [*seqloom, "predict", str(folder / "runs" / "large"), str(file), *PREDICT.split()]
        usage["predict"] = run(predict, folder, "predicted.jsonl")
        with (folder / "predicted.jsonl").open("rb") as lines:
            usage["predict"]["rows"] = sum(1 for _ in lines)
        data = {"bytes": file.stat().st_size, "rows": rows}
    print(json.dumps(usage, indent=1))
    commands = f"seqloom train large.jsonl {TRAIN}; seqloom predict large large.jsonl {PREDICT}"
    write_record(args.json, commands=commands, data=data, found=usage)


def write(file: Path, size: int) -> int:
    """Write rows until the file has this many bytes; return their number."""
    draw = random.Random(0)
    words = [f"w{i:05d}" for i in range(30_000)]
    rows = written = 0
    with file.open("w") as out:
        while written < size:
            text = draw.choices(words, k=draw.randint(40, 259))
            label = draw.random() < 0.5
            if label:
                text[draw.randrange(len(text))] = "found"
            written += out.write(json.dumps({"number": rows, "text": " ".join(text), "label": "yn"[not label]}) + "\n")
            rows += 1
    return rows


def run(command: list[str], folder: Path, name: str) -> dict[str, Any]:
    """Run a command with its output in the file `name`; return its memory and time."""
    start = Stopwatch()
    environment = os.environ | {"SEQLOOM_CACHE": str(folder / "cache")}
    with (folder / name).open("wb") as out:
        process = subprocess.Popen(command, stdout=out, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    seconds = {"seconds": start.seconds, "user_seconds": used.ru_utime}
    return {"peak_rss_mib": used.ru_maxrss / 1024} | seconds

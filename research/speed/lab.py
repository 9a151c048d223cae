"""Run `seqloom train` on real data sets, one command each, and report the test results.

    python -m research lab --data ../shared/data --runs runs [--only imdb-gru,hotel-gru] [--json results.json]

A finished run is not trained again. Settings were chosen without the test rows, which each command reads once.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from research.record import build_parser, write_record
from seqloom.lab.training.results import summarise_run
from seqloom.lab.training.run import Run

# name: (data, flags, metric, what it should reach)
TRAININGS = {
    "imdb-gru": ("imdb", "--model gru", "accuracy", ">= 0.86"),
    "imdb-lstm": ("imdb", "--model lstm", "accuracy", ">= 0.86"),
    "imdb-attn_rnn": ("imdb", "--model attn_rnn", "accuracy", ">= 0.86"),
    "imdb-transformer": ("imdb", "--model transformer", "accuracy", ""),
    "hotel-gru": ("chnsenticorp_htl", "--model gru --epochs 4 --lr 0.002", "accuracy", ">= 0.88"),
    "hotel-lstm": ("chnsenticorp_htl", "--model lstm --epochs 4 --lr 0.002", "accuracy", ""),
    "hotel-attn_rnn": ("chnsenticorp_htl", "--model attn_rnn --epochs 4 --lr 0.002", "accuracy", ""),
    "hotel-bi_gru": ("chnsenticorp_htl", "--model bi_gru --epochs 4 --lr 0.002", "accuracy", ""),
    "hotel-bi_lstm": ("chnsenticorp_htl", "--model bi_lstm --epochs 4 --lr 0.002", "accuracy", ""),
    "hotel-transformer": ("chnsenticorp_htl", "--model transformer --epochs 4", "accuracy", ""),
    "etth1-gru": ("ett/ETTh1.csv.gz", "--kind forecast --borders ett --horizon 96 --model gru", "mse", "< 0.40"),
    "snips-bi_gru": ("snips", "--target intent --model bi_gru", "accuracy", ">= 0.97"),
    "names-gru": ("names_nationality", "--model gru", "accuracy", ""),
    "gunpoint-lstm": ("ucr_uea/GunPoint", "--model lstm", "accuracy", ""),
    "italy-lstm": ("ucr_uea/ItalyPowerDemand", "--model lstm", "accuracy", ""),
    "vowels-bi_lstm": ("ucr_uea/JapaneseVowels", "--model bi_lstm", "accuracy", ""),
    "shakespeare-gru": (
        "tiny_shakespeare",
        "--model gru --hidden 256 --lookback 64 --lr 0.004 --dropout 0.1 --epochs 6",
        "bits",
        "< 2.2",
    ),
    "shakespeare-large": (
        "tiny_shakespeare",
        "--model gru --hidden 512 --layers 2 --lookback 128 --lr 0.003 --dropout 0.4 --epochs 12",
        "bits",
        "< 2.2",
    ),
    "shakespeare-512": (
        "tiny_shakespeare",
        "--valid 0.05 --model gru --hidden 512 --lookback 50 --lr 0.003 --dropout 0.4 --epochs 14",
        "bits",
        "< 2.2",
    ),
}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--only", default=",".join(TRAININGS), help="names, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    rows = []
    for name in args.only.split(","):
        data, more, metric, aim = TRAININGS[name]
        folder = args.runs / name
        if not (folder / "run.json").exists() or not Run.load(folder).finished:
            again = ["--resume"] if (folder / "run.json").exists() else [str(args.data / data), *shlex.split(more)]
            where = ["--threads", str(args.threads), "--runs", str(args.runs), "--name", name]
            subprocess.run([sys.executable, "-m", "seqloom", "train", *again, *where], check=True)
        summary = summarise_run(Run.load(folder))
        low, high = summary["test_intervals"].get(metric, (None, None))
        fields = ("created", "steps", "epochs", "seconds", "best_step", "valid", "test", "test_intervals", "settings")
        row = {"name": name, "command": f"seqloom train DATA/{data} {more}", "aim": f"{metric} {aim}".strip()}
        rows.append(row | {metric: summary["test"][metric]} | {k: summary[k] for k in fields})
        print(f"{row['command']}: {metric} {summary['test'][metric]:.4f} ({low:.4f} to {high:.4f}), aim {aim or '-'}")
    write_record(args.json, threads=args.threads, runs=rows)

"""Fit the baselines of a comparison to data sets and print their test metrics. baselines.py DATA [--only NAME,NAME]."""

import tempfile
from pathlib import Path

from research.record import Stopwatch, build_parser, write_record
from seqloom.lab.compare.baselines.registry import fit_baseline
from seqloom.lab.compare.data import load_task
from seqloom.lab.compare.row_scores import load
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.stats.metrics import compute_scores


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = []
    for data in options.data:
        source = {"data": data, "options": {}}
        names = [name for name in options.only.split(",") if name] or list(baselines(load_task(source)))
        for name in names:
            with tempfile.TemporaryDirectory() as folder, use_one_thread():
                began = Stopwatch()
                result = fit_baseline(source, name, 64, f"{folder}/run", None, Path(folder))
                seconds = began.seconds
                metrics = {key: round(value, 4) for key, value in compute_scores(load(Path(folder))).values.items()}
            print(
                f"{Path(data).name} | {name} | {metrics} | fit {result['seconds']:.1f} s, all {seconds:.1f} s",
                flush=True,
            )
            facts = {"data": Path(data).name, "baseline": name, "test": metrics}
            rows.append(facts | {"fit_s": round(result["seconds"], 2), "all_s": round(seconds, 2)})
    write_record(options.json, rows=rows)

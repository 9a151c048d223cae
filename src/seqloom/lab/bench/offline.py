"""The speed of a run's model alone, as a process: `python -m seqloom.lab.bench.offline RUN`.

Standard input has the rows, a JSON list on one line. Each further line has a number of seconds, for which the model
predicts these rows, all in one batch; the rows per second are printed.
"""

from __future__ import annotations

import json
import sys
import time


def main(run: str) -> None:
    """Measure the model of a run as often as standard input asks."""
    from seqloom.lab.training.folders import find_run
    from seqloom.lab.training.predict import predict_pieces

    found = find_run(run)
    model, rows = found.model(), json.loads(sys.stdin.readline())
    list(predict_pieces(model, found.task, [rows]))
    for line in sys.stdin:
        start, count = time.perf_counter(), 0
        while (took := time.perf_counter() - start) < float(line) or not count:
            list(predict_pieces(model, found.task, [rows]))
            count += len(rows)
        print(count / took, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A job in several processes that train together, under torchrun: a GPU each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seqloom.lab.jobs.environment import environment
from seqloom.lab.jobs.runner import Job

JOB, ANSWER = ".job.json", ".answer.json"


def together(job: Job, own: Path, count: int) -> Any:
    """What the first of `count` processes returned, all of which have called the job's function."""
    answer = own / ANSWER
    answer.unlink(missing_ok=True)
    (own / JOB).write_text(json.dumps(asdict(job)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    with (own / "ranks.txt").open("ab") as log:
        code = subprocess.call([*command, "-m", __name__, str(own)], stdout=log, stderr=log, env=environment())
    found = json.loads(answer.read_bytes()) if answer.exists() else {}
    if code or "value" not in found:
        raise RuntimeError(found.get("failed") or f"torchrun ended with {code}; see {own / 'ranks.txt'}")
    return found["value"]


def main(own: Path) -> None:
    """One of the processes."""
    from seqloom.lab.jobs.call import alone, reason
    from seqloom.lab.training.checkpoint import write_file

    try:
        found = {"value": alone(Job(**json.loads((own / JOB).read_bytes())), own)}
    except Exception as error:
        with suppress(OSError):  # two may fail at once
            write_file(own / ANSWER, json.dumps({"failed": reason(error)}).encode())
        raise
    if os.environ["RANK"] == "0":
        write_file(own / ANSWER, json.dumps(found).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

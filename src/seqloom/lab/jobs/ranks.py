"""A job in several processes that train together under torchrun, one GPU each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from seqloom.lab.files.checkpoint import write_file
from seqloom.lab.files.sealed import JSON
from seqloom.lab.jobs.environment import child_environment
from seqloom.lab.jobs.function import call_function, format_error
from seqloom.lab.jobs.job import Job

JOB, ANSWER = ".job.json", ".answer.json"


def run_ranks(job: Job, own: Path, count: int) -> JSON:
    """Call the job's function in `count` processes and return the value of the first."""
    answer = own / ANSWER
    answer.unlink(missing_ok=True)
    (own / JOB).write_text(json.dumps(asdict(job)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    with (own / "ranks.txt").open("ab") as log:
        code = subprocess.call([*command, "-m", __name__, str(own)], stdout=log, stderr=log, env=child_environment())
    reply = json.loads(answer.read_bytes()) if answer.exists() else {}
    if code or "value" not in reply:
        raise RuntimeError(reply.get("failed") or f"torchrun ended with {code}; see {own / 'ranks.txt'}")
    return reply["value"]


def main(own: Path) -> None:
    """Run the job in one of the processes."""
    try:
        reply = {"value": call_function(Job(**json.loads((own / JOB).read_bytes())), own)}
    except Exception as error:
        with suppress(OSError):  # another process may have written it
            write_file(own / ANSWER, json.dumps({"failed": format_error(error)}).encode())
        raise
    if os.environ["RANK"] == "0":
        write_file(own / ANSWER, json.dumps(reply).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

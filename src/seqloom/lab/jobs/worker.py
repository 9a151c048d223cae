"""A process that runs jobs: it reads one per line from its parent and writes a line when a job has ended.

    in     {"key": ..., "function": ..., "settings": ..., "gpus": ...}
    out    {"result": {"key": ..., "value": ..., "failed": ..., "seconds": ...}, "peak": bytes}

The output of a job goes to log.txt in its folder. The process ends when its parent ends.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from seqloom.lab.jobs import memory
from seqloom.lab.jobs.job import Job


def main(folder: Path, core: str) -> None:
    """Run jobs until the parent ends, pinned to a core unless `core` is empty."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # not stdout, where jobs print
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    memory.prefer_killing()
    if core:
        os.sched_setaffinity(0, {int(core)})
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[lines], daemon=True).start()

    gc.disable()
    from seqloom.lab.jobs.call import call

    gc.freeze()  # objects of torch live on; skip them in the collection after every job
    gc.enable()
    while True:
        job = Job(**json.loads(lines.get()))
        _redirect_output(folder / job.key)
        memory.reset_peak()
        result = call(job, folder)
        gc.collect()
        answers.write(json.dumps({"result": asdict(result), "peak": memory.peak_bytes()}) + "\n")
        answers.flush()


def _listen(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    end_group(os.getpid())  # the parent is gone
    os._exit(1)


def end_group(pid: int) -> None:
    """End a worker and the processes that it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _redirect_output(own: Path) -> None:
    own.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(own / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    faulthandler.enable()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

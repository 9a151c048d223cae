"""Jobs as tasks of a Ray cluster: Ray places them, counts GPUs, and starts them again when a machine dies."""

from __future__ import annotations

import socket
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.jobs.address import check, missing
from seqloom.lab.jobs.call import call, reason
from seqloom.lab.jobs.runner import RESTARTS, Cluster, Job, Result
from seqloom.lab.jobs.storage import Storage, copied


class OnRay:
    def __init__(self, folder: Path, cluster: Cluster) -> None:
        check(cluster.address)
        import ray

        self.ray, self.folder, self.cluster = ray, folder, cluster
        self.mine = not ray.is_initialized()
        if self.mine:
            _connect(ray, cluster.address)
        self.remote = ray.remote(max_retries=RESTARTS)(there)
        self.jobs: dict[Any, Job] = {}  # by Ray's reference
        self.hopeless: list[Result] = []
        self.sign = folder / f".{uuid.uuid4().hex}"  # a machine that does not see it sees another folder

    def free(self) -> bool:
        if self.cluster.at_once is not None:
            return len(self.jobs) < self.cluster.at_once
        return len(self.jobs) < self.ray.cluster_resources().get("CPU", 0)

    def fits(self, job: Job) -> bool:
        if self.cluster.at_once is not None:
            return self.free()
        gpus = sum(other.gpus for other in self.jobs.values()) + job.gpus
        return self.free() and gpus <= self.ray.cluster_resources().get("GPU", 0)

    def start(self, job: Job) -> None:
        if self.cluster.at_once is None and not any(_holds(node, job) for node in self.ray.nodes()):
            need = f"{job.gpus:g} GPUs" if job.gpus else "a CPU"
            why = f"no machine of the cluster has {need}; where it grows when asked to, say how many jobs at_once"
            self.hopeless.append(Result(job.key, None, why))
            return
        self.sign.touch()
        task = self.remote.options(name=job.key, num_cpus=1, num_gpus=job.gpus)
        self.jobs[task.remote(job, self.folder, self.sign, self.cluster, sys.path)] = job

    def wait(self) -> list[Result]:
        if self.hopeless:
            return [self.hopeless.pop()]
        ready, _ = self.ray.wait(list(self.jobs))
        return [self._ended(self.jobs.pop(one), one) for one in ready]

    def _ended(self, job: Job, one: Any) -> Result:
        try:
            result: Result = self.ray.get(one)
            if self.cluster.storage is not None:
                Storage(self.cluster.storage, job.key).fetch(self.folder / job.key)
        except (self.ray.exceptions.RayError, OSError) as error:
            return Result(job.key, None, reason(error))
        return result

    def close(self) -> None:
        for one in self.jobs:
            self.ray.cancel(one, force=True)
        self.jobs = {}
        self.sign.unlink(missing_ok=True)
        if self.mine:
            self.ray.shutdown()


def _holds(node: dict[str, Any], job: Job) -> bool:
    has = node["Resources"]
    return node["Alive"] and has.get("CPU", 0) >= 1 and has.get("GPU", 0) >= job.gpus


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise missing(address) from None
    except (RuntimeError, ray.exceptions.RayError) as error:  # another version of Ray or Python
        raise UserError(f"the Ray cluster at {address!r} cannot be used: {error}") from error


def there(job: Job, folder: Path, sign: Path, cluster: Cluster, path: list[str]) -> Result:
    """The task, on the machine that Ray has chosen; `path` is where the modules are on the one that asks."""
    sys.path.extend(place for place in path if place not in sys.path)
    if cluster.storage is None:
        if not sign.exists():
            why = f"machine {socket.gethostname()} does not see {folder}; use a folder that all machines share"
            return Result(job.key, None, f"{why}, or give the cluster a storage")
        return call(job, folder)
    try:
        with tempfile.TemporaryDirectory() as work:
            own, copies = Path(work) / job.key, Storage(cluster.storage, job.key)
            copies.fetch(own)
            with copied(own, copies, cluster.copy_every):
                return call(job, Path(work))
    except Exception as error:  # of the storage
        return Result(job.key, None, reason(error))

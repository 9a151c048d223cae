"""Jobs as tasks of a Ray cluster: Ray places them, counts GPUs, and restarts them when a machine dies."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.jobs.call import call, format_error
from seqloom.lab.jobs.job import RESTARTS, Job, Result
from seqloom.lab.jobs.storage import Storage, copy_periodically

if TYPE_CHECKING:  # an optional package
    from ray import ObjectRef

ANSWER_SECONDS = 3.0  # time limit of each of two checks


@dataclass(frozen=True)
class Cluster:
    """Run jobs on a Ray cluster.

    Attributes:
        address: "auto", host:port or ray://host:port.
        storage: Needed unless all machines share the folder of the jobs: a location that all machines reach and fsspec
            supports (s3://bucket/path). Jobs' folders are copied there, to the machine that restarts a job, and at the
            end to the folder.
        copy_every: Seconds between copies to the storage.
        at_once: The number of jobs that are submitted to Ray at a time. Default: as many as fit; set it for an
            autoscaling cluster.
    """

    address: str = "auto"
    storage: str | None = None
    copy_every: float = 30.0
    at_once: int | None = None

    def check(self) -> None:
        """Raise an error within seconds if no cluster answers at the address."""
        check_cluster(self.address)

    def open(self, folder: Path) -> OnRay:
        return OnRay(folder, self)


class OnRay:
    """Runs jobs on a Ray cluster."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        check_cluster(cluster.address)
        import ray

        self.ray, self.folder, self.cluster = ray, folder, cluster
        self.connected_here = not ray.is_initialized()
        if self.connected_here:
            _connect(ray, cluster.address)
        self.remote = ray.remote(max_retries=RESTARTS)(run_task)
        self.jobs: dict[ObjectRef, Job] = {}
        self.impossible: list[Result] = []
        self.marker = folder / f".{uuid.uuid4().hex}"  # a machine that does not see this file does not share the folder

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
        if self.cluster.at_once is None and not any(_has_room(node, job) for node in self.ray.nodes()):
            need = count(job.gpus, "GPU") if job.gpus else "a CPU"
            why = f"no machine of the cluster has {need}; if the cluster can grow, set at_once to the number of jobs"
            self.impossible.append(Result(job.key, None, why))
            return
        self.marker.touch()
        task = self.remote.options(name=job.key, num_cpus=1, num_gpus=job.gpus)
        self.jobs[task.remote(job, self.folder, self.marker, self.cluster, sys.path)] = job

    def wait(self, seconds: float | None = None) -> list[Result]:
        if self.impossible:
            return [self.impossible.pop()]
        ready, _ = self.ray.wait(list(self.jobs), timeout=seconds)
        return [self._read_end(self.jobs.pop(one), one) for one in ready]

    def _read_end(self, job: Job, one: ObjectRef) -> Result:
        try:
            result: Result = self.ray.get(one)
            if self.cluster.storage is not None:
                Storage(self.cluster.storage, job.key).fetch(self.folder / job.key)
        except (self.ray.exceptions.RayError, OSError) as error:
            return Result(job.key, None, format_error(error))
        return result

    def close(self) -> None:
        for one in self.jobs:
            self.ray.cancel(one, force=True)
        self.jobs = {}
        self.marker.unlink(missing_ok=True)
        if self.connected_here:
            self.ray.shutdown()


def _has_room(node: dict[str, Any], job: Job) -> bool:
    has = node["Resources"]
    return node["Alive"] and has.get("CPU", 0) >= 1 and has.get("GPU", 0) >= job.gpus


def _connect(ray: ModuleType, address: str) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        raise no_cluster_error(address) from None
    except (RuntimeError, ray.exceptions.RayError) as error:  # another version of Ray or Python
        raise UserError(f"the Ray cluster at {address!r} cannot be used: {error}") from error


def run_task(job: Job, folder: Path, marker: Path, cluster: Cluster, path: list[str]) -> Result:
    """Run a job on the machine that Ray chose; `path` is the module path of the machine that started it."""
    sys.path.extend(place for place in path if place not in sys.path)
    if cluster.storage is None:
        if not marker.exists():
            why = f"machine {socket.gethostname()} does not see {folder}; use a folder that all machines share"
            return Result(job.key, None, f"{why}, or set the storage of the cluster")
        return call(job, folder)
    try:
        with tempfile.TemporaryDirectory() as work:
            own, copies = Path(work) / job.key, Storage(cluster.storage, job.key)
            copies.fetch(own)
            with copy_periodically(own, copies, cluster.copy_every):
                return call(job, Path(work))
    except Exception as error:  # the storage failed
        return Result(job.key, None, format_error(error))


def check_cluster(address: str) -> None:
    """Raise an error within seconds if Ray is not installed or no cluster answers; ray.init would wait for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("a cluster needs Ray; install it with: pip install ray")
    # Ray restarts a task that ran out of memory forever (task_oom_retries = -1), whatever its max_retries. The process
    # that submits tasks reads this limit from its environment when ray is imported. No option of a task sets it, and
    # ray.init refuses _system_config, which could, when it connects to a running cluster.
    os.environ.setdefault("RAY_task_oom_retries", str(RESTARTS))
    import ray

    if ray.is_initialized():
        return
    target = _resolve_address(address)
    if target == "auto":
        return  # this version of Ray resolves it elsewhere
    host, _, port = target.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError):
        raise no_cluster_error(address) from None
    if not target.startswith("ray://"):
        _check_is_ray(address, target)


def no_cluster_error(address: str) -> ValueError:
    cure = "start one with `ray start --head`, or give the host:port that it printed"
    return ValueError(f"there is no Ray cluster at {address!r}; {cure}")


def _resolve_address(address: str) -> str:
    """Resolve "auto" with a private function of Ray; a dead cluster leaves its address behind."""
    from ray._private import services

    if address != "auto" or not hasattr(services, "get_ray_address_from_environment"):
        return address
    try:
        return str(services.get_ray_address_from_environment(address, None))
    except ConnectionError:
        return ""


def _check_is_ray(address: str, target: str) -> None:
    """Raise an error if no Ray cluster listens there. Ray's private client has no time limit, so use a thread."""
    from ray import _raylet

    client = getattr(_raylet, "GcsClient", None)
    if client is None:
        return
    answers: list[Exception | None] = []

    def ask() -> None:
        try:
            client(address=target)
            answers.append(None)
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    error = answers[0] if answers else TimeoutError()
    if type(error).__name__ == "AuthenticationError":
        cure = "set RAY_AUTH_MODE=token, and give this machine the token of the first one (`ray get-auth-token` there)"
        raise UserError(f"the Ray cluster at {address!r} needs its token: {cure}")
    if error is not None:
        raise no_cluster_error(address)

"""Whether a Ray cluster is at an address, said within seconds: ray.init itself waits for minutes where nobody is."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading

from seqloom.core.errors import UserError
from seqloom.lab.jobs.runner import RESTARTS

ANSWER_IN = 3.0  # seconds for each of two questions


def check(address: str) -> None:
    """Raise where Ray is not installed, or no cluster that takes us answers."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("a cluster needs Ray, which is not installed: pip install seqloom[cluster]")
    os.environ.setdefault("RAY_task_oom_retries", str(RESTARTS))  # when memory runs out Ray starts a job again for ever
    import ray

    if ray.is_initialized():
        return
    found = _found(address)
    if found == "auto":
        return  # a Ray that keeps its rule elsewhere
    host, _, port = found.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_IN).close()
    except (OSError, ValueError):
        raise missing(address) from None
    if not found.startswith("ray://"):
        _ask(address, found)


def missing(address: str) -> ValueError:
    cure = "start one with `ray start --head`, or give the host:port that it printed"
    return ValueError(f"there is no Ray cluster at {address!r}; {cure}")


def _found(address: str) -> str:
    """What "auto" stands for, by one of Ray's inner parts: a cluster that died leaves its address behind."""
    from ray._private import services

    if address != "auto" or not hasattr(services, "get_ray_address_from_environment"):
        return address
    try:
        return str(services.get_ray_address_from_environment(address, None))
    except ConnectionError:
        return ""


def _ask(address: str, found: str) -> None:
    """Whether it is Ray that listens there. The client that asks is another inner part, with no time limit."""
    from ray import _raylet

    client = getattr(_raylet, "GcsClient", None)
    if client is None:
        return
    said: list[Exception | None] = []

    def ask() -> None:
        try:
            client(address=found)
            said.append(None)
        except Exception as error:
            said.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_IN)
    error = said[0] if said else TimeoutError()
    if type(error).__name__ == "AuthenticationError":
        cure = "set RAY_AUTH_MODE=token, and give this machine the token of the first one (`ray get-auth-token` there)"
        raise UserError(f"the Ray cluster at {address!r} wants its token: {cure}")
    if error is not None:
        raise missing(address)

"""Make the server of some runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqloom.lab.serve.app import build_app
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.runs import Runs
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.web.server import Server


@dataclass(frozen=True)
class Site:
    """What is served, and where.

    Attributes:
        runs: The runs.
        settings: Address and limits.
        metrics: Counts what happens.
        token: The bearer token; None if requests need none.
    """

    runs: Runs
    settings: ServeSettings
    metrics: Metrics
    token: str | None = None


def make_server(site: Site, when_ready: Callable[[str], None]) -> Server:
    """Return a server that is ready to run.

    Args:
        when_ready: Called with the address once the server answers.

    Raises:
        UserError: If the address, or the certificate, cannot be used.
    """
    app = build_app(site.runs, site.settings, site.metrics, site.token)
    server = Server(app, when_ready)
    site.metrics.connections.set_function(lambda: len(server.connections.all) + app.sockets.used)
    return server

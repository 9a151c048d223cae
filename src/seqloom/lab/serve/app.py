"""The routes of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from seqloom import __version__
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.serve import bodies
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.openapi import build_document
from seqloom.lab.serve.runs import Runs
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.stream_routes import StreamRoutes
from seqloom.lab.serve.streams import Streams
from seqloom.lab.web.bodies import read_object
from seqloom.lab.web.credentials import BearerToken
from seqloom.lab.web.gate import CLIENT, FACTS, HEALTH_PATHS, TURN, Gate, Policy, ServerState
from seqloom.lab.web.problems import RequestError, answer_problems, write_json
from seqloom.lab.web.server import Server
from seqloom.models.decoding.sampling import Sampling

HERE = Path(__file__).parent
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
)
# Path, file and type of what the pages need: they hold no data and ask for the token.
PAGES = (
    ("/", "page.html", "text/html; charset=utf-8"),
    ("/page.js", "page.js", "text/javascript; charset=utf-8"),
    ("/page-request.js", "page-request.js", "text/javascript; charset=utf-8"),
    ("/page.css", "page.css", "text/css; charset=utf-8"),
    ("/docs", "docs.html", "text/html; charset=utf-8"),
    ("/docs.js", "docs.js", "text/javascript; charset=utf-8"),
)
SENTENCES = {
    404: "there is no such route; predictions are at /v1/predict, and /docs lists all routes",
    405: "the route does not take this method; /docs lists the methods",
}
SWEEPS_PER_IDLE_TIME = 10  # looks for idle streams within the time after which they are dropped
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServeRoutes:
    """The routes of predictions, texts, runs and the state of the server."""

    def __init__(self, runs: Runs, settings: ServeSettings, metrics: Metrics, state: ServerState) -> None:
        self.runs, self.settings, self.metrics, self.state = runs, settings, metrics, state

    def add_to(self, app: FastAPI) -> None:
        add = app.add_api_route
        add("/v1/predict", self.predict, methods=["POST"], summary="Predict rows")
        add("/v1/generate", self.generate, methods=["POST"], summary="Generate texts")
        add("/v1/runs", self.list_runs, summary="List the runs")
        add("/v1/runs/{run}", self.describe_run, summary="Describe a run")
        add("/healthz", self.health, summary="Whether the process answers", name="healthz")
        add("/readyz", self.ready, summary="Whether new requests are welcome", name="readyz")
        add("/metrics", self.show_metrics, summary="Metrics for Prometheus", name="metrics")
        for path, file, kind in PAGES:
            add(path, _serve_file(HERE / file, kind), include_in_schema=False)

    async def predict(self, request: Request) -> Response:
        async with request.scope[TURN]:
            body = await read_object(request, bodies.PREDICT)
            run = self.runs.find(body.get("run"))
            request.scope[FACTS].update(run=run.name, rows=len(body["rows"]))
            if kind_of(run.version.run.task).continues_text:
                raise RequestError(409, f"run {run.name} is a language model, which continues a text; use /v1/generate")
            rows = run.check(body["rows"])
        results = await run.predict(rows, body.get("probabilities", False), request.scope[CLIENT])
        return write_json({"run": run.name, "step": rows.version.step, "results": results})

    async def generate(self, request: Request) -> Response:
        body = await read_object(request, bodies.GENERATE)
        run = self.runs.find(body.get("run"))
        request.scope[FACTS].update(run=run.name)
        if not kind_of(run.version.run.task).continues_text or "baseline" in run.version.run.record:
            raise RequestError(409, f"run {run.name} does not continue texts; use /v1/predict")
        prompts, most = body.get("prompts", [""]), self.settings.max_tokens
        max_tokens = body.get("max_tokens", min(200, most))
        if max_tokens > most or any(len(prompt) > self.settings.max_steps for prompt in prompts):
            limits = f"{most:,} tokens and prompts of {self.settings.max_steps:,} characters"
            raise RequestError(413, f"this server generates at most {limits}")
        sampling = Sampling(
            body.get("temperature", 1.0), body.get("top_k", 0), body.get("top_p", 1.0), body.get("seed")
        )
        version, texts = await run.generate(prompts, sampling, max_tokens, body.get("count", 1), request.scope[CLIENT])
        return write_json({"run": run.name, "step": version.step, "results": texts})

    async def list_runs(self) -> Response:
        return write_json({"runs": [run.version.describe() for run in self.runs.by_name.values()]})

    async def describe_run(self, run: str) -> Response:
        return write_json(self.runs.find(run).version.describe())

    async def health(self) -> Response:
        return write_json({"status": "ok"})

    async def ready(self) -> Response:
        if self.state.is_stopping:
            return write_json({"error": "the server is stopping"}, 503)
        return write_json({"status": "ready"})

    async def show_metrics(self) -> Response:
        return Response(self.metrics.write(), media_type=METRICS_TYPE)


def _serve_file(path: Path, kind: str) -> Any:  # noqa: ANN401  # a route
    content = path.read_bytes()

    async def show() -> Response:
        return Response(content, media_type=kind, headers={"Content-Security-Policy": PAGE_POLICY})

    return show


def build_app(runs: Runs, settings: ServeSettings, metrics: Metrics, token: str | None) -> Gate:
    """Build the ASGI application of a server.

    Args:
        token: The bearer token that requests need; None for none.
    """
    streams, state = Streams(runs, settings, metrics), ServerState()

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        await runs.start()
        sweep = asyncio.create_task(_drop_idle(streams, settings.idle))
        yield
        sweep.cancel()
        streams.close_all()
        await runs.stop()

    app = FastAPI(
        title="seqloom",
        version=__version__,
        generate_unique_id_function=attrgetter("name"),  # the routes' names are the operations of OpenAPI
        openapi_url=None,  # the framework's own pages load scripts from other sites
        lifespan=live,
        redirect_slashes=False,
    )
    ServeRoutes(runs, settings, metrics, state).add_to(app)
    StreamRoutes(streams, settings, state).add_to(app)

    async def describe() -> Response:
        return write_json(build_document(app, runs, settings, token is not None))

    app.add_api_route("/openapi.json", describe, include_in_schema=False)
    answer_problems(app, SENTENCES)
    policy = Policy(
        BearerToken(token, (*HEALTH_PATHS, *(path for path, _, _ in PAGES))).check,
        metrics.count_request,
        checks_host=token is None or not settings.trusted_proxies,  # a proxy may pass on the name that clients use
    )
    gate = Gate(app, settings, policy, state)
    metrics.in_flight.set_function(lambda: gate.requests.used)
    return gate


async def _drop_idle(streams: Streams, idle: float) -> None:
    while True:
        await asyncio.sleep(idle / SWEEPS_PER_IDLE_TIME)
        streams.drop_idle()


def make_server(
    runs: Runs, settings: ServeSettings, metrics: Metrics, token: str | None, when_ready: Callable[[str], None]
) -> Server:
    """Return a server that is ready to run.

    Args:
        token: The bearer token that requests need; None for none.
        when_ready: Called with the address once the server answers.

    Raises:
        UserError: If the address, or the certificate, cannot be used.
    """
    app = build_app(runs, settings, metrics, token)
    server = Server(app, when_ready)
    metrics.connections.set_function(lambda: len(server.connections.all) + app.sockets.used)
    return server

"""The served runs by name. A new checkpoint is loaded beside the old one, which finishes the requests it has begun."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.serve.batches import Batches, run_together
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.model_version import ModelVersion, find_signature, load_version
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.turns import RequestPart
from seqloom.lab.training.folders import find_run_folder
from seqloom.lab.web import logs
from seqloom.lab.web.problems import RequestError
from seqloom.models.decoding.sampling import Sampling

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_STREAMS_PER_CALL = 4096


@dataclass(frozen=True)
class CheckedRows:
    """Rows of a request."""

    version: ModelVersion  # the checkpoint that predicts them
    rows: list[Any]  # the rows, as objects of columns
    steps: list[int]  # the time steps of each row


class ServedRun:
    """A run under the name that requests use; `version` is its newest checkpoint."""

    def __init__(self, version: ModelVersion, folder: Path, settings: ServeSettings, metrics: Metrics) -> None:
        self.name, self.version, self.folder, self.settings = version.name, version, folder, settings
        self._metrics = metrics
        self._rows_counter, self._steps_counter = metrics.rows.labels(self.name), metrics.steps.labels(self.name)
        self._failed = ""  # the signature that could not be loaded
        seconds = settings.wait / 1000
        calls = {kind: metrics.call_rows.labels(self.name, kind) for kind in ("predict", "stream")}
        self.rows = Batches(_predict, settings.batch, seconds, f"{self.name}-predict", calls["predict"].observe)
        self.steps = Batches(_step, MOST_STREAMS_PER_CALL, seconds, f"{self.name}-step", calls["stream"].observe)
        self.texts = Batches(_generate, 1, 0.0, f"{self.name}-generate")
        metrics.waiting.labels(self.name).set_function(lambda: self.rows.rows)

    def check(self, rows: list[Any]) -> CheckedRows:
        """Return rows that the newest checkpoint can read; raises a RequestError."""
        version = self.version
        checked = version.format.check_rows(rows)
        return CheckedRows(version, checked, [version.format.count_steps(row) for row in checked])

    async def predict(self, rows: CheckedRows, probabilities: bool, client: str) -> list[dict[str, Any]]:
        """Return the result of each row; raises a RequestError."""
        if not rows.rows:
            return []
        results = await self.rows.run((rows.version, probabilities), rows.rows, rows.steps, client)
        self._rows_counter.inc(len(results))
        return results

    async def generate(
        self, prompts: list[str], sampling: Sampling, max_tokens: int, count: int, client: str
    ) -> tuple[ModelVersion, list[dict[str, Any]]]:
        """Return the version that answered and the texts; raises a RequestError."""
        version = self.version
        texts = version.continue_texts(prompts, sampling, max_tokens, count)
        steps = [count * max_tokens] * len(prompts)  # prompts take turns with those of other requests
        results = await self.texts.run(version, [texts] * len(prompts), steps, client) if prompts else []
        return version, [text for some in results for text in some]

    def count_steps(self, number: int) -> None:
        self._steps_counter.inc(number)

    async def look_for_checkpoint(self) -> bool:
        """Load a new checkpoint if there is one, and return whether it is served now."""
        signature = await asyncio.to_thread(find_signature, self.folder)
        if signature is None or signature in (self.version.signature, self._failed):
            return False
        try:
            trust = self.version.trusted_code
            version = await asyncio.to_thread(load_version, self.name, self.folder, self.settings, trust)
        except Exception:  # the training may be writing, or the folder may be replaced; the old version stays
            self._failed = signature
            self._metrics.loads.labels(self.name, "failed").inc()
            logs.write("checkpoint not loaded", {"run": self.name}, level=logging.WARNING, failed=True)
            return False
        self.version, self._failed = version, ""
        self._metrics.loads.labels(self.name, "loaded").inc()
        logs.write("checkpoint loaded", {"run": self.name, "step": version.step})
        return True


def _predict(key: tuple[ModelVersion, bool], parts: Sequence[RequestPart]) -> list[Any]:
    """Predict the rows of several requests; a request with a bad row fails alone."""
    version, probabilities = key

    def call(some: list[RequestPart]) -> list[Any]:
        rows = [row for part in some for row in part.rows]
        results = iter(version.predict(rows, probabilities, some[0].first))
        return [[next(results) for _ in part.rows] for part in some]

    return run_together(call, parts, RequestError)


def _step(key: tuple[ModelVersion, bool], parts: Sequence[RequestPart]) -> list[Any]:
    """Run steps of the streams of several requests; return, for each stream, its results or the problem."""
    version, probabilities = key
    stepper = version.stepper
    assert stepper is not None
    streams = [stream for part in parts for stream in part.rows]
    # a faulty run must not stop the others
    results = iter(run_together(lambda some: stepper.run(some, probabilities), streams, RequestError))
    return [[next(results) for _ in part.rows] for part in parts]


def _generate(key: ModelVersion, parts: Sequence[RequestPart]) -> list[Any]:
    """Continue one prompt; the row is the iterator of the texts of its request."""
    return [[next(texts) for texts in part.rows] for part in parts]


class Runs:
    """All served runs.

    Args:
        runs: By name; the order is that of the command.
        seconds: Seconds between two checks for new checkpoints; 0 for no checks.
    """

    def __init__(self, runs: Mapping[str, ServedRun], seconds: float) -> None:
        self.by_name, self._seconds = dict(runs), seconds
        self._stack = AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None

    def find(self, name: str | None) -> ServedRun:
        """Return the run of a request; the name may be left out if there is only one.

        Raises:
            RequestError: 404 if there is no such run, 422 if the request must name one.
        """
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if name is None:
            raise RequestError(422, f"run is missing; name one of {', '.join(self.by_name)}")
        if name not in self.by_name:
            raise RequestError(404, f"there is no such run; this server has {', '.join(self.by_name)}")
        return self.by_name[name]

    async def start(self) -> None:
        for run in self.by_name.values():
            for batches in (run.rows, run.steps, run.texts):
                await self._stack.enter_async_context(batches)
        if self._seconds:
            self._watch = asyncio.create_task(self._look_for_checkpoints())

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._stack.aclose()

    async def _look_for_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            for run in self.by_name.values():
                await run.look_for_checkpoint()


def load_runs(places: Sequence[str], settings: ServeSettings, metrics: Metrics, trust: bool = False) -> Runs:
    """Load runs.

    Args:
        places: Folders of runs or their names in runs/; "NAME=FOLDER" serves a run under another name.
        trust: Whether Python code stored in the runs may be executed.

    Raises:
        UserError: If a folder is not a run, or two runs have the same name.
    """
    runs: dict[str, ServedRun] = {}
    for place in places:
        given, _, rest = place.partition("=")
        has_name = bool(rest) and "/" not in given
        folder = find_run_folder(rest if has_name else place)
        name = given if has_name else folder.resolve().name
        if not RUN_NAME.fullmatch(name):
            raise UserError(f"{name!r} cannot name a run in a request; serve it under another name: NAME={folder}")
        if name in runs:
            raise UserError(f"two runs are called {name!r}; serve one of them under another name: NAME={folder}")
        runs[name] = ServedRun(load_version(name, folder, settings, trust), folder, settings, metrics)
    return Runs(runs, settings.reload)

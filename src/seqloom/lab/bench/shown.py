"""Times as a table with its caption, and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from seqloom.lab.bench.race import Row
from seqloom.lab.bench.settings import BenchSettings
from seqloom.tools import doctor


def table(settings: BenchSettings, found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as they are printed; what is the same in all of them stands in the caption."""
    several = [name for name in ("threads", "dtype") if len(getattr(settings, name)) > 1]
    last = ["reason"] if any(row.reason for row in found) else []
    return [
        {"cell": row.cell, "kernel": f"{row.kernel} ({row.library})" if row.library else row.kernel}
        | {name: getattr(row, name) for name in several}
        | {"H": row.hidden, "B": row.batch, "T": row.length, "pass": row.pass_}
        | {"us/step": row.us_per_step, "x nn.GRU": row.ratio_to_gru}
        | (_in_a_graph(row) if row.device == "cuda" else {})
        | {"saved MB": None if row.saved_bytes is None else row.saved_bytes / 1e6}
        | ({"peak MB": None if row.peak_bytes is None else row.peak_bytes / 1e6} if row.device == "cuda" else {})
        | {name: getattr(row, name) for name in last}
        for row in found
    ]


def _in_a_graph(row: Row) -> dict[str, Any]:
    return {"graph us/step": row.graph_us_per_step, "x nn.GRU in a graph": row.graph_ratio_to_gru}


def caption(settings: BenchSettings) -> str:
    """What ran where, and how it was timed."""
    versions, here = doctor.versions(), doctor.hardware()
    machine = here["gpus"][0]["name"] if settings.device == "cuda" else f"{here['cpu']}, {here['instructions']}"
    how = "median call in the best" if settings.device == "cuda" else "fastest call"
    graph = "graph: the same call recorded as a CUDA graph; " if settings.device == "cuda" else ""
    given = "ragged: lengths from T to 1, torch.nn packs and pads them; " if settings.ragged else ""
    return (
        f"{machine}, {here['cores']} cores; threads: {settings.join('threads')}; {settings.join('dtype')}; "
        f"torch {versions['torch']}, seqloom {versions['seqloom']}, python {versions['python']}\n"
        f"whole layers, input size = H; {given}denormals flushed on the CPU; {how} of {settings.rounds} rounds, "
        f"in which every layer has its turn; {graph}x nn.GRU above 1 is faster than torch.nn.GRU\n"
        f"{settings.command()}"
    )


def document(settings: BenchSettings, found: Sequence[Row], finished: bool = True) -> dict[str, Any]:
    """Everything that a reader needs to believe the times, and to take them again."""
    return {
        "command": settings.command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings.model_dump(mode="json"),
        "versions": doctor.versions(),
        "hardware": doctor.hardware() | {"denormals": "flushed"},
        "finished": finished,
        "rows": [row.as_dict() for row in found],
    }

"""Time and memory of a step: every cell with every kernel, compared with torch's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from research.studies.study import Study
from research.studies.support.ledger import Ledger
from seqloom.cells.lookup import find_cell
from seqloom.lab.bench import race
from seqloom.lab.bench.race import PASSES
from seqloom.lab.bench.settings import BenchSettings
from seqloom.lab.report.page import Chart, Curve, Page, PageBlock, Table

# All except `scan`, which compiles for a minute per shape.
KERNELS = {
    "cpu": ("cpu", "aten", "parallel", "loop"),
    "cuda": ("cuda", "cluster", "graph", "aten", "parallel", "loop"),
}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
FAMILY = {"RNN": "torch.nn.RNN", "GRU": "torch.nn.GRU", "LSTM": "torch.nn.LSTM"}
CLAIM = "2.5 to 3 times"  # AttnRNN article: time of AttnRNN relative to a GRU


@dataclass(frozen=True)
class SpeedSettings:
    """Every combination of sizes is timed; the input is as wide as the layer."""

    models: tuple[str, ...] = ("attn_rnn", "rnn", "gru", "lstm", "ln_gru", "min_gru")
    hidden: tuple[int, ...] = (64, 256)
    batch: tuple[int, ...] = (1, 64)
    length: tuple[int, ...] = (128,)
    rounds: int = 2


class Speed(Study[SpeedSettings, race.Timing], name="speed"):
    """Step time, training speed and memory of every cell and kernel, compared with torch's layers."""

    full = SpeedSettings()
    quick = SpeedSettings(("attn_rnn", "rnn", "gru", "lstm"), (32,), (8,), (32,), 1)

    _timed: Mapping[str, Any] = {}  # the last shape of the ledger, with the machine that timed it

    @property
    def parts(self) -> int:
        return len(PASSES) * len(self._grid())

    def _grid(self) -> list[tuple[int, int, int, str]]:
        s = self.settings
        return list(product(s.hidden, s.batch, s.length, DTYPES[self.device]))

    def run(self, before: Callable[[str], None]) -> Iterator[race.Timing]:
        kinds = {name: find_cell(name) for name in self.settings.models}
        ledger, check = Ledger(self.folder), race.remember_checks()
        for hidden, batch, length, dtype in self._grid():
            settings = BenchSettings(
                cells=tuple(kinds),
                kernels=KERNELS[self.device],
                hidden=(hidden,),
                batch=(batch,),
                length=(length,),
                dtype=(dtype,),  # type: ignore[arg-type]
                device=self.device,  # type: ignore[arg-type]
                rounds=self.settings.rounds,
            )
            key = {"study": self.name, "settings": settings.model_dump(mode="json")}
            if ledger.get(key) is None and self.replays:
                self.missing.append(f"H={hidden} B={batch} T={length} {dtype}")
                continue
            if ledger.get(key) is None:
                rows = [asdict(row) for row in race.time_layers(settings, kinds, before, check) if _ran(row)]
                ledger.add(key, {"rows": rows} | race.describe_machine())
            else:
                for name in PASSES:
                    before(f"H={hidden} B={batch} T={length} {name}: known")
            self._timed = ledger.get(key) or {}
            yield from (race.Timing(**row) for row in self._timed["rows"])

    def table(self, rows: Sequence[race.Timing]) -> list[dict[str, Any]]:
        return race.tabulate(self._bench_settings(), rows)

    def _bench_settings(self) -> BenchSettings:
        s = self.settings
        return BenchSettings(
            cells=s.models,
            kernels=KERNELS[self.device],
            hidden=s.hidden,
            batch=s.batch,
            length=s.length,
            dtype=DTYPES[self.device],  # type: ignore[arg-type]
            device=self.device,  # type: ignore[arg-type]
            rounds=s.rounds,
        )

    def caption(self) -> str:
        return race.describe_setup(self._bench_settings(), self._timed if "hardware" in self._timed else None)

    def page(self, rows: Sequence[race.Timing], document: dict[str, Any]) -> Page:
        page = super().page(rows, document)
        return replace(page, title=f"{page.title}, on a {DEVICES[self.device]}")

    def blocks(self, rows: Sequence[race.Timing]) -> list[PageBlock]:
        return [Table("Time and memory of every kernel", self.table(rows), self.caption()), *self._charts(rows)]

    def _charts(self, rows: Sequence[race.Timing]) -> list[Chart]:
        """Draw training time against the hidden size, with the fastest kernel of each cell."""
        charts = []
        for batch, length, dtype in product(self.settings.batch, self.settings.length, DTYPES[self.device]):
            mine = [r for r in rows if (r.batch, r.length, r.dtype, r.pass_) == (batch, length, dtype, PASSES[1])]
            curves = []
            for cell in dict.fromkeys(r.cell for r in mine):
                best: dict[int, float] = {}
                for r in (r for r in mine if r.cell == cell and r.us_per_step is not None):
                    best[r.hidden] = min(best.get(r.hidden, float("inf")), _time(r))
                points = sorted(best.items())
                curves += [Curve(cell, [float(h) for h, _ in points], [t for _, t in points])] if points else []
            title = f"Training, B = {batch}, T = {length}, {dtype}"
            charts += [Chart(title, "hidden size", "us per step", curves, log_x=True, log_y=True)] if curves else []
        return charts

    def verdict(self, rows: Sequence[race.Timing]) -> str:
        training = [r for r in rows if r.pass_ == PASSES[1] and r.us_per_step is not None]
        best: dict[tuple[Any, ...], dict[str, float]] = {}
        for r in training:
            shape = best.setdefault((r.hidden, r.batch, r.length, r.dtype), {})
            shape[r.cell] = min(shape.get(r.cell, float("inf")), _time(r))
            if r.cell == "attn_rnn" and r.kernel == "any_loop":
                shape["loop"] = _time(r)
        ratios = sorted(s["attn_rnn"] / s[race.GRU] for s in best.values() if {"attn_rnn", race.GRU} <= set(s))
        loops = sorted(s["loop"] / s[race.GRU] for s in best.values() if {"loop", race.GRU} <= set(s))
        parts = []
        if ratios:
            parts.append(
                f"On a {DEVICES[self.device]}, a training step of AttnRNN takes {_span(ratios)} times as long as "
                "torch.nn.GRU with its fastest kernel"
            )
        if loops:
            parts.append(f"{_span(loops)} times with the reference loop; the AttnRNN article says {CLAIM}")
        order = [s for s in best.values() if set(FAMILY.values()) <= set(s)]
        fits = sum(s[FAMILY["RNN"]] < s[FAMILY["GRU"]] < s[FAMILY["LSTM"]] for s in order)
        last = (
            f"RNN is faster than GRU and GRU faster than LSTM, as the RNN family article ranks them, in {fits} of "
            f"{len(order)} shapes."
            if order
            else ""
        )
        return f"{', and '.join(parts)}. {last}" if parts else last


def _ran(row: race.Timing) -> bool:
    """Return whether the row has a time or a failed check; not every cell has every kernel."""
    return row.us_per_step is not None or row.reason.startswith(race.CHECK_FAILED)


def _time(row: race.Timing) -> float:
    """Return microseconds per step, as a CUDA graph if available."""
    assert row.us_per_step is not None
    return row.us_per_step if row.graph_us_per_step is None else row.graph_us_per_step


def _span(values: Sequence[float]) -> str:
    return f"{values[0]:.2g}" if len(values) == 1 else f"{values[0]:.2g} to {values[-1]:.2g}"

"""The numbers of a picture as a table, for those who read rather than look."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from seqloom.lab.report.page import Chart, Dots, Grid, Table
from seqloom.lab.report.text import known

MOST = 16  # rows of a chart's table


def of_chart(chart: Chart) -> Table:
    """A row for each place on the x axis, or for MOST of them, evenly chosen."""
    places = sorted({float(x) for curve in chart.curves for x in curve.x if known(x)})
    kept = places
    if len(places) > MOST:
        kept = [places[round(i * (len(places) - 1) / (MOST - 1))] for i in range(MOST)]
    names = _distinct([chart.x_label or "x", *(curve.name for curve in chart.curves)])
    columns = [dict(zip(curve.x, curve.y, strict=True)) for curve in chart.curves]
    rows = [
        dict(zip(names, [x, *(column.get(x) for column in columns)], strict=True)) for x in kept
    ]  # a curve without a point there has None
    note = f"{len(kept)} of {len(places)} places; all are in study.json." if len(kept) < len(places) else ""
    return Table(chart.title, rows, note)


def of_dots(dots: Dots) -> Table:
    rows: list[dict[str, Any]] = []
    for name, values in dots.groups.items():
        there = [v for v in values if known(v)]
        spread = (fmean(there), min(there), max(there)) if there else (None, None, None)
        rows.append(dict(zip(("", "seeds", "mean", "lowest", "highest"), (name, len(there), *spread), strict=True)))
    for name, value in dots.lines.items():
        rows.append({"": name, "seeds": None, "mean": value, "lowest": None, "highest": None})
    return Table(dots.title, rows)


def of_grid(grid: Grid) -> Table:
    names = _distinct(["", *grid.columns])
    rows = [dict(zip(names, [name, *values], strict=True)) for name, values in zip(grid.rows, grid.values, strict=True)]
    return Table(grid.title, rows)


def _distinct(names: list[str]) -> list[str]:
    """Headings, of which no two may be alike in a row."""
    found: list[str] = []
    for name in names:
        free, k = name, 2
        while free in found:
            free, k = f"{name} ({k})", k + 1
        found.append(free)
    return found

"""The numbers of charts and grids as tables, and tables as CSV."""

from __future__ import annotations

import csv
import io
from statistics import fmean
from typing import Any

from seqloom.lab.report.page import Chart, Dots, Grid, Table
from seqloom.lab.report.text import is_number, parse_number

MAX_ROWS = 16  # rows in the table of a chart
Tabular = Table | Chart | Dots | Grid


def tabulate(block: Tabular) -> Table:
    """Return the numbers of a block as a table."""
    if isinstance(block, Table):
        return block
    if isinstance(block, Chart):
        return tabulate_chart(block)
    return tabulate_dots(block) if isinstance(block, Dots) else tabulate_grid(block)


def tabulate_chart(chart: Chart) -> Table:
    """Return one row per x value; if there are more than MAX_ROWS, evenly spaced ones."""
    places = sorted({float(x) for curve in chart.curves for x in curve.x if is_number(x)})
    chosen = places
    if len(places) > MAX_ROWS:
        chosen = [places[round(i * (len(places) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]
    names = _make_distinct([chart.x_label or "x", *(curve.name for curve in chart.curves)])
    columns = [dict(zip(curve.x, curve.y, strict=True)) for curve in chart.curves]
    rows = []
    for x in chosen:
        place = chart.x_names[int(x)] if chart.x_names else x
        cells = [place, *(column.get(x) for column in columns)]  # a curve without a point there has None
        rows.append(dict(zip(names, cells, strict=True)))
    note = f"{len(chosen)} of {len(places)} points; study.json has all of them." if len(chosen) < len(places) else ""
    return Table(chart.title, rows, note)


def tabulate_dots(dots: Dots) -> Table:
    """Return one row per group and reference line: number of dots, mean, its interval if any, lowest, highest."""
    rows: list[dict[str, Any]] = []
    number = "seeds" if dots.by_seed else "scores"
    for name, values in dots.groups.items():
        present = [v for v in values if is_number(v)]
        row: dict[str, Any] = {"": name, number: len(present), "mean": fmean(present) if present else None}
        if dots.intervals:
            low, high = dots.intervals.get(name, (None, None))
            row |= {"low": low, "high": high}
        rows.append(row | {"lowest": min(present, default=None), "highest": max(present, default=None)})
    for name, value in dots.lines.items():
        rows.append({"": name, "mean": value})
    return Table(dots.title, rows)


def tabulate_grid(grid: Grid) -> Table:
    """Return the grid with its row names as the first column; counts become percents of their row."""
    names = _make_distinct(["", *grid.columns])
    lines = grid.values
    if grid.by_row:
        totals = [sum(v for v in line if is_number(v)) for line in lines]
        lines = [
            [round(100 * v / total, 1) if total and is_number(v) else v for v in line]
            for line, total in zip(lines, totals, strict=True)
        ]
    rows = [dict(zip(names, [name, *line], strict=True)) for name, line in zip(grid.rows, lines, strict=True)]
    return Table(grid.title, rows)


def _make_distinct(names: list[str]) -> list[str]:
    """Add numbers to repeated headings: a, a (2)."""
    unique: list[str] = []
    for name in names:
        free, k = name, 2
        while free in unique:
            free, k = f"{name} ({k})", k + 1
        unique.append(free)
    return unique


def list_headings(table: Table) -> list[str]:
    """Return the keys of all rows in order of appearance."""
    return list(dict.fromkeys(heading for row in table.rows for heading in row))


def format_csv(table: Table) -> str:
    """Return the table as CSV with every digit; missing values are empty."""
    heads = list_headings(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_neutralise_formula, heads))
    writer.writerows([_neutralise_formula(row.get(heading)) for heading in heads] for row in table.rows)
    return out.getvalue()


def _neutralise_formula(value: object) -> object:
    """Put ' before text that a spreadsheet would execute as a formula."""
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r" and parse_number(value) is None
    return f"'{value}" if formula else value

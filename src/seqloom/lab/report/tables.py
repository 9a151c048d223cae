"""Render tables and grids as HTML."""

from __future__ import annotations

from seqloom.lab.report.markup import Markup, join, tag, typeset
from seqloom.lab.report.page import Grid, Table
from seqloom.lab.report.text import format_column, format_number, is_number, is_numeric, parse_number
from seqloom.lab.report.values import list_headings

SHADES = 9  # .s0 .. .s9 in page.css
LONG_CELL = 30  # letters; longer cells wrap and get more room
SHORT_HEADING = 10  # letters; longer headings may wrap
NUMBERED = 14  # a grid with more columns shows only shades; numbers are in tooltips and for screen readers


def render_table(table: Table, label: str = "") -> Markup:
    """Render a table in a box that scrolls if it is too wide; the page's script makes it sortable."""
    if not table.rows:
        return tag("p", "The table is empty.", class_="note")
    heads, cells, numbers = list_headings(table), [], []
    for heading in heads:
        values = [row.get(heading) for row in table.rows]
        numbers.append(is_numeric(values) and not (heading == heads[0] and any(isinstance(v, str) for v in values)))
        cells.append([(text, parse_number(value)) for text, value in zip(format_column(values), values, strict=True)])
    rows = []
    for line in zip(*cells, strict=True):
        row = []
        for k, (text, key) in enumerate(line):
            long = "long" if len(text) > LONG_CELL else None
            kind = {"class_": "n" if numbers[k] else long, "data_key": repr(key) if numbers[k] and key else None}
            content = typeset(text)
            row.append(tag("td", content, **kind) if k else tag("th", content, scope="row", **kind))
        rows.append(tag("tr", *row))
    top = [_render_heading(text, number_) for text, number_ in zip(heads, numbers, strict=True)]
    inside = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *rows))
    return _wrap_in_box(inside, label or table.title)


def _render_heading(text: str, number_: bool) -> Markup:
    kinds = ["n"] * number_ + ["broken"] * (len(text) > SHORT_HEADING)
    return tag("th", text, scope="col", class_=" ".join(kinds) or None)


def render_grid(grid: Grid) -> Markup:
    """Render every value as a shade, with its number if there is room."""
    values = [v for row in grid.values for v in row if is_number(v)]
    if not values:
        return tag("p", "The grid is empty.", class_="note")
    low, high = min(0.0, *values), max(values)
    small = len(grid.columns) > NUMBERED
    rows = []
    for name, line in zip(grid.rows, grid.values, strict=True):
        row = [tag("th", name, scope="row")]
        for heading, value in zip(grid.columns, line, strict=True):
            text = format_number(value, 3)
            shade = f"s{_choose_shade(value, low, high)}" if is_number(value) else None
            content = tag("span", text, class_="unseen") if small else text
            row.append(tag("td", content, class_=shade, title=f"{name}, {heading}: {text}"))
        rows.append(tag("tr", *row))
    top = [tag("td"), *(tag("th", tag("span", name), scope="col") for name in grid.columns)]
    kind = "shades small" if small else "shades"
    inside = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *rows), class_=kind)
    steps = [tag("i", class_=f"s{i}") for i in range(SHADES + 1)]
    key = tag("p", format_number(low, 3), tag("span", *steps, class_="ramp"), format_number(high, 3), class_="rampkey")
    return join(_wrap_in_box(inside, grid.title), key)


def _choose_shade(value: float, low: float, high: float) -> int:
    return round(SHADES * (value - low) / (high - low)) if high > low else 0


def _wrap_in_box(inside: Markup, label: str) -> Markup:
    return tag("div", inside, class_="scroll", role="region", tabindex=0, aria_label=f"Table: {label}")

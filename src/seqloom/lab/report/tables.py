"""Tables and grids as HTML."""

from __future__ import annotations

from seqloom.lab.report.markup import Markup, join, tag, typeset
from seqloom.lab.report.page import Grid, Table
from seqloom.lab.report.text import column, known, leading, number, numeric

SHADES = 9  # .s0 .. .s9 in page.css
LONG = 28  # letters; such a cell may be broken, and is given room
SHORT = 11  # letters; a longer heading may be broken
NUMBERED = 14  # a grid of more columns shows shades alone; its numbers are read out, and shown on pointing


def headings(table: Table) -> list[str]:
    return list(dict.fromkeys(heading for row in table.rows for heading in row))


def table(table: Table, label: str = "") -> Markup:
    """A table in a box of its own, in which a wide one scrolls. The script makes it sortable."""
    if not table.rows:
        return tag("p", "Nothing to show: the table is empty.", class_="note")
    heads, cells, numbers = headings(table), [], []
    for heading in heads:
        values = [row.get(heading) for row in table.rows]
        numbers.append(numeric(values) and not (heading == heads[0] and any(isinstance(v, str) for v in values)))
        cells.append([(text, leading(value)) for text, value in zip(column(values), values, strict=True)])
    rows = []
    for line in zip(*cells, strict=True):
        row = []
        for k, (text, key) in enumerate(line):
            long = "long" if len(text) > LONG else None
            kind = {"class_": "n" if numbers[k] else long, "data_key": repr(key) if numbers[k] and key else None}
            shown = typeset(text)
            row.append(tag("td", shown, **kind) if k else tag("th", shown, scope="row", **kind))
        rows.append(tag("tr", *row))
    top = [_heading(text, number_) for text, number_ in zip(heads, numbers, strict=True)]
    inside = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *rows))
    return _box(inside, label or table.title)


def _heading(text: str, number_: bool) -> Markup:
    kinds = ["n"] * number_ + ["broken"] * (len(text) > SHORT)
    return tag("th", text, scope="col", class_=" ".join(kinds) or None)


def grid(grid: Grid) -> Markup:
    """Every value as a shade, with its number where there is room."""
    values = [v for row in grid.values for v in row if known(v)]
    if not values:
        return tag("p", "Nothing to show: the grid is empty.", class_="note")
    low, high = min(0.0, *values), max(values)
    small = len(grid.columns) > NUMBERED
    rows = []
    for name, line in zip(grid.rows, grid.values, strict=True):
        row = [tag("th", name, scope="row")]
        for heading, value in zip(grid.columns, line, strict=True):
            text = number(value, 3)
            shade = f"s{_shade(value, low, high)}" if known(value) else None
            shown = tag("span", text, class_="unseen") if small else text
            row.append(tag("td", shown, class_=shade, title=f"{name}, {heading}: {text}"))
        rows.append(tag("tr", *row))
    top = [tag("td"), *(tag("th", tag("span", name), scope="col") for name in grid.columns)]
    kind = "shades small" if small else "shades"
    inside = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *rows), class_=kind)
    steps = [tag("i", class_=f"s{i}") for i in range(SHADES + 1)]
    key = tag("p", number(low, 3), tag("span", *steps, class_="ramp"), number(high, 3), class_="rampkey")
    return join(_box(inside, grid.title), key)


def _shade(value: float, low: float, high: float) -> int:
    return round(SHADES * (value - low) / (high - low)) if high > low else 0


def _box(inside: Markup, label: str) -> Markup:
    return tag("div", inside, class_="scroll", role="region", tabindex=0, aria_label=f"Table: {label}")

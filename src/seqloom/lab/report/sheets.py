"""Tables as comma-separated files: every digit, nothing where nothing was measured."""

from __future__ import annotations

import csv
import io
from typing import Any

from seqloom.lab.report import tables
from seqloom.lab.report.page import Table
from seqloom.lab.report.text import leading


def sheet(table: Table) -> str:
    heads = tables.headings(table)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_safe, heads))
    writer.writerows([_safe(row.get(heading)) for heading in heads] for row in table.rows)
    return out.getvalue()


def _safe(value: Any) -> Any:
    """A spreadsheet runs text that looks like a formula; with a ' before it, it is text."""
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r" and leading(value) is None
    return f"'{value}" if formula else value

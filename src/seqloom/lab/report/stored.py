"""Convert a page to JSON and back; the stored page is enough to write every report file again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, cast, get_args

from seqloom.core.errors import UserError, UserTypeError
from seqloom.lab.files.sealed import JSON
from seqloom.lab.report.page import Chart, Curve, Gallery, Grid, Page, PageBlock

KINDS: dict[str, type[PageBlock]] = {kind.__name__.lower(): kind for kind in get_args(PageBlock)}
NAMES = {kind: name for name, kind in KINDS.items()}


def to_plain(value: object, where: str = "document") -> JSON:
    """Convert to JSON types; a number that is not finite becomes None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise UserTypeError(f"{where} is a {type(value).__name__}; use text, numbers, lists and dicts")


def page_to_json(page: Page) -> dict[str, Any]:
    """Convert a page to JSON types, after checking that its curves and grids have consistent sizes."""
    for block in page.blocks:
        _check_sizes(block)
    blocks = [to_record(block) for block in page.blocks]
    record = {"title": page.title, "verdict": page.verdict, "blocks": blocks, "facts": page.facts}
    return cast(dict[str, Any], to_plain(record, "page"))


def _check_sizes(block: PageBlock) -> None:
    if isinstance(block, Chart):
        for curve in block.curves:
            parts = (curve.x, curve.y, curve.low, curve.high, curve.inner_low, curve.inner_high)
            sizes = [len(part) for part in parts if part is not None]
            if len(set(sizes)) > 1:
                raise UserError(
                    f"chart {block.title!r}: curve {curve.name!r} has parts of lengths {sizes}; they must be equal"
                )
    if isinstance(block, Gallery):
        for picture in block.pictures:
            _check_sizes(picture)
    if isinstance(block, Grid):
        shape, wanted = [len(row) for row in block.values], [len(block.columns)] * len(block.rows)
        if shape != wanted:
            raise UserError(f"grid {block.title!r} has rows of {shape} values, but its names need {wanted}")


def to_record(thing: Curve | PageBlock) -> dict[str, object]:
    """Return the kind and the fields of a block, and of what it contains, as dicts and lists."""
    kind = {} if isinstance(thing, Curve) else {"kind": NAMES[type(thing)]}
    return kind | {field.name: _convert_field(getattr(thing, field.name)) for field in fields(thing)}


def _convert_field(value: object) -> object:
    if isinstance(value, Curve | PageBlock):
        return to_record(value)
    return [_convert_field(item) for item in value] if isinstance(value, list) else value


def page_from_json(document: Mapping[str, Any]) -> Page:
    """Return the page that `write_report` stored in a document."""
    if "page" not in document:
        raise UserError(f"the document of study {document.get('study', '?')!r} contains no page; run the study again")
    page = document["page"]
    return Page(page["title"], page["verdict"], [_read_block(block) for block in page["blocks"]], page["facts"])


def _read_block(record: Mapping[str, Any]) -> PageBlock:
    values = dict(record)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise UserError(f"unknown block kind {kind!r}; expected one of {', '.join(KINDS)}")
    if kind == "gallery":
        values["pictures"] = [_read_block(picture) for picture in values["pictures"]]
    if kind == "chart":
        values["curves"] = [Curve(**curve) for curve in values["curves"]]
    return KINDS[kind](**values)

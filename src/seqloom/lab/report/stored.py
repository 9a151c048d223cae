"""A page as JSON and back: what is stored is enough to make every file again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from seqloom.core.errors import UserError, UserTypeError
from seqloom.lab.report.page import Block, Chart, Curve, Dots, Grid, Page, Table, Words

KINDS: dict[str, type[Block]] = {"table": Table, "chart": Chart, "dots": Dots, "grid": Grid, "words": Words}
NAMES = {kind: name for name, kind in KINDS.items()}


def plain(value: Any, where: str = "document") -> Any:
    """What JSON can hold. A number that is not finite becomes None: it is missing."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise UserTypeError(f"{where} is a {type(value).__name__}; give text, numbers, lists and dicts")


def page_as_json(page: Page) -> dict[str, Any]:
    for block in page.blocks:
        _check(block)
    blocks = [{"kind": NAMES[type(block)]} | _record(block) for block in page.blocks]
    return plain({"title": page.title, "verdict": page.verdict, "blocks": blocks, "facts": page.facts}, "page")


def _check(block: Block) -> None:
    if isinstance(block, Chart):
        for curve in block.curves:
            sizes = [len(part) for part in (curve.x, curve.y, curve.low, curve.high) if part is not None]
            if len(set(sizes)) > 1:
                raise UserError(f"chart {block.title!r}: curve {curve.name!r} has {sizes} values; give as many of each")
    if isinstance(block, Grid):
        shape, wanted = [len(row) for row in block.values], [len(block.columns)] * len(block.rows)
        if shape != wanted:
            raise UserError(f"grid {block.title!r} has rows of {shape} values; its names want {wanted}")


def _record(thing: Any) -> Any:
    if isinstance(thing, Curve | Block):
        return {field.name: _record(getattr(thing, field.name)) for field in fields(thing)}
    return [_record(item) for item in thing] if isinstance(thing, list) else thing


def page_from(document: Mapping[str, Any]) -> Page:
    """The page that `write` stored in a study's document."""
    if "page" not in document:
        raise UserError(
            f"the document of study {document.get('study', '?')!r} holds no page; run the study again to make one"
        )
    page = document["page"]
    return Page(page["title"], page["verdict"], [_block(block) for block in page["blocks"]], page["facts"])


def _block(record: Mapping[str, Any]) -> Block:
    values = dict(record)
    kind = values.pop("kind")
    if kind not in KINDS:
        raise UserError(f"there is no block of the kind {kind!r}; known are {', '.join(KINDS)}")
    if kind == "chart":
        values["curves"] = [Curve(**curve) for curve in values["curves"]]
    return KINDS[kind](**values)

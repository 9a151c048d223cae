"""A page as one HTML file that needs nothing else: no other file, no network, no script to be read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from seqloom.lab.report import dots, lines, marks, tables, values
from seqloom.lab.report.markup import Markup, join, prose, tag
from seqloom.lab.report.page import Block, Chart, Dots, Grid, Page, Table, Words
from seqloom.lab.report.text import said, slug

LAST = "how-this-was-made"
DOTS = "Each dot is one seed, from left to right in the same order in every group; the bar is their mean."
BELOW = "Hollow marks on the edge are values of 0 or less, which a logarithmic axis cannot show."


def html(page: Page) -> str:
    taken, looks = {LAST, "verdict"}, dict[str, int]()
    places = [slug(block.title, taken, "part") for block in page.blocks]
    sections = [_section(block, place, looks) for block, place in zip(page.blocks, places, strict=True)]
    links = [(place, block.title or "Untitled") for block, place in zip(page.blocks, places, strict=True)]
    style, script = (files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        title=join(page.title),
        verdict=prose(page.verdict),
        when=_when(page.facts),
        contents=_contents([*links, (LAST, "How this was made")]),
        sections="\n".join(sections),
        made=_made(page.facts),
        style=style,
        script=script,
        # Only this very script runs, and nothing is loaded from anywhere.
        allowed=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _contents(links: list[tuple[str, str]]) -> Markup:
    if len(links) < 4:
        return Markup()
    items = [tag("li", tag("a", title, href=f"#{place}")) for place, title in links]
    return tag("nav", tag("ol", *items), aria_label="On this page")


def _when(facts: Mapping[str, Any]) -> Markup:
    """The date and the machine, in a line under the title."""
    machine = facts.get("hardware")
    if isinstance(machine, Mapping):
        gpus = [gpu["name"] if isinstance(gpu, Mapping) else str(gpu) for gpu in machine.get("gpus") or []]
        machine = ", ".join(gpus) or machine.get("cpu")
    said_ = [str(fact) for fact in (str(facts.get("date") or "")[:10], machine) if fact]
    return tag("p", " · ".join(said_), class_="when") if said_ else Markup()


def _section(block: Block, place: str, looks: dict[str, int]) -> Markup:
    head = tag("h2", block.title or "Untitled", id=f"{place}-title")
    return tag("section", head, _body(block, looks), id=place, aria_labelledby=f"{place}-title")


def _body(block: Block, looks: dict[str, int]) -> Markup:
    match block:
        case Table():
            return join(tables.table(block), _note(block.note))
        case Chart():
            if not block.curves:
                return tag("p", "Nothing to show: the chart has no curve.", class_="note")
            mine = marks.choose([curve.name for curve in block.curves], looks)
            plot = _plot(block.title, lines.picture(block, mine), lines.stops(block, mine))
            note = _note(block.note, BELOW if lines.below(block) else "")
            return join(tag("figure", lines.legend(block, mine), plot, note), _numbers(values.of_chart(block)))
        case Dots():
            if not block.groups:
                return tag("p", "Nothing to show: there is no group.", class_="note")
            mine = marks.choose(list(block.groups), looks)
            key = dots.legend(block) if block.lines else Markup()
            plot = _plot(block.title, dots.picture(block, mine), dots.stops(block, mine))
            return join(tag("figure", key, plot, _note(block.note, DOTS)), _numbers(values.of_dots(block)))
        case Grid():
            return join(tables.grid(block), _note(block.note))
        case Words():
            return tag("div", *(tag("p", prose(text)) for text in block.paragraphs), class_="words")


def _plot(title: str, picture: Markup, stops: dict[str, Any]) -> Markup:
    data = json.dumps(stops, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag(
        "div",
        picture,
        tag("div", class_="tip", role="status", hidden=True),
        tag("script", Markup(data), type="application/json"),
        class_="plot",
        role="group",
        tabindex=0,
        aria_label=f"{title}: the arrow keys read its values",
    )


def _note(*texts: str) -> Markup:
    shown = [text for text in texts if text]
    return tag("p", prose(" ".join(shown)), class_="note") if shown else Markup()


def _numbers(table: Table) -> Markup:
    inside = join(tables.table(table, f"{table.title}, the numbers"), _note(table.note))
    return tag("details", tag("summary", "The numbers"), inside)


def _made(facts: Mapping[str, Any]) -> Markup:
    """The command to run it again, then every other fact."""
    pieces = []
    if facts.get("command"):
        code = tag("pre", tag("code", str(facts["command"])), tabindex=0)
        pieces.append(tag("div", code, tag("button", "Copy", type="button", class_="copy", hidden=True), class_="run"))
    for name, fact in facts.items():
        if name == "command" or fact in (None, "", {}, []):
            continue
        records = fact if isinstance(fact, Mapping) else {"": fact}
        pairs = [
            tag("div", tag("dt", str(k).replace("_", " ")) if k else Markup(), tag("dd", said(v)))
            for k, v in records.items()
        ]
        listing = tag("dl", *pairs) if isinstance(fact, Mapping) else tag("p", prose(said(fact)))
        pieces.append(tag("div", tag("h3", name.replace("_", " ").capitalize()), listing, class_="fact"))
    return join(*pieces) or tag("p", "Nothing was recorded.", class_="note")

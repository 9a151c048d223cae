"""A page as one self-contained HTML file: no other files, no network."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from seqloom.lab.report import marks, plots, tables, values
from seqloom.lab.report.markup import Markup, join, prose, tag
from seqloom.lab.report.page import Chart, Dots, Grid, Page, PageBlock, Table, Words
from seqloom.lab.report.text import format_fact, make_slug

FACTS_ID = "how-this-was-made"
DOTS_NOTE = "Each dot is one seed, in the same order in every group; the bar is the mean."
INTERVALS_NOTE = " The vertical line is the mean's 95% interval."
BELOW_NOTE = "Hollow marks on the edge are values of 0 or less, which a logarithmic axis cannot show."


def render_html(page: Page) -> str:
    """Return the page as an HTML document with inline style, script and pictures."""
    taken, looks = {FACTS_ID, "verdict"}, dict[str, int]()
    places = [make_slug(block.title, taken, "part") for block in page.blocks]
    sections = [_render_section(block, place, looks) for block, place in zip(page.blocks, places, strict=True)]
    links = [(place, block.title or "Untitled") for block, place in zip(page.blocks, places, strict=True)]
    style, script = (files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        title=join(page.title),
        verdict=prose(page.verdict),
        when=_render_origin(page.facts),
        contents=_render_contents([*links, (FACTS_ID, "How this was made")]),
        sections="\n".join(sections),
        made=_render_facts(page.facts),
        style=style,
        script=script,
        # The content security policy allows this script only, and no loading from elsewhere.
        allowed=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _render_contents(links: list[tuple[str, str]]) -> Markup:
    if len(links) < 4:
        return Markup()
    items = [tag("li", tag("a", title, href=f"#{place}")) for place, title in links]
    return tag("nav", tag("ol", *items), aria_label="On this page")


def _render_origin(facts: Mapping[str, Any]) -> Markup:
    """Return the line under the title: date and machine."""
    machine = facts.get("hardware")
    if isinstance(machine, Mapping):
        gpus = [gpu["name"] if isinstance(gpu, Mapping) else str(gpu) for gpu in machine.get("gpus") or []]
        machine = ", ".join(gpus) or machine.get("cpu")
    parts = [str(fact) for fact in (str(facts.get("date") or "")[:10], machine) if fact]
    return tag("p", " · ".join(parts), class_="when") if parts else Markup()


def _render_section(block: PageBlock, place: str, looks: dict[str, int]) -> Markup:
    head = tag("h2", block.title or "Untitled", id=f"{place}-title")
    return tag("section", head, _render_body(block, looks), id=place, aria_labelledby=f"{place}-title")


def _render_body(block: PageBlock, looks: dict[str, int]) -> Markup:
    match block:
        case Table():
            return join(tables.render_table(block), _render_note(block.note))
        case Chart():
            if not block.curves:
                return tag("p", "The chart has no curves.", class_="note")
            mine = marks.choose_looks([curve.name for curve in block.curves], looks)
            plot = _render_plot(block.title, plots.draw_chart(block, mine), plots.list_chart_stops(block, mine))
            note = _render_note(block.note, BELOW_NOTE if plots.has_hidden_points(block) else "")
            figure = tag("figure", plots.draw_chart_legend(block, mine), plot, note)
            return join(figure, _render_numbers(values.tabulate_chart(block)))
        case Dots():
            if not block.groups:
                return tag("p", "There are no groups to show.", class_="note")
            mine = marks.choose_looks(list(block.groups), looks)
            key = plots.draw_dots_legend(block) if block.lines else Markup()
            plot = _render_plot(block.title, plots.draw_dots(block, mine), plots.list_dots_stops(block, mine))
            about = DOTS_NOTE + (INTERVALS_NOTE if block.intervals else "")
            figure = tag("figure", key, plot, _render_note(block.note, about))
            return join(figure, _render_numbers(values.tabulate_dots(block)))
        case Grid():
            return join(tables.render_grid(block), _render_note(block.note))
        case Words():
            return tag("div", *(tag("p", prose(text)) for text in block.paragraphs), class_="words")


def _render_plot(title: str, picture: Markup, stops: dict[str, Any]) -> Markup:
    data = json.dumps(stops, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag(
        "div",
        picture,
        tag("div", class_="tip", role="status", hidden=True),
        tag("script", Markup(data), type="application/json"),
        class_="plot",
        role="group",
        tabindex=0,
        aria_label=f"{title}: read the values with the arrow keys",
    )


def _render_note(*texts: str) -> Markup:
    parts = [text for text in texts if text]
    return tag("p", prose(" ".join(parts)), class_="note") if parts else Markup()


def _render_numbers(table: Table) -> Markup:
    inside = join(tables.render_table(table, f"{table.title}, the numbers"), _render_note(table.note))
    return tag("details", tag("summary", "The numbers"), inside)


def _render_facts(facts: Mapping[str, Any]) -> Markup:
    """Return the command to reproduce the report, then all other facts."""
    pieces = []
    if facts.get("command"):
        code = tag("pre", tag("code", str(facts["command"])), tabindex=0)
        pieces.append(tag("div", code, tag("button", "Copy", type="button", class_="copy", hidden=True), class_="run"))
    for name, fact in facts.items():
        if name == "command" or fact in (None, "", {}, []):
            continue
        records = fact if isinstance(fact, Mapping) else {"": fact}
        pairs = [
            tag("div", tag("dt", str(k).replace("_", " ")) if k else Markup(), tag("dd", format_fact(v)))
            for k, v in records.items()
        ]
        listing = tag("dl", *pairs) if isinstance(fact, Mapping) else tag("p", prose(format_fact(fact)))
        pieces.append(tag("div", tag("h3", name.replace("_", " ").capitalize()), listing, class_="fact"))
    return join(*pieces) or tag("p", "No details were recorded.", class_="note")

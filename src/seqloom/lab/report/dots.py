"""One dot for every seed as SVG, with the mean of each group and the named lines."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from seqloom.lab.report import marks
from seqloom.lab.report.frame import Frame, both, fit, names_axis, y_axis
from seqloom.lab.report.markup import Markup, join, tag
from seqloom.lab.report.page import Dots
from seqloom.lab.report.scale import Scale, scale
from seqloom.lab.report.text import MISSING, known, number

APART = 10.0  # pixels between the dots of a group, where there is room
ROOM = 0.7  # of a group's share of the axis


def picture(dots: Dots, looks: list[int]) -> Markup:
    y = _axis(dots)

    def draw(size: tuple[float, float]) -> tuple[Frame, Markup]:
        frame = fit(size, y, list(dots.groups))
        across = [_line(frame, y, value, i) for i, value in enumerate(dots.lines.values()) if known(value)]
        groups = [_group(frame, y, dots, i, look) for i, look in enumerate(looks)]
        return frame, join(y_axis(frame, y, dots.y_label), names_axis(frame, list(dots.groups)), *across, *groups)

    means = "; ".join(f"{name}: mean {_mean(values)}" for name, values in dots.groups.items())
    return both(f"{dots.title}: {dots.y_label}, one dot a seed. {means}.", draw)


def _axis(dots: Dots) -> Scale:
    return scale([*(v for values in dots.groups.values() for v in values), *dots.lines.values()], dots.log_y)


def _line(frame: Frame, y: Scale, value: float, index: int) -> Markup:
    height = frame.y(y.at(value))
    return tag("line", x1=frame.x(0), x2=frame.x(1), y1=height, y2=height, class_=f"across r{index % 4}")


def _group(frame: Frame, y: Scale, dots: Dots, index: int, look: int) -> Markup:
    """The seeds stand from left to right in their order, so that the third dot of two groups is one pair."""
    values = list(dots.groups.values())[index]
    share = (frame.x(1) - frame.x(0)) / len(dots.groups)
    middle = frame.x((index + 0.5) / len(dots.groups))
    apart = min(APART, ROOM * share / max(1, len(values)))
    places = [
        (middle + apart * (k - (len(values) - 1) / 2), frame.y(y.at(v))) for k, v in enumerate(values) if known(v)
    ]
    pieces = [tag("path", d="".join(marks.shape(look, *place) for place in places), class_="mark dot")]
    there = [v for v in values if known(v)]
    if there:
        height, half = frame.y(y.at(fmean(there))), min(ROOM * share / 2, 26.0)
        pieces.append(tag("line", x1=middle - half, x2=middle + half, y1=height, y2=height, class_="mean"))
    return tag("g", *(p for p in pieces if 'd=""' not in p), class_=marks.colour(look), data_curve=index)


def legend(dots: Dots) -> Markup:
    """The named lines, with their numbers."""
    keys = []
    for i, (name, value) in enumerate(dots.lines.items()):
        line = tag("line", x1=0, x2=28, y1=7, y2=7, class_=f"across r{i % 4}")
        drawn = tag("svg", line, class_="swatch", viewBox="0 0 28 14", aria_hidden="true")
        keys.append(tag("li", tag("span", drawn, f"{name} {number(value)}", class_="key")))
    return tag("ul", *keys, class_="legend", aria_label="Lines")


def stops(dots: Dots, looks: list[int]) -> dict[str, Any]:
    """What the script shows for every group, in the form of a chart's."""
    y, found = _axis(dots), []
    for i, (name, values) in enumerate(dots.groups.items()):
        there = [v for v in values if known(v)]
        rows = [[i, round(y.at(v), 4), number(v)] for v in there]
        heading = f"{name}: mean {_mean(values)}"
        found.append([round((i + 0.5) / len(dots.groups), 4), heading, rows])
    return {"names": [], "colours": [marks.colour(look) for look in looks], "stops": found}


def _mean(values: list[float]) -> str:
    there = [v for v in values if known(v)]
    missing = f" ({len(values) - len(there)} missing)" if len(there) < len(values) else ""
    return (number(fmean(there)) if there else MISSING) + f" of {len(there)}{missing}"

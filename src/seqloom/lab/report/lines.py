"""A chart as SVG: lines with their intervals, marks and legend."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from seqloom.lab.report import marks
from seqloom.lab.report.frame import Frame, both, fit, x_axis, y_axis
from seqloom.lab.report.markup import Markup, join, tag
from seqloom.lab.report.page import Chart, Curve
from seqloom.lab.report.scale import Scale, scale
from seqloom.lab.report.text import known, number

ALL_MARKED = 30  # a curve of more points carries a mark at some of them
FEW = 9  # so many places on a logarithmic axis are its ticks


def picture(chart: Chart, looks: list[int]) -> Markup:
    x, y = axes(chart)

    def draw(size: tuple[float, float]) -> tuple[Frame, Markup]:
        frame = fit(size, y)
        curves = [_curve(frame, x, y, c, look, i) for i, (c, look) in enumerate(zip(chart.curves, looks, strict=True))]
        return frame, join(y_axis(frame, y, chart.y_label), x_axis(frame, x, chart.x_label), *curves)

    names = ", ".join(curve.name for curve in chart.curves)
    return both(f"{chart.title}: {chart.y_label} against {chart.x_label}. Curves: {names}.", draw)


def axes(chart: Chart) -> tuple[Scale, Scale]:
    xs = [x for curve in chart.curves for x in curve.x if known(x)]
    ys = [v for curve in chart.curves for v in (*curve.y, *(curve.low or []), *(curve.high or []))]
    if chart.log_y:  # a band that reaches below 0 ends at the edge; only a curve's own points make a floor
        ys = [v for curve in chart.curves for v in curve.y] + [v for v in ys if known(v) and v > 0]
    distinct = sorted({x for x in xs if x > 0})
    places = distinct if chart.log_x and len(distinct) <= FEW else []
    return scale(xs, chart.log_x, places), scale(ys, chart.log_y)


def below(chart: Chart) -> bool:
    """Whether a logarithmic axis has points that are 0 or less."""
    return any(
        (chart.log_x and known(x) and x <= 0) or (chart.log_y and known(y) and y <= 0)
        for curve in chart.curves
        for x, y in zip(curve.x, curve.y, strict=True)
    )


def legend(chart: Chart, looks: list[int]) -> Markup:
    """A button for each curve; pressed means shown."""
    keys = [
        tag("li", tag("button", marks.swatch(look), curve.name, **_key(look, i)))
        for i, (curve, look) in enumerate(zip(chart.curves, looks, strict=True))
    ]
    return tag("ul", *keys, class_="legend", aria_label="Curves")


def _key(look: int, index: int) -> dict[str, Any]:
    return {"type": "button", "class_": marks.colour(look), "data_curve": index, "aria_pressed": "true"}


def stops(chart: Chart, looks: list[int]) -> dict[str, Any]:
    """What the script shows for every place on the x axis: [share, heading, [[curve, share, text], ...]]."""
    x_scale, y_scale = axes(chart)
    places: dict[float, list[list[Any]]] = {}
    for i, curve in enumerate(chart.curves):
        for k, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
            if known(x) and known(y):
                places.setdefault(float(x), []).append([i, round(y_scale.at(y), 4), number(y) + _interval(curve, k)])
    found = [[round(x_scale.at(x), 4), f"{chart.x_label} {number(x)}", places[x]] for x in sorted(places)]
    return {
        "names": [curve.name for curve in chart.curves],
        "colours": [marks.colour(look) for look in looks],
        "stops": found,
    }


def _interval(curve: Curve, k: int) -> str:
    if curve.low is None or curve.high is None or not (known(curve.low[k]) and known(curve.high[k])):
        return ""
    return f" [{number(curve.low[k], 3)}, {number(curve.high[k], 3)}]"


def _curve(frame: Frame, x: Scale, y: Scale, curve: Curve, look: int, index: int) -> Markup:
    points = list(zip(curve.x, curve.y, strict=True))
    step = 1 if len(points) <= ALL_MARKED else -(-len(points) // 12)
    lines, solid, hollow = [], [], []
    for drawn, run in groupby(enumerate(points), key=lambda item: _on(x, y, *item[1])):
        places = [(k, frame.x(x.at(a)), frame.y(y.at(b))) for k, (a, b) in run if known(a) and known(b)]
        if not drawn:  # nothing there, or 0 on a logarithmic axis: the line is broken
            hollow += [marks.shape(look, a, b) for _, a, b in places]
            continue
        lines.append("M" + "L".join(f"{a:.1f},{b:.1f}" for _, a, b in places))
        solid += [marks.shape(look, a, b) for k, a, b in places if k % step == 0 or len(places) == 1]
    pieces = [tag("path", d=d, class_=kind) for kind, d in _intervals(frame, x, y, curve)]
    pieces.append(tag("path", d="".join(lines), class_=f"stroke {marks.dash(look)}"))
    pieces.append(tag("path", d="".join(solid), class_="mark"))
    pieces.append(tag("path", d="".join(hollow), class_="mark hollow"))
    return tag("g", *(p for p in pieces if 'd=""' not in p), class_=marks.colour(look), data_curve=index)


def _on(x: Scale, y: Scale, a: float, b: float) -> bool:
    return known(a) and known(b) and not (x.log and a <= 0) and not (y.log and b <= 0)


def _intervals(frame: Frame, x: Scale, y: Scale, curve: Curve) -> list[tuple[str, str]]:
    """A band along the curve; a bar at a point that stands alone."""
    if curve.low is None or curve.high is None:
        return []
    whole = list(zip(curve.x, curve.low, curve.high, strict=True))
    found = []
    for there, run in groupby(whole, key=lambda p: all(map(known, p)) and not (x.log and p[0] <= 0)):
        edge = list(run)
        if there:
            lower = [f"{frame.x(x.at(a)):.1f},{frame.y(y.at(low)):.1f}" for a, low, _ in edge]
            upper = [f"{frame.x(x.at(a)):.1f},{frame.y(y.at(high)):.1f}" for a, _, high in edge]
            found.append(("band" if len(edge) > 1 else "whisker", "M" + "L".join(lower + upper[::-1]) + "Z"))
    return found

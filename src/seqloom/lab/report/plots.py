"""Charts and dot plots as SVG, with legends and the values that the page's script reads out."""

from __future__ import annotations

from itertools import groupby
from statistics import fmean
from typing import Any

from seqloom.lab.report import marks
from seqloom.lab.report.frame import Frame, draw_both_sizes, draw_names_axis, draw_x_axis, draw_y_axis, fit_frame
from seqloom.lab.report.markup import Markup, join, tag
from seqloom.lab.report.page import Chart, Curve, Dots
from seqloom.lab.report.scale import AxisScale, Tick, make_scale
from seqloom.lab.report.text import MISSING, format_number, is_number

MARKED_POINTS = 30  # a curve with more points has a mark only at some of them
LOG_TICKS = 9  # up to this many distinct x values become the ticks of a logarithmic axis
DOT_GAP = 10.0  # pixels between the dots of a group, if present is room
GROUP_SHARE = 0.7  # of a group's width that its dots may take
NAME_TICKS = 7  # names of an axis that are labelled, at most


def draw_chart(chart: Chart, looks: list[int]) -> Markup:
    """Draw the curves of a chart with their intervals and axes."""
    x, y = make_axes(chart)

    def draw(size: tuple[float, float]) -> tuple[Frame, Markup]:
        frame = fit_frame(size, y)
        pairs = enumerate(zip(chart.curves, looks, strict=True))
        curves = [_draw_curve(frame, x, y, curve, look, i) for i, (curve, look) in pairs]
        return frame, join(draw_y_axis(frame, y, chart.y_label), draw_x_axis(frame, x, chart.x_label), *curves)

    names = ", ".join(curve.name for curve in chart.curves)
    return draw_both_sizes(f"{chart.title}: {chart.y_label} against {chart.x_label}. Curves: {names}.", draw)


def make_axes(chart: Chart) -> tuple[AxisScale, AxisScale]:
    """Return the x axis and the y axis of a chart."""
    xs = [x for curve in chart.curves for x in curve.x if is_number(x)]
    ys = [v for curve in chart.curves for v in (*curve.y, *(curve.low or []), *(curve.high or []))]
    if chart.log_y:  # a band below 0 ends at the edge; only points of a curve need a floor
        ys = [v for curve in chart.curves for v in curve.y] + [v for v in ys if is_number(v) and v > 0]
    if chart.x_names:
        return _make_names_scale(chart.x_names), make_scale(ys, chart.log_y)
    distinct = sorted({x for x in xs if x > 0})
    places = distinct if chart.log_x and len(distinct) <= LOG_TICKS else []
    return make_scale(xs, chart.log_x, places), make_scale(ys, chart.log_y)


def _make_names_scale(names: list[str]) -> AxisScale:
    """Return an axis of names, some of them labelled."""
    bare = AxisScale(-0.5, len(names) - 0.5)
    every = max(1, -(-len(names) // NAME_TICKS))
    return AxisScale(bare.low, bare.high, ticks=tuple(Tick(bare.at(i), names[i]) for i in range(0, len(names), every)))


def has_hidden_points(chart: Chart) -> bool:
    """Whether a logarithmic axis has points of 0 or less."""
    return any(
        (chart.log_x and is_number(x) and x <= 0) or (chart.log_y and is_number(y) and y <= 0)
        for curve in chart.curves
        for x, y in zip(curve.x, curve.y, strict=True)
    )


def draw_chart_legend(chart: Chart, looks: list[int]) -> Markup:
    """Draw one button per curve; a pressed button shows its curve."""
    keys = [
        tag("li", tag("button", marks.draw_swatch(look), curve.name, **_legend_attributes(look, i)))
        for i, (curve, look) in enumerate(zip(chart.curves, looks, strict=True))
    ]
    return tag("ul", *keys, class_="legend", aria_label="Curves")


def _legend_attributes(look: int, index: int) -> dict[str, Any]:
    return {"type": "button", "class_": marks.colour(look), "data_curve": index, "aria_pressed": "true"}


def list_chart_stops(chart: Chart, looks: list[int]) -> dict[str, Any]:
    """Return the values that the script shows per x value: [share, heading, [[curve, share, text], ...]]."""
    x_scale, y_scale = make_axes(chart)
    places: dict[float, list[list[Any]]] = {}
    for i, curve in enumerate(chart.curves):
        for k, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
            if is_number(x) and is_number(y):
                text = format_number(y) + _format_interval(curve, k)
                places.setdefault(float(x), []).append([i, round(y_scale.at(y), 4), text])
    heads = {x: chart.x_names[int(x)] if chart.x_names else f"{chart.x_label} {format_number(x)}" for x in places}
    stops = [[round(x_scale.at(x), 4), heads[x], places[x]] for x in sorted(places)]
    return {
        "names": [curve.name for curve in chart.curves],
        "colours": [marks.colour(look) for look in looks],
        "stops": stops,
    }


def _format_interval(curve: Curve, k: int) -> str:
    if curve.low is None or curve.high is None or not (is_number(curve.low[k]) and is_number(curve.high[k])):
        return ""
    return f" [{format_number(curve.low[k], 3)}, {format_number(curve.high[k], 3)}]"


def _draw_curve(frame: Frame, x: AxisScale, y: AxisScale, curve: Curve, look: int, index: int) -> Markup:
    points = list(zip(curve.x, curve.y, strict=True))
    step = 1 if len(points) <= MARKED_POINTS else -(-len(points) // 12)
    lines, solid, hollow = [], [], []
    for drawn, run in groupby(enumerate(points), key=lambda item: _is_drawable(x, y, *item[1])):
        places = [(k, frame.x(x.at(a)), frame.y(y.at(b))) for k, (a, b) in run if is_number(a) and is_number(b)]
        if not drawn:  # missing, or not positive on a logarithmic axis: the line is interrupted
            hollow += [marks.draw_mark(look, a, b) for _, a, b in places]
            continue
        lines.append("M" + "L".join(f"{a:.1f},{b:.1f}" for _, a, b in places))
        solid += [marks.draw_mark(look, a, b) for k, a, b in places if k % step == 0 or len(places) == 1]
    pieces = [tag("path", d=d, class_=kind) for kind, d in _draw_intervals(frame, x, y, curve)]
    pieces.append(tag("path", d="".join(lines), class_=f"stroke {marks.dash(look)}"))
    pieces.append(tag("path", d="".join(solid), class_="mark"))
    pieces.append(tag("path", d="".join(hollow), class_="mark hollow"))
    return tag("g", *(p for p in pieces if 'd=""' not in p), class_=marks.colour(look), data_curve=index)


def _is_drawable(x: AxisScale, y: AxisScale, a: float, b: float) -> bool:
    return is_number(a) and is_number(b) and not (x.log and a <= 0) and not (y.log and b <= 0)


def _draw_intervals(frame: Frame, x: AxisScale, y: AxisScale, curve: Curve) -> list[tuple[str, str]]:
    """Draw bands along the curve, or bars at an isolated point."""
    ends = ((curve.low, curve.high), (curve.inner_low, curve.inner_high))
    return [path for low, high in ends if low and high for path in _draw_interval(frame, x, y, curve.x, low, high)]


def _draw_interval(
    frame: Frame, x: AxisScale, y: AxisScale, places: list[float], lows: list[float], highs: list[float]
) -> list[tuple[str, str]]:
    whole = list(zip(places, lows, highs, strict=True))
    paths = []
    for complete, run in groupby(whole, key=lambda p: all(map(is_number, p)) and not (x.log and p[0] <= 0)):
        edge = list(run)
        if complete:
            lower = [f"{frame.x(x.at(a)):.1f},{frame.y(y.at(low)):.1f}" for a, low, _ in edge]
            upper = [f"{frame.x(x.at(a)):.1f},{frame.y(y.at(high)):.1f}" for a, _, high in edge]
            paths.append(("band" if len(edge) > 1 else "whisker", "M" + "L".join(lower + upper[::-1]) + "Z"))
    return paths


def draw_dots(dots: Dots, looks: list[int]) -> Markup:
    """Draw one dot per seed, the mean of each group and the reference lines."""
    y = _make_dots_axis(dots)

    def draw(size: tuple[float, float]) -> tuple[Frame, Markup]:
        frame = fit_frame(size, y, list(dots.groups))
        across = [
            _draw_reference_line(frame, y, value, i) for i, value in enumerate(dots.lines.values()) if is_number(value)
        ]
        groups = [_draw_group(frame, y, dots, i, look) for i, look in enumerate(looks)]
        axes = (draw_y_axis(frame, y, dots.y_label), draw_names_axis(frame, list(dots.groups)))
        return frame, join(*axes, *across, *groups)

    means = "; ".join(f"{name}: mean {_format_mean(values)}" for name, values in dots.groups.items())
    return draw_both_sizes(f"{dots.title}: {dots.y_label}, one dot per seed. {means}.", draw)


def _make_dots_axis(dots: Dots) -> AxisScale:
    ends = [end for interval in dots.intervals.values() for end in interval]
    values = [v for values in dots.groups.values() for v in values]
    return make_scale([*values, *ends, *dots.lines.values()], dots.log_y)


def _draw_reference_line(frame: Frame, y: AxisScale, value: float, index: int) -> Markup:
    height = frame.y(y.at(value))
    return tag("line", x1=frame.x(0), x2=frame.x(1), y1=height, y2=height, class_=f"across r{index % 4}")


def _draw_group(frame: Frame, y: AxisScale, dots: Dots, index: int, look: int) -> Markup:
    """Draw a group with its seeds in order, so that the third dots of two groups belong together."""
    name, values = list(dots.groups.items())[index]
    share = (frame.x(1) - frame.x(0)) / len(dots.groups)
    middle = frame.x((index + 0.5) / len(dots.groups))
    apart = min(DOT_GAP, GROUP_SHARE * share / max(1, len(values)))
    places = [
        (middle + apart * (k - (len(values) - 1) / 2), frame.y(y.at(v))) for k, v in enumerate(values) if is_number(v)
    ]
    pieces = [tag("path", d="".join(marks.draw_mark(look, *place) for place in places), class_="mark dot")]
    present = [v for v in values if is_number(v)]
    if present:
        height, half = frame.y(y.at(fmean(present))), min(GROUP_SHARE * share / 2, 26.0)
        pieces.append(tag("line", x1=middle - half, x2=middle + half, y1=height, y2=height, class_="mean"))
    ends = dots.intervals.get(name, ())
    if ends and all(is_number(end) and not (dots.log_y and end <= 0) for end in ends):
        low, high = (frame.y(y.at(end)) for end in ends)
        pieces.append(tag("line", x1=middle, x2=middle, y1=low, y2=high, class_="whisker"))
    return tag("g", *(p for p in pieces if 'd=""' not in p), class_=marks.colour(look), data_curve=index)


def draw_dots_legend(dots: Dots) -> Markup:
    """List the reference lines with their values."""
    keys = []
    for i, (name, value) in enumerate(dots.lines.items()):
        line = tag("line", x1=0, x2=28, y1=7, y2=7, class_=f"across r{i % 4}")
        drawn = tag("svg", line, class_="swatch", viewBox="0 0 28 14", aria_hidden="true")
        keys.append(tag("li", tag("span", drawn, f"{name} {format_number(value)}", class_="key")))
    return tag("ul", *keys, class_="legend", aria_label="Lines")


def list_dots_stops(dots: Dots, looks: list[int]) -> dict[str, Any]:
    """Return the values that the script shows per group, in the format of a chart."""
    y, stops = _make_dots_axis(dots), []
    for i, (name, values) in enumerate(dots.groups.items()):
        present = [v for v in values if is_number(v)]
        rows = [[i, round(y.at(v), 4), format_number(v)] for v in present]
        heading = f"{name}: mean {_format_mean(values)}"
        stops.append([round((i + 0.5) / len(dots.groups), 4), heading, rows])
    return {"names": [], "colours": [marks.colour(look) for look in looks], "stops": stops}


def _format_mean(values: list[float]) -> str:
    present = [v for v in values if is_number(v)]
    missing = f" ({len(values) - len(present)} missing)" if len(present) < len(values) else ""
    return (format_number(fmean(present)) if present else MISSING) + f" of {len(present)}{missing}"

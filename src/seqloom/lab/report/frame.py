"""Axes, grid and labels of a picture as SVG, in two sizes: for a page and for a phone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqloom.lab.report.markup import Markup, join, tag
from seqloom.lab.report.scale import AxisScale

WIDE, NARROW = (780.0, 380.0), (348.0, 300.0)  # pixels; CSS shows one of the two
LETTER = 7.2  # pixels, about the width of a letter in pictures
LINE = 14.0  # pixels, the height of a line of text
ASLANT, UPRIGHT = 40, 90  # degrees by which long names below an axis are rotated


@dataclass(frozen=True)
class Frame:
    """Size of a picture and margins of its plot, in pixels."""

    width: float
    height: float
    left: float
    bottom: float  # margins
    top: float = 34.0
    right: float = 14.0

    def x(self, share: float) -> float:
        return self.left + share * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def fit_frame(size: tuple[float, float], y: AxisScale, names: Sequence[str] = ()) -> Frame:
    """Return a frame whose margins fit the longest labels: numbers on the left, names below."""
    width, height = size
    left, bottom = 16 + LETTER * max((len(tick.text) for tick in y.ticks), default=0), 50.0
    if names and (turn := math.radians(_choose_angle(names, width))):
        widths = [LETTER * len(_shorten_name(name, width)) for name in names]
        bottom = 34 + math.sin(turn) * max(widths)
        apart = 0.8 * width / len(names)  # a lower bound; each name ends below the middle of its group
        left = max(left, *(math.cos(turn) * size - apart * (i + 0.4) for i, size in enumerate(widths)))
    return Frame(width, height + bottom - 50, left, bottom)


def draw_both_sizes(label: str, draw: Callable[[tuple[float, float]], tuple[Frame, Markup]]) -> Markup:
    """Draw the picture in both sizes; screen readers see only the visible one."""
    pictures = []
    for size, name in ((WIDE, "wide"), (NARROW, "narrow")):
        frame, inside = draw(size)
        left, right, top, bottom = frame.x(0), frame.x(1), frame.y(1), frame.y(0)
        pictures.append(
            tag(
                "svg",
                inside,
                class_=f"picture {name}",
                viewBox=f"0 0 {frame.width:g} {frame.height:g}",
                role="img",
                aria_label=label,
                data_box=f"{left:.1f} {top:.1f} {right - left:.1f} {bottom - top:.1f}",
            )
        )
    return join(*pictures)


def draw_y_axis(frame: Frame, scale: AxisScale, label: str) -> Markup:
    """Draw horizontal grid lines with their numbers, and the label above them."""
    left, right = frame.x(0), frame.x(1)
    pieces = [tag("text", _shorten(label, frame.width), x=2.0, y=16.0, class_="label")]
    for tick in scale.ticks:
        y = frame.y(tick.at)
        pieces.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        pieces.append(tag("text", tick.text, x=left - 8, y=y + 4, class_="tick end"))
    return join(*pieces)


def draw_x_axis(frame: Frame, scale: AxisScale, label: str) -> Markup:
    """Draw the lower edge with its numbers, omitting numbers that would overlap."""
    floor, free = frame.y(0), -1.0
    pieces = [tag("line", x1=frame.x(0), x2=frame.x(1), y1=floor, y2=floor, class_="edge")]
    for tick in sorted(scale.ticks, key=lambda tick: tick.at):
        x, half = frame.x(tick.at), LETTER * len(tick.text) / 2
        pieces.append(tag("line", x1=x, x2=x, y1=floor, y2=floor + 5, class_="edge"))
        if x - half >= free and x + half <= frame.width:
            pieces.append(tag("text", tick.text, x=x, y=floor + 20, class_="tick middle"))
            free = x + half + LETTER
    middle = (frame.x(0) + frame.x(1)) / 2
    pieces.append(tag("text", _shorten(label, frame.width), x=middle, y=floor + 42, class_="label middle"))
    return join(*pieces)


def draw_names_axis(frame: Frame, names: Sequence[str]) -> Markup:
    """Draw names side by side below the plot, rotated if they do not fit."""
    floor, angle = frame.y(0), _choose_angle(names, frame.width)
    pieces = [tag("line", x1=frame.x(0), x2=frame.x(1), y1=floor, y2=floor, class_="edge")]
    for i, name in enumerate(names):
        x, text = frame.x((i + 0.5) / len(names)), _shorten_name(name, frame.width)
        x += 4 if angle == UPRIGHT else 0  # half a letter's height
        turn = f"rotate({-angle} {x:.1f} {floor + 16:.1f})" if angle else None
        place = {"x": x, "y": floor + (16 if angle else 20), "transform": turn}
        pieces.append(tag("text", text, class_="tick end" if angle else "tick middle", **place))
    return join(*pieces)


def _choose_angle(names: Sequence[str], width: float) -> int:
    """Return by how many degrees names must be rotated so that they do not overlap."""
    longest, apart = LETTER * max(len(_shorten_name(name, width)) for name in names), (width - 70) / len(names)
    if longest + LETTER <= apart:
        return 0
    return ASLANT if apart * math.sin(math.radians(ASLANT)) >= LINE else UPRIGHT


def _shorten_name(name: str, width: float) -> str:
    most = 26 if width > NARROW[0] else 18
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _shorten(text: str, width: float) -> str:
    most = int(width / LETTER) - 4
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""The frame of a picture: axes, grid and labels as SVG, in two shapes, for a page and for a phone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqloom.lab.report.markup import Markup, join, tag
from seqloom.lab.report.scale import Scale

WIDE, NARROW = (780.0, 380.0), (348.0, 300.0)  # CSS shows one of the two
LETTER = 7.2  # about the width of a letter in the pictures' type
LINE = 14.0  # and the height of a line of it
ASLANT, UPRIGHT = 40, 90  # degrees by which long names under an axis are turned


@dataclass(frozen=True)
class Frame:
    """Where the plot is in the picture, in pixels."""

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


def fit(size: tuple[float, float], y: Scale, names: Sequence[str] = ()) -> Frame:
    """A frame whose margins hold the longest labels: numbers to the left, and names below where there are any."""
    width, height = size
    left, bottom = 16 + LETTER * max((len(tick.text) for tick in y.ticks), default=0), 50.0
    if names and (turn := math.radians(_turn(names, width))):
        shown = [LETTER * len(_cut(name, width)) for name in names]
        bottom = 34 + math.sin(turn) * max(shown)
        apart = 0.8 * width / len(names)  # at least; each name ends in its group's middle
        left = max(left, *(math.cos(turn) * size - apart * (i + 0.4) for i, size in enumerate(shown)))
    return Frame(width, height + bottom - 50, left, bottom)


def both(label: str, draw: Callable[[tuple[float, float]], tuple[Frame, Markup]]) -> Markup:
    """The picture in both shapes; only the shown one is read out."""
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


def y_axis(frame: Frame, scale: Scale, label: str) -> Markup:
    """Lines across the plot with their numbers, and the label above them, where it need not be turned."""
    left, right = frame.x(0), frame.x(1)
    pieces = [tag("text", _short(label, frame.width), x=2.0, y=16.0, class_="label")]
    for tick in scale.ticks:
        y = frame.y(tick.at)
        pieces.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        pieces.append(tag("text", tick.text, x=left - 8, y=y + 4, class_="tick end"))
    return join(*pieces)


def x_axis(frame: Frame, scale: Scale, label: str) -> Markup:
    """The lower edge with its numbers; one that would run into its neighbour is left out."""
    floor, free = frame.y(0), -1.0
    pieces = [tag("line", x1=frame.x(0), x2=frame.x(1), y1=floor, y2=floor, class_="edge")]
    for tick in sorted(scale.ticks, key=lambda tick: tick.at):
        x, half = frame.x(tick.at), LETTER * len(tick.text) / 2
        pieces.append(tag("line", x1=x, x2=x, y1=floor, y2=floor + 5, class_="edge"))
        if x - half >= free and x + half <= frame.width:
            pieces.append(tag("text", tick.text, x=x, y=floor + 20, class_="tick middle"))
            free = x + half + LETTER
    middle = (frame.x(0) + frame.x(1)) / 2
    pieces.append(tag("text", _short(label, frame.width), x=middle, y=floor + 42, class_="label middle"))
    return join(*pieces)


def names_axis(frame: Frame, names: Sequence[str]) -> Markup:
    """Names side by side below the plot, turned where they do not fit."""
    floor, turned = frame.y(0), _turn(names, frame.width)
    pieces = [tag("line", x1=frame.x(0), x2=frame.x(1), y1=floor, y2=floor, class_="edge")]
    for i, name in enumerate(names):
        x, shown = frame.x((i + 0.5) / len(names)), _cut(name, frame.width)
        x += 4 if turned == UPRIGHT else 0  # half a letter's height
        turn = f"rotate({-turned} {x:.1f} {floor + 16:.1f})" if turned else None
        place = {"x": x, "y": floor + (16 if turned else 20), "transform": turn}
        pieces.append(tag("text", shown, class_="tick end" if turned else "tick middle", **place))
    return join(*pieces)


def _turn(names: Sequence[str], width: float) -> int:
    """By how many degrees names must be turned so that none runs into the next."""
    longest, apart = LETTER * max(len(_cut(name, width)) for name in names), (width - 70) / len(names)
    if longest + LETTER <= apart:
        return 0
    return ASLANT if apart * math.sin(math.radians(ASLANT)) >= LINE else UPRIGHT


def _cut(name: str, width: float) -> str:
    most = 26 if width > NARROW[0] else 18
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _short(text: str, width: float) -> str:
    most = int(width / LETTER) - 4
    return text if len(text) <= most else f"{text[: most - 1]}…"

"""Colour, shape and dash of curves; one name looks the same in all pictures of a page."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.lab.report.markup import Markup, tag

COLOURS = 8  # --c0 .. --c7 in page.css
SHAPES = (  # around the point, as a relative path
    "m-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0z",  # disc
    "m-3.2,-3.2h6.4v6.4h-6.4z",  # square
    "m0,-4.4l4.2,7.4h-8.4z",  # triangle
    "m0,-4.8l4.4,4.8l-4.4,4.8l-4.4,-4.8z",  # diamond
    "m0,4.4l4.2,-7.4h-8.4z",  # triangle, on its point
    "m-1.4,-4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",  # plus
    "m-4.4,0l2.2,-3.9h4.4l2.2,3.9l-2.2,3.9h-4.4z",  # hexagon
    "m0,-5.6l1.6,4l4,1.6l-4,1.6l-1.6,4l-1.6,-4l-4,-1.6l4,-1.6z",  # star
)
DASHES = 4  # .d0 .. .d3 in page.css


def choose_looks(names: Sequence[str], before: dict[str, int]) -> list[int]:
    """Return a look for each name: the one it had `before` on this page, or the first free one."""
    looks: list[int] = []
    reserved = {before[name] for name in names if name in before}
    for name in names:
        look = before.get(name, -1)
        if look < 0 or look in looks:
            look = next(i for i in range(len(looks) + len(reserved) + 1) if i not in looks and i not in reserved)
        before.setdefault(name, look)
        looks.append(look)
    return looks


def colour(look: int) -> str:
    return f"c{look % COLOURS}"


def dash(look: int) -> str:
    return f"d{look // COLOURS % DASHES}"


def draw_mark(look: int, x: float, y: float) -> str:
    """Return the SVG path of a mark. The 9th look has the colour of the 1st, but another shape."""
    return f"M{x:.1f},{y:.1f}{SHAPES[(look + look // COLOURS) % len(SHAPES)]}"


def draw_swatch(look: int) -> Markup:
    """Draw the look for a legend."""
    line = tag("path", d="M0,7H28", class_=f"stroke {dash(look)}")
    mark = tag("path", d=draw_mark(look, 14, 7), class_="mark")
    return tag("svg", line, mark, class_="swatch", viewBox="0 0 28 14", aria_hidden="true")

"""Where a model looked, as a picture that needs no library."""

from __future__ import annotations

import html
from typing import Any

CELL, LETTER, GAP = 24, 7, 24  # pixels: a square, a letter's width, between grids
WRITTEN = 0.1  # weights from here on are written into their squares
BLUE = "#1f4e9c"
STYLE = (
    "text { font: 13px sans-serif } .name { font: bold 16px sans-serif } "
    ".weight { font: 10px sans-serif; text-anchor: middle }"
)
CAPTION = (
    "Each row is a word that was written; each column a word of the source. Numbers: the share of attention in percent."
)


def picture(shown: dict[str, list[dict[str, Any]]]) -> str:
    """The alignments as one SVG: a row of grids for each model."""
    parts, y, wide = [f'<text x="{GAP}" y="24">{CAPTION}</text>'], 60, LETTER * len(CAPTION)
    for name, grids in shown.items():
        parts.append(f'<text class="name" x="{GAP}" y="{y}">{html.escape(name)}</text>')
        longest = max((len(word) for grid in grids for word in grid["source"]), default=0)
        top = y + LETTER * longest + 12  # below words that lean by 60 degrees
        x, below = GAP, top
        for grid in grids:
            lines, right, bottom = _grid(grid, x, top)
            parts += lines
            x, below = right + GAP, max(below, bottom)
        y, wide = below + 2 * GAP, max(wide, x)
    size = f'width="{wide}" height="{y}" viewBox="0 0 {wide} {y}"'
    back = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{back}{"".join(parts)}</svg>\n'


def _grid(grid: dict[str, Any], x: int, top: int) -> tuple[list[str], int, int]:
    """One sentence, words from x on and squares from top on, and where it ends."""
    source, target = grid["source"], grid["target"]
    left = x + LETTER * max(map(len, target)) + 8
    parts = []
    for j, word in enumerate(source):
        at = f"{left + j * CELL + 16} {top - 6}"
        parts.append(f'<text transform="translate({at}) rotate(-60)">{html.escape(word)}</text>')
    for i, word in enumerate(target):
        at_y = top + i * CELL
        parts.append(f'<text x="{left - 6}" y="{at_y + 16}" text-anchor="end">{html.escape(word)}</text>')
        for j, w in enumerate(grid["weights"][i]):
            at_x = left + j * CELL
            parts.append(
                f'<rect x="{at_x}" y="{at_y}" width="{CELL}" height="{CELL}" fill="{BLUE}" '
                f'fill-opacity="{w:.3f}" stroke="#ccc" stroke-width="0.5"/>'
            )
            if w >= WRITTEN:
                ink = "white" if w > 0.5 else "black"
                parts.append(
                    f'<text class="weight" x="{at_x + CELL // 2}" y="{at_y + 15}" fill="{ink}">{100 * w:.0f}</text>'
                )
    return parts, left + CELL * len(source), top + CELL * len(target)

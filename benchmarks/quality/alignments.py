"""Where a model looked, as a picture that needs no library."""

from __future__ import annotations

import html
from typing import Any

CELL, LEFT, TOP = 22, 130, 110  # pixels


def picture(shown: dict[str, list[dict[str, Any]]]) -> str:
    """The alignments as one SVG: a row of grids for each model; the darker, the more it looked there."""
    parts, y, wide = [], 20, 0
    for name, grids in shown.items():
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{name}</text>')
        x, high = 0, 0
        for grid in grids:
            source, target, weights = grid["source"], grid["target"], grid["weights"]
            for j, word in enumerate(source):
                at = f"{x + LEFT + j * CELL + 15} {y + TOP - 6}"
                parts.append(f'<text transform="translate({at}) rotate(-60)">{html.escape(word)}</text>')
            for i, word in enumerate(target):
                at_y = y + TOP + i * CELL
                parts.append(f'<text x="{x + LEFT - 6}" y="{at_y + 15}" text-anchor="end">{html.escape(word)}</text>')
                parts += [
                    f'<rect x="{x + LEFT + j * CELL}" y="{at_y}" width="{CELL}" height="{CELL}" fill="#1f4e9c" '
                    f'fill-opacity="{w:.3f}" stroke="#ccc" stroke-width="0.5"/>'
                    for j, w in enumerate(weights[i])
                ]
            x, high = x + LEFT + len(source) * CELL + 30, max(high, TOP + len(target) * CELL)
        y, wide = y + high + 40, max(wide, x)
    size = f'width="{wide}" height="{y}" viewBox="0 0 {wide} {y}"'
    style = '<style>text { font: 12px sans-serif }</style><rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'

"""Write the parts of the pages that come from stored records: python -m research generate.

With `--tables`, pages alone are written; the figures of tutorials need trainings of a few seconds.
Between the marks `<!-- generated: NAME -->` and `<!-- end -->` of a page stands what the function NAME of PARTS
returns. Figures go to docs/images. Nothing is measured here: the records are in research/results.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
import tempfile

from research.pages import (
    ablation,
    attn_rnn,
    calls,
    cell_map,
    claims,
    compiled_cells,
    depth,
    forms,
    front_page,
    goals,
    kernel_rules,
    kinds,
    parallel,
    policies,
    speed,
    study_pages,
)
from research.pages.records import ROOT

IMAGES = ROOT / "docs" / "images"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / "results" / f"{name}.md"
        for name in ("attn-rnn", "speed", "overview", "claims", "goals", "forms", "kinds")
    ),
    ROOT / "docs" / "tutorials" / "own-cell.md",
    ROOT / "docs" / "how-to" / "reinforcement-learning.md",
    ROOT / "docs" / "reference" / "cell-map.md",
    ROOT / "docs" / "theory" / "parallel.md",
    ROOT / "docs" / "how-to" / "deep-stacks.md",
    ROOT / "docs" / "decisions" / "0010-attn-rnn-as-it-is.md",
    ROOT / "src" / "seqloom" / "kernels" / "README.md",
)
MARKS = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
    if "--tables" in sys.argv[1:]:
        return
    speed.draw_speed(IMAGES / "speed.svg")
    compiled_cells.draw_stages(IMAGES / "compiler.svg")
    cell_map.draw_tree(IMAGES / "cells.svg")
    policies.draw_curves(IMAGES / "policies.svg")
    cell_map.draw_gates(IMAGES / "cell-gates.svg")
    kinds.draw_kinds(IMAGES / "kinds.svg")
    parallel.draw_passes(IMAGES / "passes.svg")
    for name in ("intents", "translation", "forecast"):
        draw_tutorial(name)


def fill(text: str) -> str:
    """Return a page with every generated part written again."""
    return MARKS.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def draw_tutorial(name: str) -> None:
    """Run a tutorial's snippets and keep the picture that they draw."""
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), {"__name__": "__main__"})
        shutil.copy(f"{name}.svg", IMAGES)


PARTS = {
    part.__name__: part
    for part in (
        *speed.PARTS,
        *attn_rnn.PARTS,
        *front_page.PARTS,
        *ablation.PARTS,
        *calls.PARTS,
        *cell_map.PARTS,
        *compiled_cells.PARTS,
        *depth.PARTS,
        *goals.PARTS,
        *forms.PARTS,
        *policies.PARTS,
        *kernel_rules.PARTS,
        *kinds.PARTS,
        *parallel.PARTS,
        *study_pages.PARTS,
        *claims.PARTS,
    )
}

"""Write run.py: the modules of `runner` as one file that needs neither seqloom nor torch."""

from __future__ import annotations

import ast
from pathlib import Path

PARTS = ("rows", "results", "model")  # in the order of their use


def write_runner(folder: Path) -> None:
    """Write run.py to a folder."""
    (folder / "run.py").write_text(join_modules(), encoding="utf-8")


def join_modules() -> str:
    """Return the modules of `runner` as one: the docstring of the last, all imports, then the code of each."""
    imports: dict[str, None] = {}
    bodies: list[str] = []
    docstring = ""
    for name in PARTS:
        text = (Path(__file__).parent / "runner" / f"{name}.py").read_text(encoding="utf-8")
        lines, tree = text.splitlines(), ast.parse(text)
        docstring = "\n".join(lines[: tree.body[0].end_lineno])
        statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in statements:
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seqloom")):
                imports["\n".join(lines[node.lineno - 1 : node.end_lineno])] = None
        bodies.append("\n".join(lines[statements[-1].end_lineno or 0 :]).strip("\n"))
    first, *others = sorted(imports, key=lambda line: ("__future__" not in line, "numpy" in line, line))
    return "\n\n".join([docstring, first, "\n".join(others), "\n\n\n".join(bodies)]) + "\n"

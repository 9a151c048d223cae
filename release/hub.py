"""Write a build of the layers for the Hugging Face `kernels` library: python release/hub.py FOLDER.

FOLDER/build/torch-universal then holds the package without the lab, the command and the CPU engine: Python and CUDA
sources, which NVRTC compiles on the user's machine. `kernels` imports it under a name of its own and from any folder,
beside an installed seqloom and beside other versions; so imports become relative, and operators are registered under
the name of the build.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "seqloom"
LEFT_OUT = ("lab/", "cli/", "lib/", "tools/onnx/", "tools/rl/", "__main__.py")  # need other packages than torch
COPIED = {".py", ".pyi", ".cu", ".cuh"}
PACKAGE = "__name__.partition('.')[0]"  # the name of the build, inside of it
VERSION = 1  # of the interface: users ask for get_kernel(..., version=1)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path)
    print(write_build(flags.parse_args().folder))


def write_build(folder: Path) -> Path:
    """Write the build and its metadata into a folder, in place of an earlier build, and return its place."""
    home = folder / "build" / "torch-universal"
    shutil.rmtree(home, ignore_errors=True)
    (release,) = re.findall(r'^__version__ = "(.+)"$', (SOURCE / "__init__.py").read_text(), re.MULTILINE)
    name = "_seqloom_" + re.sub(r"\W", "_", release)
    for file in sorted(SOURCE.rglob("*")):
        place = file.relative_to(SOURCE)
        if file.suffix not in COPIED or place.as_posix().startswith(LEFT_OUT):
            continue
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".pyi":
            lines = [line for line in text.splitlines(keepends=True) if not _is_left_out(line)]
            text = rewrite_imports("".join(lines), 1)
        elif file.suffix == ".py":
            text = rewrite_names(rewrite_imports(text, len(place.parts)), name)
        (home / place).write_text(text, encoding="utf-8")
    about = {"id": name, "name": "seqloom", "version": VERSION, "license": "Apache-2.0", "python-depends": []}
    (home / "metadata.json").write_text(json.dumps(about | {"backend": {"type": "cuda"}}, indent=2) + "\n")
    return home


def rewrite_imports(text: str, depth: int) -> str:
    """Make imports of seqloom relative in a file that lies `depth` - 1 folders below the package's.

    >>> rewrite_imports("from seqloom.core.cell import Cell", 2)
    'from ..core.cell import Cell'
    """
    return re.sub(r"^(\s*from )seqloom\b\.?", rf"\1{'.' * depth}", text, flags=re.MULTILINE)


def rewrite_names(text: str, name: str) -> str:
    """Replace the package's name in the paths of its modules and in the names of its operators.

    >>> rewrite_names('HOME = "seqloom.layers.named"', "_seqloom_1")
    "HOME = (__name__.partition('.')[0] + '.layers.named')"
    >>> rewrite_names('custom_op("seqloom::scan")', "_seqloom_1")
    "custom_op('_seqloom_1::scan')"
    """
    lines = text.splitlines(keepends=True)
    for node in sorted(_find_texts(text), key=lambda n: (n.lineno, n.col_offset), reverse=True):
        if re.fullmatch(r"seqloom(\.\w+)*\.", node.value) or re.fullmatch(r"seqloom(\.\w+)+", node.value):
            new = f"({PACKAGE} + {node.value.removeprefix('seqloom')!r})"
        elif node.value.startswith("seqloom::"):
            new = repr(node.value.replace("seqloom", name, 1))
        else:
            continue
        line = lines[node.lineno - 1].encode()  # columns count bytes
        lines[node.lineno - 1] = (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()
    return "".join(lines)


def _find_texts(text: str) -> list[ast.Constant]:
    """Return the strings of a file that stand on one line, without the parts of f-strings."""
    nodes = list(ast.walk(ast.parse(text)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in parts]
    return [n for n in texts if n.lineno == n.end_lineno]


def _is_left_out(line: str) -> bool:
    """Return whether a line of the list of public names imports from a module that is left out."""
    module = line.partition("from seqloom.")[2].partition(" ")[0].replace(".", "/")
    return module.startswith(LEFT_OUT)


if __name__ == "__main__":
    main()

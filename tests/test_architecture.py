"""Who may import whom: only downwards."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seqloom

PACKAGE = Path(seqloom.__file__).parent
# The floors of the house, highest first. A module may import from its own floor and from those below.
FLOORS = [
    {"__main__", "cli"},
    {"commands"},
    {"report"},
    {"studies", "bench", "compare", "advise"},
    {"engine", "engines"},
    {"study", "lab", "estimators"},
    {"testing", "doctor", "explain", "trace", "convert", "measure", "timing", "pictures"},
    {"train", "training", "run", "predict"},
    {"models"},
    {"layers"},
    {"scan"},
    {"op"},
    {"kernel"},
    {"cells", "kernels", "tasks", "attention"},
    {"job", "init", "task"},
    {"weights"},
    {"cell"},
    {"checks"},
    {
        "errors",
        "precision",
        "settings",
        "train_settings",
        "metrics",
        "console",
        "interval",
        "stats",
        "page",
        "whole",
        "__init__",
    },
]
FLOOR = {room: depth for depth, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("seqloom"):
            yield from (f"seqloom.{a.name}" if node.module == "seqloom" else node.module for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("seqloom"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_module_imports_only_downwards(file):
    if file == PACKAGE / "__init__.py":
        return  # it re-exports everything, when asked
    mine = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imported(file):
        theirs = room(module)
        if theirs not in FLOOR:
            continue  # seqloom.__version__ and the like
        lazily = (mine, theirs) == ("cell", "cells")  # a name is looked up among all cells
        assert lazily or FLOOR[mine] <= FLOOR[theirs], f"{mine} imports {module}, which stands above it"


def test_cells_do_not_know_kernels_and_kernels_do_not_know_cells():
    for one, other in (("cells", "kernels"), ("kernels", "cells")):
        for file in (PACKAGE / one).glob("*.py"):
            assert not any(room(m) == other for m in imported(file)), file


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_file_is_short(file):
    assert len(file.read_text().splitlines()) <= 250


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_importing_the_layers_needs_torch_alone():
    heavy = ("numpy", "sklearn", "pydantic", "rich", "cyclopts", "onnx")
    use = "import seqloom; seqloom.GRU(2, 4)"
    loaded = python(f"import sys, torch; before = set(sys.modules); {use}; print(*(set(sys.modules) - before))")
    assert not [m for m in loaded if m.split(".")[0] in heavy]


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    names = "scan convert explain trace"
    code = "import importlib, seqloom; [importlib.import_module('seqloom.' + n) for n in '{0}'.split()];"
    code += "print(*(callable(getattr(seqloom, n)) for n in '{0}'.split()))"
    assert python(code.format(names)) == ["True"] * 4


def test_importing_seqloom_adds_under_50_ms_to_torch_or_a_twentieth_of_it_where_the_machine_is_slow():
    now = "time.process_time()"
    code = f"import time; s = {now}; import torch; t = {now}; import seqloom; seqloom.GRU; print({now} - t, t - s)"
    own, torchs = (min(times) for times in zip(*(map(float, python(code)) for _ in range(3)), strict=True))
    assert own < max(0.05, torchs / 20)


def test_every_public_name_is_there_and_is_typed():
    block = (PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:")[1].split("\n\n")[0]
    typed = {a.name for n in ast.walk(ast.parse("if 1:" + block)) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == set(seqloom.__all__)
    for name in seqloom.__all__:
        assert getattr(seqloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'GUR'"):
        _ = seqloom.GUR

"""Who may import whom: only downwards."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import seqloom
from seqloom.errors import TORCH, check_torch

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
        "scratch",
        "sealed",
        "trust",
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
LAB = ("Run", "SequenceClassifier", "SequenceRegressor", "SequenceTagger", "fit")
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


def test_a_module_imports_only_downwards():
    wrong = []
    for file in FILES:
        if file == PACKAGE / "__init__.py":
            continue  # it re-exports everything, when asked
        mine = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imported(file):
            theirs = room(module)
            if theirs not in FLOOR:
                continue  # seqloom.__version__ and the like
            lazily = (mine, theirs) == ("cell", "cells")  # a name is looked up among all cells
            if not lazily and FLOOR[mine] > FLOOR[theirs]:
                wrong.append(f"{file.relative_to(PACKAGE)} imports {module}, which stands above it")
    assert not wrong


def test_cells_do_not_know_kernels_and_kernels_do_not_know_cells():
    for one, other in (("cells", "kernels"), ("kernels", "cells")):
        for file in (PACKAGE / one).glob("*.py"):
            assert not any(room(m) == other for m in imported(file)), file


def test_files_are_short():
    lines = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert not {file: count for file, count in lines.items() if count > 400}


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


def test_every_public_name_is_there_and_is_typed():
    block = (PACKAGE / "__init__.py").read_text().split("if TYPE_CHECKING:")[1].split("\n\n")[0]
    typed = {a.name for n in ast.walk(ast.parse("if 1:" + block)) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == {*seqloom.__all__, *LAB}
    for name in typed:
        assert getattr(seqloom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'GUR'"):
        _ = seqloom.GUR


WITHOUT_LAB = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sklearn", "pydantic", "polars", "cyclopts", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
"""


def test_a_torch_that_is_too_old_is_named_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1+cpu")
    with pytest.raises(ImportError, match=r"needs torch 2\.\d+ or newer, found 2\.5\.1\+cpu; .*pip install 'torch>=2"):
        check_torch()
    for new in ("2.13.0+cpu", "3.0.0a0", "2.15.1"):
        monkeypatch.setattr("importlib.metadata.version", lambda _, new=new: new)
        check_torch()


def test_the_oldest_torch_is_the_one_that_the_package_asks_for():
    wanted = next(r for r in metadata.requires("seqloom") if r.startswith("torch"))
    assert wanted == f"torch>={'.'.join(map(str, TORCH))}"


def test_everything_but_the_lab_can_be_imported_without_it():
    python(WITHOUT_LAB + "from seqloom import *\nGRU(4, 8), Transformer(16, heads=4), testing, measure")


def test_a_name_of_the_lab_says_how_to_install_it():
    code = """
import seqloom
for name in {!r}:
    try:
        getattr(seqloom, name)
    except ImportError as error:
        print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_LAB + code.format(LAB)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name, line in zip(LAB, told, strict=True):
        assert line.startswith(f"seqloom.{name} needs ") and line.endswith("pip install 'seqloom[lab]'")

"""Imports point downwards only."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

import seqloom
from seqloom.core.errors import TORCH, check_torch
from seqloom.lab.kinds.forms import KINDS

PACKAGE = Path(seqloom.__file__).parent
# From top to bottom. A module may import from its own folder and from folders on lower floors.
FLOORS = (
    {"__main__"},
    {"cli"},
    {"lab"},
    {"tools"},
    {"models"},
    {"layers"},
    {"kernels", "cells", "attention"},
    {"compiler"},
    {"core"},
)
FLOOR = {folder: depth for depth, folders in enumerate(FLOORS) for folder in folders}
# The same inside the lab, where no folder imports one beside it on its floor; files of the lab count as folders. What
# reading a file must know of each kind of task is below the data, so that it can be beside the kinds.
LAB_FLOORS = (
    {"bench", "interface"},
    {"compare", "advise", "explore", "serve", "export", "estimators"},
    {"training"},
    {"kinds"},
    {"data"},
    {"kinds.forms"},
    {"stats", "report", "jobs", "web", "cell_names"},
    {"files", "console"},
)
ONE_KIND = r"\b(Classes|Labels|Tags|Values|ValuesTarget|For[A-Z]\w+)\b"  # classes of a target or model of one kind
LAB = ("Run", "SequenceClassifier", "SequenceRegressor", "SequenceTagger")
LAB += ("advise", "compare", "explore", "load", "train")
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")  # which re-exports everything
MODULES = {".".join(("seqloom", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in FILES}
MODULES = {name.removesuffix(".__init__"): file for name, file in MODULES.items()}
# Modules that import others by a computed name: files of their own folder, a person's file, or an optional package.
BY_NAME = {
    "cells/__init__.py": "every file of the folder is a cell",
    "compiler/reads.py": "names functions that import; imports nothing itself",
    "compiler/watch.py": "names functions that import; imports nothing itself",
    "core/errors.py": "optional packages",
    "kernels/scan.py": "asks whether torch has an operator",
    "lab/bench/race.py": "optional packages",
    "lab/compare/folder.py": "asks whether a package is installed",
    "layers/whole.py": "layers, when torch.load reads one",
    "lab/jobs/cluster.py": "asks whether a package is installed",
    "lab/jobs/call.py": "the function of a job, which has its module's name",
    "layers/linear/__init__.py": "every file of the folder is a linear recurrence",
}


@cache
def list_nodes(file):
    """Parse a file once and return every node of its tree."""
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def find_imports(file):
    """Return the modules that a file imports, at its top and inside functions."""
    return list(generate_imports(file))


def generate_imports(file):
    for node in list_nodes(file):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a module is"
            if node.module and node.module.split(".")[0] == "seqloom":
                yield from (n if (n := f"{node.module}.{a.name}") in MODULES else node.module for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "seqloom")


def folder_of(module):
    return module.split(".")[1]


def test_the_package_has_the_folders_of_the_architecture():
    assert {folder_of(name) for name in MODULES} == set(FLOOR)


def test_a_module_imports_only_downwards():
    wrong = []
    for name, file in MODULES.items():
        for module in find_imports(file):
            if module == "seqloom":
                assert "from seqloom import __version__" in file.read_text(), f"{name}: seqloom re-exports everything"
                continue
            assert module in MODULES, f"{name} imports {module}, which is not there"
            mine, theirs = folder_of(name), folder_of(module)
            if mine != theirs and FLOOR[mine] >= FLOOR[theirs]:
                wrong.append(f"{name} imports {module}, which is not below it")
    assert not wrong


def lab_folder_of(module):
    """Return the folder of a module, or the module itself if it has its own floor."""
    return "kinds.forms" if module == "seqloom.lab.kinds.forms" else module.split(".")[2]


def list_imports_in_lab():
    """Return pairs of modules of the lab, the first of which imports the second."""
    inside = {name: file for name, file in MODULES.items() if name.startswith("seqloom.lab.")}
    return [(name, module) for name, file in inside.items() for module in find_imports(file) if module in inside]


def test_the_lab_has_the_floors_of_the_architecture():
    floor = {folder: depth for depth, folders in enumerate(LAB_FLOORS) for folder in folders}
    pairs = list_imports_in_lab()
    assert {lab_folder_of(name) for name in MODULES if name.startswith("seqloom.lab.")} == set(floor)
    wrong = []
    for name, module in pairs:
        mine, theirs = lab_folder_of(name), lab_folder_of(module)
        if mine != theirs and floor[mine] >= floor[theirs]:
            wrong.append(f"{name} imports {module}, which is not below it")
    assert not wrong


def test_no_modules_of_the_lab_import_each_other_in_a_circle():
    imported = {}
    for name, module in list_imports_in_lab():
        imported.setdefault(name, set()).add(module)
    left = dict(imported)
    while free := [name for name, modules in left.items() if not modules & set(left)]:
        left = {name: modules for name, modules in left.items() if name not in free}
    assert not left


def find_kinds(file):
    """Yield the places where a module names a kind of task, or asks for the class of a target or model of one kind."""
    for node in list_nodes(file):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        is_message = re.search(rf"\bkind[= ]({'|'.join(KINDS)})\b", text)
        is_check = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if text in KINDS or is_message or (is_check and re.search(ONE_KIND, ast.unparse(node.args[1]))):
            yield f"{file.relative_to(PACKAGE)}:{node.lineno}"


def test_what_differs_between_kinds_of_task_is_in_their_files():
    lab = PACKAGE / "lab"
    files = [file for file in lab.rglob("*.py") if "kinds" not in file.relative_to(lab).parts]
    assert not [place for file in files for place in find_kinds(file)]


def test_private_modules_and_names_are_used_in_their_own_folder():
    wrong = []
    for name, file in MODULES.items():
        here = file.parent
        for node in list_nodes(file):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("seqloom."):
                continue
            parts = [*node.module.split("."), *(a.name for a in node.names)]
            if any(part.startswith("_") and not part.startswith("__") for part in parts):
                source = MODULES[node.module]
                if source.parent != here:
                    wrong.append(f"{name} imports {node.module} {[a.name for a in node.names]}")
    assert not wrong


def test_modules_are_not_imported_by_computed_names():
    users = {
        str(file.relative_to(PACKAGE)): file
        for file in FILES
        if re.search(r"import_module|find_spec|module_from_spec|__import__", file.read_text())
    }
    assert set(users) == set(BY_NAME)


def test_settings_do_not_travel_through_the_environment():
    wrong = [file for file in FILES if re.search(r"os\.environ\[[^]]+\]\s*=[^=]|putenv", file.read_text())]
    assert not wrong


def test_every_folder_has_a_docstring():
    assert not [
        file for file in FILES if file.name == "__init__.py" and not ast.get_docstring(ast.parse(file.read_text()))
    ]


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()


def test_importing_the_package_imports_little_and_the_layers_need_torch_alone():
    use = "import seqloom; print(*(set(sys.modules) - before))"
    (alone,) = python(f"import sys; before = set(sys.modules); {use}")
    assert set(alone.split()) <= {"seqloom", "__future__"}
    more = "seqloom.GRU(2, 4); print(*(set(sys.modules) - before))"
    with_torch, with_layers = python(f"import sys, torch; before = set(sys.modules); {use}; {more}")
    assert set(with_torch.split()) <= {"seqloom", "seqloom.layers", "seqloom.layers.whole", "__future__"}
    heavy = ("numpy", "sklearn", "pydantic", "rich", "cyclopts", "onnx")
    assert not [name for name in with_layers.split() if name.split(".")[0] in heavy]


def test_every_public_name_is_there_and_is_typed():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    typed = {a.name for n in ast.walk(stub) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == {*seqloom.__all__, *LAB} and typed <= set(dir(seqloom))
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


def test_a_torch_that_is_too_old_is_named_with_the_command_to_upgrade_it(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1+cpu")
    with pytest.raises(ImportError, match=r"needs torch 2\.\d+ or newer, found 2\.5\.1\+cpu; .*pip install 'torch>=2"):
        check_torch()
    for new in ("2.13.0+cpu", "3.0.0a0", "2.15.1"):
        monkeypatch.setattr("importlib.metadata.version", lambda _, new=new: new)
        check_torch()


def test_the_oldest_torch_is_the_one_that_the_package_asks_for():
    wanted = next(r for r in metadata.requires("seqloom") if r.startswith("torch"))
    assert wanted == f"torch>={'.'.join(map(str, TORCH))}"


def test_without_the_lab_everything_else_can_be_imported_and_its_names_say_how_to_install_it():
    code = """
import seqloom
for name in {!r}:
    try:
        getattr(seqloom, name)
    except ImportError as error:
        print(error)
from seqloom import *
GRU(4, 8), Transformer(16, heads=4), testing, measure
"""
    told = python(WITHOUT_LAB + code.format(LAB))
    for name, line in zip(LAB, told, strict=True):
        assert line.startswith(f"seqloom.{name} needs ") and "pip install 'seqloom[lab]'" in line


def test_every_public_class_has_a_name_of_its_own():
    places = {}
    for file in FILES:
        for node in list_nodes(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_no_function_of_the_lab_returns_a_tuple_of_more_than_three_values():
    wrong = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in FILES
        if "lab" in file.relative_to(PACKAGE).parts
        for node in list_nodes(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None
        for part in ast.walk(node.returns)
        if isinstance(part, ast.Subscript)
        and ast.unparse(part.value) == "tuple"
        and isinstance(part.slice, ast.Tuple)
        and len(part.slice.elts) > 3
    ]
    assert not wrong


def test_the_map_of_the_lab_names_files_that_are_there():
    text = (PACKAGE / "lab" / "README.md").read_text()
    rows = [line for line in text.split("Floors")[0].splitlines() if line.startswith("| ") and "`" in line]
    files = [name for line in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", line) if "KIND" not in name]
    assert len(rows) >= 20 and len(files) >= 20
    assert not [name for name in files if not (PACKAGE / name).exists() and not (PACKAGE / "lab" / name).exists()]
    assert len(text.splitlines()) <= 60

"""The build for the Hugging Face library `kernels` needs no installed seqloom and computes what torch.nn computes."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

HUB = runpy.run_path(str(Path(__file__).parents[1] / "release" / "hub.py"))

# Imports a build as `kernels` does: under the name in its metadata, from a folder that is on no path.
BY_HAND = """
import importlib.util
def load(home, name):
    spec = importlib.util.spec_from_file_location(name, home + "/build/torch-universal/__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
BY_KERNELS = """
from pathlib import Path
from kernels import get_local_kernel
def load(home, name):
    return get_local_kernel(Path(home))
"""
USE = """
build = load(*sys.argv[1:])
assert build.__name__ == sys.argv[2]
for name in ("GRU", "LSTM", "RNN"):
    ours, theirs = getattr(build, name)(5, 8, 2), getattr(torch.nn, name)(5, 8, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 3, 5)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])

class Mix(build.Cell):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.w, self.u = torch.nn.Linear(D, H), torch.nn.Linear(H, H)
    def step(self, x, state):
        h = torch.tanh(self.w(x) + self.u(state[0]))
        return h, (h,)

fast, slow = build.Recurrent(Mix, 5, 8), build.Recurrent(Mix, 5, 8, kernel="loop")
slow.load_state_dict(fast.state_dict())
torch.testing.assert_close(fast(x)[0], slow(x)[0])
assert all(hasattr(build, name) for name in build.__all__)
assert not [name for name in sys.modules if name.partition(".")[0] == "seqloom"]
import seqloom  # both in one process
assert seqloom.GRU(5, 8)(x)[0].shape == build.GRU(5, 8)(x)[0].shape
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    HUB["write_build"](folder)
    return folder


def test_a_build_imports_no_installed_seqloom(hub):
    files = list((hub / "build" / "torch-universal").rglob("*.py"))
    assert len(files) > 100
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not [name for name in names if name.partition(".")[0] == "seqloom"], file


def test_a_build_holds_the_sources_of_every_cuda_kernel(hub):
    home = hub / "build" / "torch-universal"
    sources = [path.relative_to(HUB["SOURCE"]) for path in HUB["SOURCE"].rglob("*.cu*")]
    assert sources
    assert all((home / path).read_bytes() == (HUB["SOURCE"] / path).read_bytes() for path in sources)


def test_paths_of_modules_and_names_of_operators_are_those_of_the_build():
    assert HUB["rewrite_imports"]("    from seqloom.core.cell import Cell\n", 2) == "    from ..core.cell import Cell\n"
    assert HUB["rewrite_imports"]("from seqloom import cells\n", 3) == "from ... import cells\n"
    text = 'a = "seqloom.layers.named", "seqloom", f"seqloom.{b}", "seqloom::scan"  # é\n'
    namespace = {"__name__": "_build.core", "b": "c"}
    exec(HUB["rewrite_names"](text, "_build"), namespace)
    assert namespace["a"] == ("_build.layers.named", "seqloom", "seqloom.c", "_build::scan")


@pytest.mark.slow
@pytest.mark.parametrize("loader", [BY_HAND, BY_KERNELS], ids=["by hand", "by kernels"])
def test_layers_of_a_build_give_the_results_of_torch(hub, loader):
    if loader is BY_KERNELS and not list(metadata.distributions(name="kernels")):
        pytest.skip("the library `kernels` is not installed")
    name = json.loads((hub / "build" / "torch-universal" / "metadata.json").read_text())["id"]
    assert re.fullmatch(r"_seqloom(_\d+)+", name)
    code = "import sys, torch\n" + loader + USE
    done = subprocess.run([sys.executable, "-c", code, str(hub), name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

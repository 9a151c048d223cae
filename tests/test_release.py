"""What is released agrees with itself: versions, dependencies and the oldest torch are stated alike everywhere."""

import re
import tomllib
from pathlib import Path

import pytest

import seqloom
from seqloom.core.errors import TORCH

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "release" / "conda" / "recipe.yaml").read_text()
OLDEST = ".".join(map(str, TORCH))


def read_requirements(package):
    """Return what a package of the recipe needs when it runs, by name."""
    section = RECIPE.partition(f"name: {package}\n    build:")[2].partition("      run:\n")[2]
    lines = re.match(r"(        - .+\n)+", section)[0].splitlines()
    return {name: bound for _, name, bound in (line.split(maxsplit=2) for line in lines)}


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"(?m)^version: (.+)$"),
        ("CHANGELOG.md", r"\n## \[(\d.+?)\]"),
        ("release/conda/recipe.yaml", r'version: "(.+)"'),
    ],
)
def test_the_version_is_the_same_everywhere(file, pattern):
    assert re.search(pattern, (ROOT / file).read_text())[1] == seqloom.__version__


@pytest.mark.parametrize(
    "file", ["docs/install.md", "docs/releasing.md", "CONTRIBUTING.md", ".github/workflows/test.yml"]
)
def test_the_oldest_torch_is_the_same_everywhere(file):
    assert f"{OLDEST}" in re.findall(r"\b2\.\d+", (ROOT / file).read_text())


def test_the_conda_package_needs_what_the_wheel_needs():
    (torch,) = PROJECT["dependencies"]
    assert read_requirements("seqloom") == {
        "python": PROJECT["requires-python"],
        "pytorch": torch.removeprefix("torch"),
    }


def test_the_conda_package_of_the_lab_needs_what_the_extra_needs():
    lab = dict(re.fullmatch(r"([\w-]+)(.+)", one).groups() for one in PROJECT["optional-dependencies"]["lab"])
    lab["matplotlib-base"] = lab.pop("matplotlib")  # conda-forge's name without a window system
    assert read_requirements("seqloom-lab") == {"seqloom": "==${{ version }}"} | lab

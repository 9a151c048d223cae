"""The examples in docstrings run and print what they show."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest
import torch

import seqloom
from seqloom.lab.compare import timing
from seqloom.lab.jobs import runner

PACKAGE = Path(seqloom.__file__).parent
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_example_runs_and_prints_what_it_shows(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write runs
    monkeypatch.setattr(runner, "Processes", lambda _: runner.Here())  # workers take seconds to start
    monkeypatch.setattr(timing, "LATENCY_SECONDS", 0.0)
    monkeypatch.setattr(seqloom.Cell, "registry", dict(seqloom.Cell.registry))  # examples define cells
    name = ".".join(("seqloom", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    result = doctest.testmod(
        importlib.import_module(name),
        extraglobs={"torch": torch, "seqloom": seqloom},
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted
    assert not result.failed


def test_every_public_name_has_an_example() -> None:
    names = {*seqloom.__all__, *seqloom._LAB} - {"intervene", "measure", "testing"}  # modules
    without = [name for name in sorted(names) if ">>> " not in (inspect.getdoc(getattr(seqloom, name)) or "")]
    assert not without

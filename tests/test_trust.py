"""Code that came with a folder is not executed, unless its user says so."""

import json
import shutil

import pytest
import torch

from seqloom import cli, sealed
from seqloom.lab.data import open_data
from seqloom.run import Run
from seqloom.tasks.registry import open_task
from seqloom.train import train
from seqloom.train_settings import Train
from seqloom.trust import UntrustedError, digest

CELL = """
import os
from pathlib import Path
import torch
import seqloom

if os.environ.get("SEQLOOM_WITNESS"):
    Path(os.environ["SEQLOOM_WITNESS"]).touch()


class Mine(seqloom.Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        h = torch.tanh(self.w(torch.cat([x, state[0]], -1)))
        return h, (h,)
"""
SETTINGS = {"hidden": 4, "steps": 2, "batch": 4, "device": "cpu", "validate_every": 1}


def command(*words):
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, words)])
    return ended.value.code


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return a function that makes another machine of this one: it knows no code, and tells when code is executed."""
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "mine"))

    def change():
        monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "theirs"))
        monkeypatch.setenv("SEQLOOM_WITNESS", str(tmp_path / "witness"))
        return tmp_path / "witness"

    return change


@pytest.fixture
def run(tmp_path, elsewhere):
    """Return a run of a cell of one's own, whose file is then gone."""
    (tmp_path / "mine.py").write_text(CELL)
    task, source = open_data("adding", {"steps": 5, "valid": 8, "test": 8})
    made = train(task, Train(model=f"{tmp_path / 'mine.py'}:Mine", **SETTINGS), tmp_path / "run", source=source)
    (tmp_path / "mine.py").unlink()
    return made


def test_a_run_made_here_by_this_user_needs_no_flag(run):
    assert Run.load(run.folder).model() is not None
    assert run.record["cell"]["sha256"] == digest(CELL.encode())


def test_a_run_from_elsewhere_is_not_executed(run, elsewhere):
    witness = elsewhere()
    with pytest.raises(UntrustedError, match=r"would execute the Python code in .*cell\.py .*trust=True"):
        Run.load(run.folder).model()
    assert not witness.exists()
    assert Run.load(run.folder, trust=True).model() is not None
    assert witness.exists()


def test_a_run_from_elsewhere_is_not_resumed(run, elsewhere):
    witness = elsewhere()
    shutil.rmtree(run.folder / "last")
    task = open_task("adding", steps=5, valid=8, test=8)
    with pytest.raises(UntrustedError):
        train(task, None, run.folder, resume=True)
    assert not witness.exists()
    train(task, None, run.folder, resume=True, trust=True)
    assert witness.exists()


@pytest.mark.parametrize("words", [["predict"], ["evaluate"], ["generate"], ["translate"]])
def test_the_commands_say_what_would_be_executed(run, elsewhere, words, capsys):
    witness = elsewhere()
    rows = run.folder.parent / "rows.jsonl"
    rows.write_text(json.dumps([[0.5, 1.0], [0.1, 0.0]]) + "\n")
    files = [] if words[0] in ("generate", "evaluate") else [str(rows)]
    code = command(*words, run.folder, *files)
    told = capsys.readouterr().err
    assert code == 2 and not witness.exists()
    if words[0] in ("predict", "evaluate"):  # the others say first that the run is not of their kind
        assert "would execute the Python code in" in told and "--trust" in told and told.count("\n") == 1


def test_a_model_named_by_a_changed_run_file_is_not_executed(tmp_path, elsewhere):
    """A folder that says "model": "evil.py:X" without a copy of that file, as one that was made by hand would."""
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, Train(model="gru", **SETTINGS), tmp_path / "run")
    witness = elsewhere()
    (tmp_path / "evil.py").write_text(CELL)
    file = made.folder / "run.json"
    record = sealed.loads(file.read_bytes(), file, 1)
    record["settings"]["model"] = f"{tmp_path / 'evil.py'}:Mine"
    file.write_bytes(sealed.dumps(record))
    for trusted in (False, True):
        with pytest.raises(ValueError, match="holds no copy of its file"):
            Run.load(made.folder, trust=trusted).model()
    (made.folder / "cell.py").write_text(CELL)
    record["cell"] = {"file": "evil.py", "sha256": "0" * 64}
    file.write_bytes(sealed.dumps(record))
    with pytest.raises(ValueError, match=r"cell\.py is damaged"):
        Run.load(made.folder, trust=True).model()
    assert not witness.exists()


def test_a_comparison_from_elsewhere_is_not_executed(tmp_path, elsewhere, capsys):
    (tmp_path / "mine.py").write_text(CELL)
    folder = tmp_path / "c"
    folder.mkdir()
    settings = {"models": f"{tmp_path / 'mine.py'}:Mine"}
    record = {"format": 1, "settings": settings, "source": {}, "workers": 1, "data": {}}
    (folder / "compare.json").write_bytes(sealed.dumps(record))
    witness = elsewhere()
    assert command("compare", "--resume", "--out", folder) == 2
    assert "would execute the Python code in" in capsys.readouterr().err
    assert not witness.exists()


@pytest.mark.parametrize("name", ["run.json", "task/task.json", "best/state.json", "best/weights.safetensors"])
def test_a_flipped_bit_is_damage_and_never_another_prediction(tmp_path, name):
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, Train(model="gru", **SETTINGS), tmp_path / "run")
    shutil.rmtree(made.folder / "last")  # nothing to fall back to
    x = task.encode([[[0.5, 1.0], [0.1, 0.0]]])
    before = Run.load(made.folder).model().predict(x).values
    file = made.folder / name
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 97)):
        for bit in (0, 3):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            told = ""
            try:
                run = Run.load(made.folder)
                assert run.task is not None
                after = run.model().predict(x).values
            except ValueError as error:
                told = str(error)
            if told:
                assert "damaged" in told and file.name in told
            else:  # white space
                assert torch.equal(after, before)
    file.write_bytes(whole)

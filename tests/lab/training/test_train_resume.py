"""A training that is killed and resumed ends where an uninterrupted one ends."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from seqloom.lab.data.registry import open_task
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training import step
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train

KILLER = Path(__file__).with_name("killed_training.py")


class StopError(Exception):
    """Raised instead of a kill, at a chosen moment."""


def stopped_at(monkeypatch, number):
    """Raise StopError at this step."""
    whole = step.Stepper.step

    def until(self, batches, at, lr):
        if at == number:
            raise StopError
        return whole(self, batches, at, lr)

    monkeypatch.setattr(step.Stepper, "step", until)


def ends(folder):
    run = Run.load(folder)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in run.metrics()]
    return {which: run.checkpoint(which).facts["files"] for which in ("last", "best")}, lines


def task_of(kind, tmp_path):
    if kind == "stream":
        words = [f"word{i * i % 17}" for i in range(250)]
        (tmp_path / "text.txt").write_text("\n".join(words))
        return open_task(tmp_path / "text.txt", unit="characters", lookback=20)
    if kind == "rows":
        data = {"text": [f"some w{i % 9} words {i}" for i in range(80)], "label": ["a", "b"] * 40}
        return open_task(pl.DataFrame(data))
    return open_task("pattern", steps=12, valid=50, test=50)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


CASES = {
    "endless": ("endless", {"steps": 12, "validate_every": 4}),
    "epochs": ("rows", {"epochs": 3, "batch": 16}),
    "tokens": ("rows", {"epochs": 3, "tokens": 60, "schedule": "plateau", "patience": 2}),
    "accumulated": ("rows", {"epochs": 5, "batch": 8, "accumulate": 3, "optimiser": "sgd", "schedule": "step"}),
    "averaged": ("endless", {"steps": 12, "validate_every": 4, "ema": 0.9, "zoneout": 0.1, "average_checkpoints": 3}),
    "carried": ("stream", {"epochs": 2, "batch": 4, "model": "lstm"}),
    "carried, one state": ("stream", {"epochs": 2, "batch": 4, "model": "gru", "layers": 2}),
}


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("number", [2, 7, 10])
def test_a_training_that_stopped_anywhere_ends_with_the_same_weights_and_metrics(case, number, tmp_path, monkeypatch):
    kind, more = CASES[case]
    settings = TrainSettings(**{"hidden": 8, "embedding": 8, "checkpoint_steps": 3, "device": "cpu"} | more)
    task = task_of(kind, tmp_path)
    train(task, settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stopped_at(patch, number)
        with pytest.raises(StopError):
            train(task, settings, tmp_path / "stopped")
    assert Run.load(tmp_path / "stopped").finished is None
    train(task, settings, tmp_path / "stopped", resume=True)
    assert ends(tmp_path / "stopped") == ends(tmp_path / "whole")


def test_a_torn_line_and_lines_after_the_checkpoint_are_cut_on_resume(tmp_path, monkeypatch):
    task, settings = task_of("endless", tmp_path), TrainSettings(steps=9, validate_every=3, hidden=8, device="cpu")
    train(task, settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stopped_at(patch, 5)
        with pytest.raises(StopError):
            train(task, settings, tmp_path / "torn")
    with (tmp_path / "torn/metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "split": "valid"}\n{"step": 5, "spl')
    assert [line["step"] for line in Run.load(tmp_path / "torn").metrics()] == [3, 4]
    train(task, settings, tmp_path / "torn", resume=True)
    assert ends(tmp_path / "torn") == ends(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    task, settings = task_of("endless", tmp_path), TrainSettings(steps=3, hidden=8, device="cpu")
    train(task, settings, tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    train(task, None, tmp_path / "run", resume=True)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_a_run_whose_last_step_was_validated_on_the_way_is_finished_too(tmp_path):
    settings = TrainSettings(epochs=2, batch=16, validate_every=2, hidden=8, embedding=8, device="cpu")
    run = train(task_of("rows", tmp_path), settings, tmp_path / "run")
    steps = [line["step"] for line in run.metrics() if line["split"] == "valid"]
    assert (run.finished, steps) == ("epochs", [2, 4, 6, 8])
    facts = run.checkpoint("last").facts
    assert (facts["step"], facts["epoch"], facts["batch"]) == (8, 2, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("schedule", True), ("schedule", {"decays": "1", "waited": 0}), ("epoch", -1), ("scaler", {"scale": []})],
)
def test_a_state_that_no_training_wrote_is_refused(name, value, tmp_path, monkeypatch):
    task, settings = (
        task_of("rows", tmp_path),
        TrainSettings(epochs=3, batch=16, hidden=8, embedding=8, checkpoint_steps=3, device="cpu"),
    )
    stopped_at(monkeypatch, 7)
    with pytest.raises(StopError):
        train(task, settings, tmp_path / "one")
    monkeypatch.undo()
    for which in ("last", "best"):
        file = tmp_path / "one" / which / "state.json"
        file.write_bytes(sealed.dumps(sealed.loads(file.read_bytes(), file, checkpoint.FORMAT) | {name: value}))
    with pytest.raises(DamagedError, match=r"state\.json is damaged: it does not describe what it should"):
        train(task, settings, tmp_path / "one", resume=True)


def test_other_settings_and_other_data_are_refused_on_resume(tmp_path):
    task, settings = task_of("endless", tmp_path), TrainSettings(steps=3, hidden=8, device="cpu")
    train(task, settings, tmp_path / "run")
    with pytest.raises(ValueError, match=r"was trained with lr=0.001, not 0.1"):
        train(task, settings.model_copy(update={"lr": 0.1}), tmp_path / "run", resume=True)
    other = open_task("pattern", steps=13, valid=50, test=50)
    with pytest.raises(ValueError, match="was trained on other data"):
        train(other, settings, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="already holds a run"):
        train(task, settings, tmp_path / "run")


def test_a_damaged_last_checkpoint_is_replaced_by_the_best_one(tmp_path, monkeypatch):
    task = task_of("endless", tmp_path)
    settings = TrainSettings(steps=9, validate_every=3, checkpoint_steps=1, hidden=8, device="cpu")
    train(task, settings, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stopped_at(patch, 5)
        with pytest.raises(StopError):
            train(task, settings, tmp_path / "run")
    file = tmp_path / "run/last/training.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.warns(UserWarning, match=r"training.safetensors is damaged.*using best/ of step 3"):
        train(task, settings, tmp_path / "run", resume=True)
    assert ends(tmp_path / "run") == ends(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["first file", "later"])
def test_a_full_disk_loses_nothing(moment, tmp_path, monkeypatch):
    task = task_of("endless", tmp_path)
    settings = TrainSettings(steps=9, validate_every=3, checkpoint_steps=1, hidden=8, device="cpu")
    train(task, settings, tmp_path / "whole")
    put, calls = checkpoint._write_synced, []

    def full(path, data):
        calls.append(path)
        if len(calls) > (14 if moment == "first file" else 15):
            with path.open("wb") as file:
                file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        put(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_synced", full)
        with pytest.raises(OSError, match=r"step \d could not be saved \(No space left on device\).*resume"):
            train(task, settings, tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names <= {"run.json", "metrics.jsonl", "task", "last", "best"}
    assert Run.load(tmp_path / "run").checkpoint("last").facts["step"] >= 2
    train(task, settings, tmp_path / "run", resume=True)
    assert ends(tmp_path / "run") == ends(tmp_path / "whole")


@pytest.mark.parametrize("finished", [False, True])
def test_what_a_kill_between_two_renames_left_is_gone_after_a_resume(finished, tmp_path):
    task, settings = task_of("endless", tmp_path), TrainSettings(steps=3, hidden=8, device="cpu")
    folder = train(task, settings, tmp_path / "run").folder
    expected = ends(folder)
    (folder / "last").rename(folder / "last.new")
    shutil.copytree(folder / "best", folder / "best.old")
    if not finished:  # the test was still to come
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:-1]))
    train(task, settings, folder, resume=True)
    assert sorted(p.name for p in folder.iterdir()) == [
        "best",
        "decision.json",
        "last",
        "metrics.jsonl",
        "run.json",
        "task",
    ]
    assert ends(folder) == expected


def test_two_processes_do_not_train_one_run(tmp_path):
    task, settings = task_of("endless", tmp_path), TrainSettings(steps=3, hidden=8, device="cpu")
    run = Run.create(tmp_path / "run", settings, task)
    with run.lock(), pytest.raises(ValueError, match="being trained by another process"):
        train(task, settings, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_process_that_was_killed_again_and_again_ends_with_the_same_weights(tmp_path):
    command = [sys.executable, str(KILLER), str(tmp_path), "6"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    told = json.loads(made.stdout.splitlines()[-1])
    assert told["kills"] == 6
    assert told["while_saving"] >= 3
    assert ends(tmp_path / "killed") == ends(tmp_path / "whole")


def test_the_random_numbers_and_threads_of_the_caller_are_left_alone(tmp_path):
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    train(task_of("endless", tmp_path), TrainSettings(steps=3, hidden=8, threads=2, device="cpu"), tmp_path / "run")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads

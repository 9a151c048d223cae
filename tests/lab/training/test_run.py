"""A run on disk: its files, what is refused, and what survives a kill."""

import json
import threading

import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.results import tabulate_runs
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train

SETTINGS = TrainSettings(steps=4, validate_every=2, hidden=8, batch=8, device="cpu")


def trained(folder):
    return train(open_task("adding", steps=6, valid=20, test=20), SETTINGS, folder)


def test_a_run_records_everything_that_determined_it(tmp_path):
    trained(tmp_path / "one")
    run = Run.load(tmp_path / "one")
    record = json.loads((tmp_path / "one/run.json").read_text())
    assert TrainSettings(**record["settings"]) == run.settings == SETTINGS
    assert record["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert record["seed"] == 0 and record["task"] == {"name": "adding", "kind": "regress"}
    assert {name: split.hash for name, split in run.task.splits.items()} == {
        name: part["hash"] for name, part in record["data"].items()
    }
    assert run.name == "one" and run.finished == "steps" and "gru on adding" in repr(run)
    assert [(line["split"], line["step"]) for line in run.metrics()][:2] == [("valid", 2), ("valid", 4)]
    assert {p.name for p in run.folder.iterdir()} == {"run.json", "metrics.jsonl", "last", "best", "task"}


def test_a_loaded_model_is_the_trained_one(tmp_path):
    run = trained(tmp_path / "one")
    with pytest.raises(UserError, match="which must be one of best, last, got 'first'"):
        run.checkpoint("first")
    batch = next(iter(run.task.batches("test", batch=5)))
    first, second = run.model(), Run.load(tmp_path / "one").model()
    assert torch.equal(first.predict(batch).values, second.predict(batch).values)
    last = run.model("last").state_dict()
    assert all(torch.equal(last[name], w) for name, w in run.checkpoint("last").tensors("weights").items())


def test_no_file_of_a_run_needs_pickle(tmp_path):
    trained(tmp_path / "one")
    files = [p for p in (tmp_path / "one").rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".json", ".jsonl", ".safetensors"}
    assert not any(p.read_bytes()[:2] == b"\x80\x04" for p in files)


@pytest.mark.parametrize(
    ("break_it", "raised"),
    [
        (lambda f: f.exists(), "is not a run: there is no such folder"),
        (lambda f: f.mkdir(), "is not a run: it has no run.json"),
        (lambda f: (f.mkdir(), (f / "run.json").write_text('{"format": 1, "set')), "run.json is damaged"),
        (lambda f: (f.mkdir(), (f / "run.json").write_text("[]")), "run.json is damaged"),
        (
            lambda f: (f.mkdir(), (f / "run.json").write_text('{"format": 99, "versions": {"seqloom": "9.1"}}')),
            r"written by a newer seqloom \(9.1, format 99\); upgrade seqloom",
        ),
        (
            lambda f: (f.mkdir(), (f / "run.json").write_bytes(sealed.dumps({"format": 1, "settings": {"modell": 3}}))),
            "settings that this seqloom does not know: modell",
        ),
    ],
)
def test_a_folder_without_a_run_is_refused_in_one_line(break_it, raised, tmp_path):
    break_it(tmp_path / "odd")
    with pytest.raises(ValueError, match=raised) as error:
        Run.load(tmp_path / "odd")
    assert "\n" not in str(error.value)


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    run = Run.create(tmp_path / "new", SETTINGS, open_task("adding"))
    assert run.finished is None and run.metrics() == []
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        run.model()


@pytest.mark.parametrize("file", ["weights.safetensors", "state.json"])
def test_a_damaged_checkpoint_falls_back_to_the_other_one(file, tmp_path):
    run = trained(tmp_path / "one")
    path = run.folder / "best" / file
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(UserWarning, match=rf"{file} is .*damaged.*; using last/ of step 4 instead"):
        assert run.model() is not None
    path = run.folder / "last" / file
    path.unlink()
    with pytest.raises(DamagedError, match="no other checkpoint to fall back to"):
        run.model()


def test_a_kind_of_task_that_does_not_exist_is_refused(tmp_path):
    run = Run.create(tmp_path / "new", SETTINGS, open_task("adding"))
    file = run.folder / "run.json"
    record = sealed.loads(file.read_bytes(), file, 1)
    file.write_bytes(sealed.dumps(record | {"task": {"name": "adding", "kind": "/dev/zero"}}))
    with pytest.raises(DamagedError, match=r"run\.json is damaged"):
        Run.load(run.folder)
    assert "damaged" in tabulate_runs(tmp_path)[0]["state"]


def put(place, number):
    checkpoint.write(place, {"step": number}, weights={"w": torch.full((3,), float(number))})


def numbered(place):
    actual = checkpoint.find(place)
    return None if actual is None else (actual.facts["step"], float(actual.tensors("weights")["w"][0]))


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("recovered", [False, True])
@pytest.mark.parametrize("existing", [False, True])
def test_killed_between_any_two_operations_a_checkpoint_is_the_old_one_or_the_new_one(
    existing, recovered, tmp_path, monkeypatch
):
    """Stop after each rename, removal and sync in turn."""
    seen, number = [], 0
    while True:
        place = tmp_path / f"try{number}" / "last"
        place.parent.mkdir()
        if existing:
            put(place, 1)
        left = [number]

        def counted(whole, left=left):
            def call(*args, **kwargs):
                if left[0] == 0:
                    raise KilledError
                left[0] -= 1
                return whole(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint.Path, "rename", counted(checkpoint.Path.rename))
            patch.setattr(checkpoint, "_write_synced", counted(checkpoint._write_synced))
            patch.setattr(checkpoint, "sync", counted(checkpoint.sync))
            # a process that is killed cleans nothing up
            patch.setattr(checkpoint.shutil, "rmtree", counted(_only_whole(checkpoint.shutil.rmtree, left)))
            try:
                put(place, 2)
                done = True
            except KilledError:
                done = False
        seen.append(numbered(place))
        assert seen[-1] in ([None, (1, 1.0)][existing], (2, 2.0))
        if recovered:
            checkpoint.recover(place)
            assert numbered(place) == seen[-1]
            assert [p.name for p in place.parent.iterdir()] == ["last"] * (seen[-1] is not None)
        put(place, 3)
        assert numbered(place) == (3, 3.0)
        assert [p.name for p in place.parent.iterdir()] == ["last"]
        if done:
            break
        number += 1
    assert number >= 5 and seen[0] != seen[-1] == (2, 2.0)


def _only_whole(rmtree, left):
    return lambda path, **how: rmtree(path, **how) if left[0] >= 0 else None


def test_a_reader_always_finds_a_whole_checkpoint_while_one_is_written(tmp_path):
    place, stop, seen = tmp_path / "run" / "last", threading.Event(), []
    place.parent.mkdir()
    put(place, 0)
    run = Run(tmp_path / "run", {}, SETTINGS)

    def read():
        while not stop.is_set():
            actual = run.checkpoint("last")
            seen.append((actual.facts["step"], float(actual.tensors("weights")["w"][0])))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 60):
        put(place, number)
    stop.set()
    reader.join()
    assert len({step for step, _ in seen}) > 5
    assert all(step == value for step, value in seen)

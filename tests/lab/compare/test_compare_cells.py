"""A comparison executes the copies of its cells, and only those that its user trusts."""

import json
import shutil

import pytest

from seqloom.cells.lookup import find_cell, split_name
from seqloom.cli import main
from seqloom.lab.compare.cells import load_copy
from seqloom.lab.compare.folder import resume_comparison, start_comparison
from seqloom.lab.compare.rung import train_rung
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.compare.timing import measure_speed
from seqloom.lab.data.registry import open_data
from seqloom.lab.files import sealed
from seqloom.lab.files.trust import UntrustedError, digest, remember
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.run import fingerprint
from witness import CELL, QUIET_CELL, WITNESS

OTHER = CELL + "\nCHANGED = True\n"
OPTIONS = {"steps": 5, "valid": 8, "test": 8}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))


@pytest.fixture
def witness(tmp_path, monkeypatch):
    """Return a file that every execution of a cell creates."""
    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    return tmp_path / "witness"


@pytest.fixture
def comparison(tmp_path):
    """Return a new comparison of a user's cell, whose file is then changed."""
    (tmp_path / "mine.py").write_text(CELL)
    settings = CompareSettings(models=f"rnn,bi_{tmp_path / 'mine.py'}:Mine:2", steps=2)
    started = start_comparison("adding", OPTIONS, settings, tmp_path / "c")
    (tmp_path / "mine.py").write_text(OTHER)
    return started


def resume(folder, trust=False):
    return resume_comparison(None, {}, CompareSettings(), folder, trust)


def rewrite(folder, change):
    """Change the record of a comparison and give it a valid digest, as a person may."""
    file = folder / "compare.json"
    record = sealed.loads(file.read_bytes(), file, 1)
    change(record)
    file.write_bytes(sealed.dumps(record))


def run_command(*words):
    with pytest.raises(SystemExit) as ended:
        main.main([*map(str, words)])
    return ended.value.code


@pytest.mark.parametrize("name", ["a.py:d/evil.pyc:Mine", "a.py:d/evil.py:Mine", "bi_a.py:d/evil.pyc:Mine:2"])
def test_a_name_that_two_programs_could_split_differently_executes_nothing(name, tmp_path, witness, capsys):
    """The text of a.py is trusted, and the folder holds another file whose path begins with "a.py:"."""
    folder = tmp_path / "dl"
    (folder / "a.py:d").mkdir(parents=True)
    (folder / "a.py").write_text(QUIET_CELL)
    remember((folder / "a.py").read_bytes())
    for evil in ("evil.pyc", "evil.py"):
        (folder / "a.py:d" / evil).write_text(CELL)
    task, source = open_data("adding", OPTIONS)
    model = name.replace("a.py", f"{folder}/a.py", 1)
    model = model if not name.startswith("bi_") else f"bi_{folder}/a.py:d/evil.pyc:Mine:2"
    cells = {f"{folder}/{part}": digest((folder / "a.py").read_bytes()) for part in ("a.py", "a.py:d/evil.py")}
    record = {"format": 1, "settings": {"models": [model], "steps": 1}, "source": source, "workers": 1}
    record |= {"data": fingerprint(task)}
    (folder / "compare.json").write_bytes(sealed.dumps(record | {"cells": cells}))
    assert run_command("compare", "--resume", "--out", folder) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not witness.exists()


@pytest.mark.parametrize("name", ["a.py:d/evil.pyc:Mine", "a.py:", "a.py:1x", "a.py:x y", "a\0.py:X", "x.py:A:2:3"])
def test_a_name_that_is_not_a_file_and_a_class_is_refused(name):
    with pytest.raises(ValueError, match=r"write FILE\.py:CLASS"):
        split_name(name)


def test_a_comparison_keeps_copies_of_its_cells(comparison, tmp_path):
    copy = comparison.folder / "cells" / digest(CELL.encode()) / "mine.py"
    assert copy.read_text() == CELL
    names = list(comparison.candidates)
    assert names == ["rnn", f"bi_{copy}:Mine:2"]
    (tmp_path / "mine.py").unlink()
    assert list(resume(tmp_path / "c").candidates) == names


def test_a_comparison_from_elsewhere_is_not_executed(comparison, tmp_path, witness, capsys):
    shutil.rmtree(tmp_path / "state")
    assert run_command("compare", "--resume", "--out", comparison.folder) == 2
    told = capsys.readouterr().err
    assert "would execute the Python code in" in told and "--trust" in told and told.count("\n") == 1
    assert not witness.exists()
    resume(tmp_path / "c", trust=True)
    assert witness.exists()


def test_a_changed_copy_is_not_executed(comparison, tmp_path, witness):
    copy = comparison.folder / "cells" / digest(CELL.encode()) / "mine.py"
    copy.write_text(OTHER)
    for trusted in (False, True):
        with pytest.raises(ValueError, match=r"mine\.py is damaged"):
            resume(tmp_path / "c", trusted)
    new = comparison.folder / "cells" / digest(OTHER.encode()) / "mine.py"
    new.parent.mkdir()
    copy.rename(new)

    def change(record):
        record["cells"] = dict.fromkeys(record["cells"], digest(OTHER.encode()))

    rewrite(comparison.folder, change)
    with pytest.raises(UntrustedError):
        resume(tmp_path / "c")
    assert not witness.exists()


@pytest.mark.parametrize("sha", ["", "../../evil", "0" * 64, None, 3])
def test_a_record_without_the_digest_of_a_cell_executes_nothing(sha, comparison, tmp_path, witness):
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "mine.py").write_text(OTHER)
    rewrite(comparison.folder, lambda record: record.update(cells=dict.fromkeys(record["cells"], sha)))
    with pytest.raises(ValueError, match=r"compare\.json has no digest|which is missing"):
        resume(tmp_path / "c", trust=True)
    rewrite(comparison.folder, lambda record: record.pop("cells"))
    with pytest.raises(ValueError, match=r"compare\.json has no digest of the cell"):
        resume(tmp_path / "c", trust=True)
    assert not witness.exists()


def test_a_job_executes_a_copy_only_if_its_folder_names_its_digest(comparison, tmp_path, witness):
    copy = comparison.folder / "cells" / digest(CELL.encode()) / "mine.py"
    copy.write_text(OTHER)
    settings = TrainSettings(model=f"{copy}:Mine", hidden=4).model_dump()
    with pytest.raises(ValueError, match=r"mine\.py is damaged"):
        measure_speed(comparison.source, settings, {"batches": 1, "length": 5, "train": 1.0, "valid": 1.0, "test": 1.0},
                      0.1, tmp_path)  # fmt: skip
    with pytest.raises(ValueError, match=r"mine\.py is damaged"):
        train_rung(comparison.source, settings, str(tmp_path / "run"), 1, False, None, tmp_path)
    assert not witness.exists()
    copy.write_text(CELL)
    load_copy(f"{copy}:Mine")
    copy.write_text(OTHER)  # what was loaded is used, and not read again
    assert find_cell(f"{copy}:Mine").__name__ == "Mine" and witness.exists()
    witness.unlink()
    find_cell(f"{copy}:Mine")
    assert not witness.exists()


def test_links_in_a_comparison_are_refused_before_anything_is_written_or_removed(comparison, tmp_path):
    home = tmp_path / "home"
    (home / "letters").mkdir(parents=True)
    (comparison.folder / "runs").symlink_to(home)
    with pytest.raises(ValueError, match=r"is a link to .* replace the link by what it points to"):
        resume(tmp_path / "c")
    assert (home / "letters").is_dir()


@pytest.mark.parametrize("name", ["os:system", "bi_bi_gru", "rnn:99999999999", "a.py:", "x.py: Mine"])
def test_a_record_with_an_odd_model_is_refused_by_its_file(name, comparison, tmp_path):
    rewrite(comparison.folder, lambda record: record["settings"].update(models=[name]))
    with pytest.raises(ValueError, match=r"compare\.json: (there is no layer|model|cell) "):
        resume(tmp_path / "c")


def test_a_record_of_another_type_is_refused_in_one_line(comparison, tmp_path):
    whole = (comparison.folder / "compare.json").read_bytes()
    for name, value in json.loads(
        '[["cells", []], ["source", 3], ["workers", "x"], ["data", null], ["source", {}], ["source", []]]'
    ):
        rewrite(comparison.folder, lambda record, name=name, value=value: record.update({name: value}))
        with pytest.raises(ValueError, match=r"compare\.json|does not say where its data came from|data of"):
            resume(tmp_path / "c")
        (comparison.folder / "compare.json").write_bytes(whole)

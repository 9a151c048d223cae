import json
import shutil
from pathlib import Path

import pytest

from research.studies.support.ledger import FILE, Ledger
from research.studies.support.replay import STUDY, agree, rebuild, replay, restore_study
from seqloom.cli import main
from seqloom.lab.report.stored import page_to_json

ROOT = Path(__file__).resolve().parents[3]


def test_an_added_trial_is_found_by_the_next_process_for_any_order_of_its_key(tmp_path):
    Ledger(tmp_path / "new").add({"a": 1, "b": [2, {"c": 3}]}, {"score": 0.1})
    assert Ledger(tmp_path / "new").get({"b": [2, {"c": 3}], "a": 1}) == {"score": 0.1}
    assert Ledger(tmp_path / "new").get({"a": 1}) is None


def test_a_torn_last_line_is_dropped_and_the_next_goes_in_its_place(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add({"n": 1}, {"v": 1})
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": {"n": 2}, "val')
    again = Ledger(tmp_path)
    assert again.get({"n": 2}) is None
    again.add({"n": 2}, {"v": 2})
    assert [json.loads(line)["value"]["v"] for line in (tmp_path / FILE).read_text().splitlines()] == [1, 2]


def test_a_broken_line_in_between_is_named(tmp_path):
    (tmp_path / FILE).write_text('{"key": {"n": 1}, "value": {}}\nnonsense\n')
    with pytest.raises(ValueError, match=r"trials\.jsonl, line 2, is not a trial: .*delete the line"):
        Ledger(tmp_path)


def test_a_trial_is_kept_once_and_nothing_without_a_folder(tmp_path):
    ledger = Ledger(tmp_path)
    for value in (1, 2):
        ledger.add({"n": 1}, {"v": value})
    assert ledger.get({"n": 1}) == {"v": 1} and (tmp_path / FILE).read_text().count("\n") == 1
    memory = Ledger(None)
    memory.add({"n": 1}, {"v": 1})
    assert memory.get({"n": 1}) == {"v": 1}


REBUILD = "run `seqloom results --rebuild --out docs/results/studies.md`"
STORED = [file.parent for file in sorted((ROOT / "research/results/studies").glob("*/trials.jsonl"))]


@pytest.mark.sample(3)
@pytest.mark.parametrize("folder", [f for f in STORED if (f / STUDY).exists()], ids=lambda folder: folder.name)
def test_a_stored_study_is_what_its_trials_say(folder):
    study = restore_study(folder)
    stored = json.loads((folder / STUDY).read_text())
    rows, document = replay(study)
    assert study.missing == [] and len(rows) == len(stored["rows"])
    for part in ("table", "verdict", "caption"):
        assert agree(stored[part], document[part]), REBUILD
    assert agree(stored["page"]["blocks"], page_to_json(study.page(rows, document))["blocks"]), REBUILD


@pytest.fixture
def copied(tmp_path):
    """Return a copy of a small stored study."""
    return Path(shutil.copytree(ROOT / "research/results/studies/copy-paper", tmp_path / "copy-paper"))


def test_a_changed_verdict_is_rebuilt_from_the_trials_and_a_right_one_is_left_alone(copied):
    right = (copied / STUDY).read_text()
    trials = f"copy-paper: {len(json.loads(right)['rows'])} trials"
    assert rebuild(copied) == f"{trials}, unchanged"
    assert (copied / STUDY).read_text() == right
    stored = json.loads(right)
    (copied / STUDY).write_text(json.dumps(stored | {"verdict": "AttnRNN wins."}))
    assert rebuild(copied) == f"{trials}, verdict changed"
    again = json.loads((copied / STUDY).read_text())
    assert again["verdict"] == stored["verdict"]
    assert all(again[fact] == stored[fact] for fact in ("date", "hardware", "versions"))


def test_a_changed_number_of_the_report_alone_is_rebuilt(copied):
    right = json.loads((copied / STUDY).read_text())
    wrong = json.loads((copied / STUDY).read_text())
    (differences,) = (b for b in wrong["page"]["blocks"] if b["title"].startswith("Differences in "))
    differences["rows"][0]["ratio of odds"] *= 2
    (copied / STUDY).write_text(json.dumps(wrong))
    assert rebuild(copied).endswith("trials, report changed")
    assert agree(right["page"], json.loads((copied / STUDY).read_text())["page"])


def test_a_ledger_that_lacks_a_trial_is_named_and_a_replay_shows_the_rest(copied, capsys):
    lines = (copied / FILE).read_text().splitlines(keepends=True)
    (copied / FILE).write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"trials\.jsonl lacks 1 trial of the study, such as third, T = \d+, .*seed"):
        rebuild(copied)
    words = ["study", "copy", "--protocol", "paper", "--replay"]
    with pytest.raises(SystemExit) as end:
        main.main([*words, "--out", str(copied.parent)])
    printed = capsys.readouterr()
    assert not end.value.code and "not stored: 1 trial of the study" in printed.err
    assert "Interrupted; preliminary results" in " ".join(printed.out.split())


def test_a_replay_needs_stored_trials(tmp_path, capsys):
    for words in ([], ["--out", str(tmp_path)]):
        with pytest.raises(SystemExit) as end:
            main.main(["study", "copy", "--replay", *words])
        assert end.value.code == 2 and "--replay: give the folder of an earlier run" in capsys.readouterr().err

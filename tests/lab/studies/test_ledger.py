import json

import pytest

from seqloom.lab.studies.support.ledger import FILE, Ledger


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

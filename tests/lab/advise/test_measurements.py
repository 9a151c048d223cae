import json
from pathlib import Path

import pytest

from research.speed.advice_records import collect
from seqloom.lab.advise.measurements import FILE, load_measurements

RESULTS = Path(__file__).parents[3] / "research" / "results"


@pytest.mark.skipif(not RESULTS.exists(), reason="the records are not part of the package")
def test_every_number_matches_its_record():
    packed, actual = json.loads(FILE.read_text()), collect(RESULTS)
    assert len(packed["values"]) > 20
    same = {name for name, source in packed["sources"].items() if actual["sources"].get(name) == source}
    assert len(same) >= 5  # a record that was measured again has a later date
    for key, value in packed["values"].items():
        if value["source"] in same:
            assert actual["values"].get(key) == value, f"{key}: run `python -m research advice store`"


def test_every_number_has_its_origin():
    for key in load_measurements().values:
        source = load_measurements().source(key)
        assert all(source[name] for name in ("what", "record", "command", "date", "hardware"))


def test_a_record_of_another_kind_adds_nothing(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"study": "else", "rows": [{"a": 1}]}))
    assert collect(tmp_path) == {"values": {}, "sources": {}}

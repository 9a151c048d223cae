import json
import time

import numpy as np
import pytest
import torch
from made import task, tokens

from seqloom.advise import telling
from seqloom.advise.advice import advise
from seqloom.advise.document import document
from seqloom.advise.sample import sample
from seqloom.advise.trial import trial
from seqloom.layers.registry import find
from seqloom.train_settings import Train


@pytest.fixture(scope="module")
def found():
    """Advice on texts whose class is whether a word is there; and the seconds of one core that it took."""
    x, ids = tokens(900, 12, kinds=30)
    begun = time.process_time()
    return advise(task("classify", x, (ids == 3).any(1).astype(int)), 4.0), time.process_time() - begun


def test_where_a_word_decides_no_sequence_model_is_called_for(found):
    assert found[0].models[0].name == "linear"
    assert telling.sentence(found[0]).startswith("No recurrent or attention model is called for yet")


def test_it_takes_no_longer_than_it_was_given(found):
    assert found[1] < 12  # four, and what was imported on the way


def test_every_model_can_be_trained_and_has_its_cost(found):
    models = [m for m in found[0].models if m.settings is not None]
    assert len(models) > 8
    for m in models:
        assert find(m.settings.model) and not m.trial.failed
    tried = [m for m in models if m.trial.steps]
    assert len(tried) >= 3 and all(m.seconds > 0 and m.trial.bytes > 4 * m.trial.parameters > 0 for m in tried)


def test_the_models_stand_in_the_order_of_their_points(found):
    points = [m.points for m in found[0].models]
    assert points == sorted(points, reverse=True)


def test_the_document_is_json_without_infinities_and_names_its_sources(found):
    told = json.loads(json.dumps(document(found[0]), allow_nan=False))
    assert told["facts"]["kind"] == "classify" and told["facts"]["information"]["reach"] is not None
    measured = [rule for rule in told["rules"] if rule["measured"]]
    assert measured and all(s["command"] for rule in measured for s in rule["sources"].values())


def test_the_commands_name_the_data_how_it_is_read_and_the_models(found):
    compare, train = telling.commands(found[0], "my data.csv", {"target": ("a", "b"), "lines": True, "task.steps": 5})
    reading = "'my data.csv' --target a,b --lines --task.steps 5"
    assert compare.startswith(f"seqloom compare {reading} --models ") and "linear" not in compare
    assert train.startswith(f"seqloom train {reading} ") and "--model " in train


def test_the_tables_have_one_row_for_each_thing(found):
    facts = {row["what"]: row["here"] for row in telling.known(found[0].facts, 20)}
    assert "median 12" in facts["lengths"] and "N to 1" in facts["task"]
    assert [row["model"] for row in telling.ranking(found[0])] == [m.name for m in found[0].models]


def test_a_model_that_fails_is_told_with_its_reason():
    x, ids = tokens(60, 5)
    some = sample(task("classify", x, ids[:, 0] % 2))
    failed = trial(some, Train(model="tcn", zoneout=0.1), torch.device("cpu"), 1.0)
    assert "zoneout" in failed.failed and np.isnan(failed.score)


def test_a_task_with_one_example_is_refused():
    x, ids = tokens(1, 5)
    with pytest.raises(ValueError, match="at least 2"):
        sample(task("classify", x, ids[:, 0]))

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made import task, tokens

from seqloom.lab.advise import advice, telling
from seqloom.lab.advise.advice import advise
from seqloom.lab.advise.document import document
from seqloom.lab.advise.sample import sample
from seqloom.lab.advise.trial import NOT_TRIED, trial
from seqloom.lab.training.settings import TrainSettings
from seqloom.layers.registry import find

pytestmark = pytest.mark.xdist_group("advice")  # whose fixture is made once


@pytest.fixture(scope="module")
def found():
    """Advice on texts whose class is whether a word is there."""
    x, ids = tokens(900, 12, kinds=30)
    return advise(task("classify", x, (ids == 3).any(1).astype(int)), 4.0)


@pytest.mark.slow
def test_where_a_word_decides_no_sequence_model_is_called_for(found):
    assert found.models[0].name == "linear"
    assert telling.sentence(found).startswith("No recurrent or attention model is called for yet")


@pytest.mark.parametrize("late", [1.0, 4.0, 100.0])
def test_it_takes_no_longer_than_it_was_given_where_models_keep_to_their_share(monkeypatch, late):
    clock, shares = [0.0], []

    def one(some, settings, device, seconds):
        shares.append(seconds)
        clock[0] += late * seconds
        return NOT_TRIED

    monkeypatch.setattr(advice, "trial", one)
    monkeypatch.setattr(advice, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    advice._trials(None, {str(n): TrainSettings() for n in range(20)}, torch.device("cpu"), 20.0)
    if late == 1:
        assert len(shares) == 20 and sum(shares) == pytest.approx(20)
    else:  # those that are tried in any case, and nobody who would begin when the time is up
        begun = [late * sum(shares[:n]) for n in range(len(shares))]
        assert advice.SURE <= len(shares) < 20 and all(start < 20 for start in begun[advice.SURE :])


@pytest.mark.slow
def test_every_model_can_be_trained_and_has_its_cost(found):
    models = [m for m in found.models if m.settings is not None]
    assert len(models) > 8
    for m in models:
        assert find(m.settings.model) and not m.trial.failed
    tried = [m for m in models if m.trial.steps]
    assert len(tried) >= 3 and all(m.seconds > 0 and m.trial.bytes > 4 * m.trial.parameters > 0 for m in tried)


@pytest.mark.slow
def test_the_models_stand_in_the_order_of_their_points(found):
    points = [m.points for m in found.models]
    assert points == sorted(points, reverse=True)


@pytest.mark.slow
def test_the_document_is_json_without_infinities_and_names_its_sources(found):
    told = json.loads(json.dumps(document(found), allow_nan=False))
    assert told["facts"]["kind"] == "classify" and told["facts"]["information"]["reach"] is not None
    measured = [rule for rule in told["rules"] if rule["measured"]]
    assert measured and all(s["command"] for rule in measured for s in rule["sources"].values())


@pytest.mark.slow
def test_the_commands_name_the_data_how_it_is_read_and_the_models(found):
    compare, train = telling.commands(found, "my data.csv", {"target": ("a", "b"), "lines": True, "task.steps": 5})
    reading = "'my data.csv' --target a,b --lines --task.steps 5"
    assert compare.startswith(f"seqloom compare {reading} --models ") and "linear" not in compare
    assert train.startswith(f"seqloom train {reading} ") and "--model " in train


@pytest.mark.slow
def test_the_tables_have_one_row_for_each_thing(found):
    facts = {row["what"]: row["here"] for row in telling.known(found.facts, 20)}
    assert "median 12" in facts["lengths"] and "N to 1" in facts["task"]
    rows = telling.ranking(found)
    assert [row["model"] for row in rows] == [m.name for m in found.models]
    memory = {row["memory"] for row in rows} - {""}
    assert memory and all(float(one.removesuffix(" MB").replace(",", "")) > 0 for one in memory)


def test_a_model_that_fails_is_told_with_its_reason():
    x, ids = tokens(60, 5)
    some = sample(task("classify", x, ids[:, 0] % 2))
    failed = trial(some, TrainSettings(model="tcn", zoneout=0.1), torch.device("cpu"), 1.0)
    assert "zoneout" in failed.failed and np.isnan(failed.score)


def test_a_task_with_one_example_is_refused():
    x, ids = tokens(1, 5)
    with pytest.raises(ValueError, match="at least 2"):
        sample(task("classify", x, ids[:, 0]))

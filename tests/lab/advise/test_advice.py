import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from advise_data import task, tokens

from seqloom.lab.advise import advice, output
from seqloom.lab.advise.advice import advise
from seqloom.lab.advise.quick_training import NOT_TRIED, try_model
from seqloom.lab.advise.sample import draw_sample
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.layers.registry import find


@pytest.fixture(scope="module")
def text_advice():
    """Return advice on texts whose class is whether they contain a word."""
    x, ids = tokens(900, 12, kinds=30)
    return advise(task("classify", x, (ids == 3).any(1).astype(int)), 4.0)


@pytest.mark.slow
def test_a_linear_model_comes_first_if_one_word_decides(text_advice):
    assert text_advice.models[0].name == "linear"
    assert output.summarise(text_advice).startswith("Start with a linear model: ")


@pytest.mark.parametrize("late", [1.0, 4.0, 100.0])
def test_the_time_limit_is_kept_if_models_keep_to_their_share(monkeypatch, late):
    clock, shares = [0.0], []

    def one(some, settings, device, seconds):
        shares.append(seconds)
        clock[0] += late * seconds
        return NOT_TRIED

    monkeypatch.setattr(advice, "try_model", one)
    monkeypatch.setattr(advice, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    advice._try_models(None, {str(n): TrainSettings() for n in range(20)}, torch.device("cpu"), 20.0)
    if late == 1:
        assert len(shares) == 20 and sum(shares) == pytest.approx(20)
    else:  # the models that are always tried, and none that would start after the end
        begun = [late * sum(shares[:n]) for n in range(len(shares))]
        assert advice.ALWAYS_TRIED <= len(shares) < 20 and all(start < 20 for start in begun[advice.ALWAYS_TRIED :])


@pytest.mark.slow
def test_every_model_can_be_trained_and_has_its_cost(text_advice):
    models = [m for m in text_advice.models if m.settings is not None]
    assert len(models) > 8
    for m in models:
        assert find(m.settings.model) and not m.trial.failed
    tried = [m for m in models if m.trial.steps]
    assert len(tried) >= 3 and all(m.seconds > 0 and m.trial.bytes > 4 * m.trial.parameters > 0 for m in tried)


@pytest.mark.slow
def test_models_are_sorted_by_points(text_advice):
    points = [m.points for m in text_advice.models]
    assert points == sorted(points, reverse=True)


@pytest.mark.slow
def test_the_document_is_json_without_infinities_and_names_its_sources(text_advice):
    document = json.loads(json.dumps(output.build_document(text_advice), allow_nan=False))
    assert document["facts"]["kind"] == "classify" and document["facts"]["information"]["reach"] is not None
    measured = [rule for rule in document["rules"] if rule["measured"]]
    assert measured and all(s["command"] for rule in measured for s in rule["records"].values())


@pytest.mark.slow
def test_the_commands_contain_data_options_and_models(text_advice):
    compare, train = output.build_commands(
        text_advice, "my data.csv", {"target": ("a", "b"), "lines": True, "task.steps": 5}
    )
    reading = "'my data.csv' --target a,b --lines --task.steps 5"
    assert compare.startswith(f"seqloom compare {reading} --models ") and "linear" not in compare
    assert train.startswith(f"seqloom train {reading} ") and "--model " in train


@pytest.mark.slow
def test_the_tables_have_a_row_for_each_fact_and_model(text_advice):
    facts = {row["fact"]: row["value"] for row in output.facts_table(text_advice.facts, 20)}
    assert "median 12" in facts["lengths"] and "N to 1" in facts["task"]
    rows = output.ranking_table(text_advice)
    unknown = output.describe_unknown(text_advice)  # a busy machine tries fewer
    known = [m.name for m in text_advice.models if m.name not in unknown.replace(".", ",").replace(" ", ",").split(",")]
    assert [row["model"] for row in rows] == known
    one = replace(text_advice.models[0], seconds=None, reasons=())
    some = replace(text_advice, models=[text_advice.models[0], replace(one, name="mgu"), replace(one, name="lem")])
    assert [row["model"] for row in output.ranking_table(some)] == [text_advice.models[0].name]
    assert output.describe_unknown(some) == "Not tried for lack of time: mgu, lem. --seconds allows more."
    memory = {row["memory"] for row in rows} - {""}
    assert memory and all(float(one.removesuffix(" MB").replace(",", "")) > 0 for one in memory)


def test_a_model_that_fails_has_its_reason():
    x, ids = tokens(60, 5)
    some = draw_sample(task("classify", x, ids[:, 0] % 2))
    failed = try_model(some, TrainSettings(model="tcn", zoneout=0.1), torch.device("cpu"), 1.0)
    assert "zoneout" in failed.failed and np.isnan(failed.score)


def test_a_task_with_one_example_is_refused():
    x, ids = tokens(1, 5)
    with pytest.raises(ValueError, match="at least 2"):
        draw_sample(task("classify", x, ids[:, 0]))


def test_named_models_are_ranked_instead_of_the_usual_ones(monkeypatch):
    monkeypatch.setattr("seqloom.lab.advise.advice._try_models", lambda *_: {})
    x, ids = tokens(60, 6, kinds=8)
    ranked = advise(task("classify", x, (ids == 3).any(1).astype(int)), 4.0, ["mgu", "lem:2"])
    assert {model.name for model in ranked.models} == {"linear", "mgu", "lem:2"}

"""Advice in sentences and as JSON."""

import json
import math

import pytest
from advise_data import facts

from seqloom.lab.advise import output
from seqloom.lab.advise.advice import LINEAR, Advice, RankedModel
from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.output import summarise
from seqloom.lab.advise.quick_training import QuickResult

BASELINE = Baseline("accuracy", 0.912, "logistic regression", 0.5, "class frequencies")


def advice(first, baseline):
    models = [RankedModel(name, 1.0) for name in (first, "gru", "lstm", "rnn")]
    return Advice(facts(baseline=baseline), [], models, 10, 1.0)


def test_a_linear_model_that_comes_first_is_recommended_with_its_score():
    text = summarise(advice(LINEAR, BASELINE))
    assert text.startswith("Start with a linear model: logistic regression reaches")
    assert "0.912 on a sample" in text and text.endswith("gru or lstm may be better.")


@pytest.mark.parametrize("baseline", [BASELINE, None])
def test_a_sequence_model_that_comes_first_is_recommended(baseline):
    assert summarise(advice("attn_rnn", baseline)) == "Try attn_rnn first; gru or lstm may be better."


def test_a_linear_model_that_was_not_measured_is_recommended_without_a_score():
    assert summarise(advice(LINEAR, None)) == "Try linear first; gru or lstm may be better."


def test_json_has_no_numbers_that_are_not_finite():
    model = RankedModel("gru", -math.inf, trial=QuickResult(steps=3, score=math.nan))
    record = output._model_document(model)
    assert record["points"] is None and record["trial"]["score"] is None and record["trial"]["steps"] == 3
    json.dumps(record, allow_nan=False)
    assert output._model_document(RankedModel("gru", 1.5))["points"] == 1.5

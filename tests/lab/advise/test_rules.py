import re

import pytest
from made import facts

from seqloom.lab.advise.advice import RULES
from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.curve import Curve
from seqloom.lab.advise.measured import measured
from seqloom.lab.advise.rule import fired, number
from seqloom.layers.registry import find

FAR, NEAR = Curve((0, 50, 150), (1.0, 1.0, 1.0)), Curve((0, 1), (1.0, 1.0))
AFTER = Curve((-1, 0, 1), (1.0, 1.0, 0.0))


def linear(score, metric="accuracy", trivial=0.5):
    return Baseline(metric, score, "a linear model", trivial, "a trivial one")


# (rule, document): facts for which it holds, facts for which it does not
HOLDS = {
    ("nothing is left to learn", "found here"): ({"baseline": linear(0.995)}, {"baseline": linear(0.9)}),
    ("words say it", "found here"): (
        {"baseline": linear(0.88)},
        {"baseline": linear(0.88), "unit": "numbers"},
    ),
    ("the past goes on", "found here"): (
        {"kind": "forecast", "unit": "numbers", "conflict": None, "baseline": linear(0.3, "mse", 1.0)},
        {"kind": "forecast", "unit": "numbers", "conflict": None, "baseline": linear(0.9, "mse", 1.0)},
    ),
    ("context on both sides", "004, 4"): (
        {"kind": "tag", "information": AFTER},
        {"kind": "tag", "information": NEAR},
    ),
    ("read as a whole", "004, 4"): ({"kind": "regress"}, {"kind": "tag"}),
    ("a plain RNN forgets", "001, 5.1"): ({"information": FAR}, {"information": NEAR}),
    ("something to remember", "000"): ({"information": FAR}, {"information": NEAR}),
    ("one layer first", "004, 5"): ({"examples": 10_000}, {"examples": 100_000}),
    ("few examples", "004, 5"): ({"examples": 499}, {"examples": 500}),
    ("a sequence is written", "003"): ({"kind": "translate"}, {"kind": "tag"}),
    ("short sequences", "001, 7.1"): ({"median": 19.0}, {"median": 20.0}),
    ("long dependences", "001, 7.2"): ({"information": FAR}, {"information": NEAR}),
    ("medium sequences", "001, 7.3"): ({"median": 20.0}, {"median": 101.0}),
    ("very long sequences", "001, 7.4"): ({"median": 1_000.0}, {"median": 999.0}),
    ("parallel computing", "001, 7.4"): ({"device": "cuda"}, {"device": "cpu"}),
    ("short sequences", "004, 7"): ({"median": 49.0}, {"median": 50.0}),
    ("medium sequences", "004, 7"): ({"median": 200.0}, {"median": 201.0}),
    ("long sequences", "004, 7"): ({"median": 201.0}, {"median": 200.0}),
    ("sequence labelling", "004, 7"): ({"kind": "tag"}, {"kind": "classify"}),
    ("parallel computing", "004, 7"): ({"device": "cuda"}, {"device": "cpu"}),
}
KEYS = [(rule.name, rule.seed) for rule in RULES]
NAMES = [f"{name}, {seed}" for name, seed in KEYS]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_holds_where_it_should_and_nowhere_else(rule):
    yes, no = HOLDS[rule.name, rule.seed]
    assert rule.when(facts(**yes))
    assert not rule.when(facts(**no))
    assert fired((rule,), facts(**no), measured()) == []


def test_every_rule_is_tried_here_and_named_once():
    assert sorted(KEYS) == sorted(HOLDS)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_speaks_of_models_that_there_are_and_of_numbers_that_were_measured(rule):
    for name in rule.points:
        assert name == "linear" or find(name.partition(":")[0])
    assert measured().has(*rule.keys), [key for key in rule.keys if not measured().has(key)]
    if rule.why:
        told = rule.reason(measured())
        assert "{" not in told and len(re.findall(r"\d", told)) >= len(rule.keys)


def test_a_forecast_that_reads_segments_is_as_short_as_they_are_few():
    whole, cut = facts(kind="forecast", median=336.0), facts(kind="forecast", median=336.0, segment=48)
    assert (whole.steps, cut.steps) == (336, 7)
    told = [f.rule.name for f in fired(RULES, cut, measured()) if f.rule.seed == "004, 7"]
    assert told == ["short sequences"]


def test_the_two_guides_speak_as_written():
    """Which model each line of the documents' guides names."""
    said = {(rule.name, rule.seed): rule.says for rule in RULES}
    for key, names in {
        ("short sequences", "001, 7.1"): ["20", "RNN"],
        ("long dependences", "001, 7.2"): ["100", "LSTM"],
        ("medium sequences", "001, 7.3"): ["GRU"],
        ("very long sequences", "001, 7.4"): ["Transformer", "TCN"],
        ("short sequences", "004, 7"): ["50", "RNN"],
        ("medium sequences", "004, 7"): ["50", "200", "LSTM", "GRU"],
        ("long sequences", "004, 7"): ["200", "Transformer"],
        ("sequence labelling", "004, 7"): ["bidirectional LSTM"],
        ("parallel computing", "004, 7"): ["Transformer"],
    }.items():
        assert all(name in said[key] for name in names)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (94.96, "94.96"), (1234.5, "1,234"), (0.704, "0.704"), (6e-21, "6e-21"), (0.0, "0")]
)
def test_numbers_have_the_digits_that_count(value, text):
    assert number(value) == text

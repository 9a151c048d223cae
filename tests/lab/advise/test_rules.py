import re
from pathlib import Path

import pytest
from advise_data import facts

from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.curve import DistanceCurve
from seqloom.lab.advise.measurements import load_measurements
from seqloom.lab.advise.output import facts_table
from seqloom.lab.advise.rules import RULES, format_number, linear_share, match_rules
from seqloom.layers.registry import find

FAR, NEAR = DistanceCurve((0, 50, 150), (1.0, 1.0, 1.0)), DistanceCurve((0, 1), (1.0, 1.0))
ENOUGH, FEWER = (DistanceCurve((0, n), (0.0, 1.0)) for n in (200, 199))
AFTER = DistanceCurve((-1, 0, 1), (1.0, 1.0, 0.0))


def linear(score, metric="accuracy", trivial=0.5):
    return Baseline(metric, score, "a linear model", trivial, "a trivial one")


# (rule, source): facts to which it applies, facts to which it does not
HOLDS = {
    ("a linear model suffices", "this data"): ({"baseline": linear(0.995)}, {"baseline": linear(0.9)}),
    ("words decide the class", "this data"): (
        {"baseline": linear(0.88)},
        {"baseline": linear(0.88), "unit": "numbers"},
    ),
    ("linear forecast", "this data"): (
        {"kind": "forecast", "unit": "numbers", "conflict": None, "baseline": linear(0.3, "mse", 1.0)},
        {"kind": "forecast", "unit": "numbers", "conflict": None, "baseline": linear(0.9, "mse", 1.0)},
    ),
    ("context on both sides", "network architecture notes, section 4"): (
        {"kind": "tag", "information": AFTER},
        {"kind": "tag", "information": NEAR},
    ),
    ("whole sequence available", "network architecture notes, section 4"): ({"kind": "regress"}, {"kind": "tag"}),
    ("a plain RNN forgets", "RNN family article, section 5.1"): ({"information": FAR}, {"information": NEAR}),
    ("memory needed", "AttnRNN article"): ({"information": ENOUGH}, {"information": FEWER}),
    ("one layer first", "network architecture notes, section 5"): ({"examples": 10_000}, {"examples": 100_000}),
    ("few examples", "network architecture notes, section 5"): ({"examples": 499}, {"examples": 500}),
    ("sequence to sequence", "RNN architecture course"): ({"kind": "translate"}, {"kind": "tag"}),
    ("short sequences", "RNN family article, section 7.1"): ({"median": 19.0}, {"median": 20.0}),
    ("long dependencies", "RNN family article, section 7.2"): ({"information": FAR}, {"information": NEAR}),
    ("medium sequences", "RNN family article, section 7.3"): ({"median": 20.0}, {"median": 101.0}),
    ("very long sequences", "RNN family article, section 7.4"): ({"median": 1_000.0}, {"median": 999.0}),
    ("very long sequences with a small state", "Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464"): (
        {"median": 1_000.0},
        {"median": 999.0},
    ),
    ("parallel computing", "RNN family article, section 7.4"): ({"device": "cuda"}, {"device": "cpu"}),
    ("short sequences", "network architecture notes, section 7"): ({"median": 49.0}, {"median": 50.0}),
    ("medium sequences", "network architecture notes, section 7"): ({"median": 200.0}, {"median": 201.0}),
    ("long sequences", "network architecture notes, section 7"): ({"median": 201.0}, {"median": 200.0}),
    ("sequence labelling", "network architecture notes, section 7"): ({"kind": "tag"}, {"kind": "classify"}),
    ("parallel computing", "network architecture notes, section 7"): ({"device": "cuda"}, {"device": "cpu"}),
}
KEYS = [(rule.name, rule.source) for rule in RULES]
NAMES = [f"{name}, {source}" for name, source in KEYS]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_applies_where_it_should_and_nowhere_else(rule):
    yes, no = HOLDS[rule.name, rule.source]
    assert rule.when(facts(**yes))
    assert not rule.when(facts(**no))
    assert match_rules((rule,), facts(**no), load_measurements()) == []


def test_every_rule_is_tested_and_named_once():
    assert sorted(KEYS) == sorted(HOLDS)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_rule_names_existing_models_and_measurements(rule):
    for name in rule.points:
        assert name == "linear" or find(name.partition(":")[0])
    assert load_measurements().has(*rule.keys), [key for key in rule.keys if not load_measurements().has(key)]
    if rule.why:
        text = rule.reason(load_measurements())
        assert "{" not in text and len(re.findall(r"\d", text)) >= len(rule.keys)


def test_the_length_of_a_forecast_is_counted_in_segments():
    whole, cut = facts(kind="forecast", median=336.0), facts(kind="forecast", median=336.0, segment=48)
    assert (whole.steps, cut.steps) == (336, 7)
    text = [
        f.rule.name
        for f in match_rules(RULES, cut, load_measurements())
        if f.rule.source == "network architecture notes, section 7"
    ]
    assert text == ["short sequences"]


def test_the_guides_are_quoted_correctly():
    """Each guide names these models and lengths."""
    advice = {(rule.name, rule.source): rule.says for rule in RULES}
    for key, names in {
        ("short sequences", "RNN family article, section 7.1"): ["20", "RNN"],
        ("long dependencies", "RNN family article, section 7.2"): ["100", "LSTM"],
        ("medium sequences", "RNN family article, section 7.3"): ["GRU"],
        ("very long sequences", "RNN family article, section 7.4"): ["Transformer", "TCN"],
        ("short sequences", "network architecture notes, section 7"): ["50", "RNN"],
        ("medium sequences", "network architecture notes, section 7"): ["50", "200", "LSTM", "GRU"],
        ("long sequences", "network architecture notes, section 7"): ["200", "Transformer"],
        ("sequence labelling", "network architecture notes, section 7"): ["bidirectional LSTM"],
        ("parallel computing", "network architecture notes, section 7"): ["Transformer"],
    }.items():
        assert all(name in advice[key] for name in names)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (94.96, "94.96"),
        (999.9, "999.9"),
        (1000.0, "1,000"),
        (1234.5, "1,234"),
        (0.704, "0.704"),
        (6e-21, "6e-21"),
        (0.0, "0"),
    ],
)
def test_numbers_have_three_or_four_significant_digits(value, text):
    assert format_number(value) == text


def test_a_forecast_of_one_column_is_described_in_the_singular_with_the_name_of_its_metric():
    one = facts(kind="forecast", outputs=1, commonest=None, rarest=None, baseline=linear(0.3, "mse", 1.0))
    rows = {row["fact"]: row["value"] for row in facts_table(one, 20)}
    assert rows["target"] == "1 number per step"
    assert rows["linear model"] == "MSE 0.300 (a linear model); a trivial one: 1.000"


def test_the_page_on_advice_names_every_rule_that_is_not_a_line_of_a_guide():
    page = (Path(__file__).parents[3] / "docs/how-to/choose.md").read_text()
    others = page.partition("**Other rules**")[2]
    guides = ("RNN family article, section 7", "network architecture notes, section 7")
    assert not [rule.name for rule in RULES if not rule.source.startswith(guides) and f"| {rule.name}" not in others]


def test_the_share_of_a_linear_model_is_at_most_all_of_what_is_possible():
    assert linear_share(facts(baseline=linear(0.95), conflict=0.1)) == 1.0  # equal texts of both classes
    tags = facts(kind="tag", baseline=linear(0.95), conflict=0.1)  # the tokens around a token may decide
    assert linear_share(tags) == pytest.approx(0.9)

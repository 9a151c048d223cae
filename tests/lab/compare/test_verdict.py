import numpy as np
import pytest

from seqloom.lab.compare.lead import drawn, known
from seqloom.lab.compare.leaderboard import caption, leaderboard
from seqloom.lab.compare.metric import ACCURACY
from seqloom.lab.compare.story import verdict
from seqloom.lab.compare.table import Row, Table

N = 2000


def rows(share):
    right = (np.arange(N) < share * N).astype(float)
    return {"right": right, "scored": np.ones(N)}


def made(models, simple=0.5, name="logistic regression", **latencies):
    """A table of models by their shares of right rows, the best on validation first."""
    columns = {m: [rows(share + d) for d in (-0.002, 0.0, 0.002)] for m, share in models.items()}
    found = drawn(columns | {name: [rows(simple)]}, ACCURACY)
    lines = [
        Row(m, m, False, rank=(-share, 0.0), test=known(found[m]), latency=(latencies.get(m, 1.0), 1.0))
        for m, share in models.items()
    ]
    baseline = Row(name, name, True, rank=(-simple, 0.0), test=known(found[name]))
    return Table(sorted([*lines, baseline], key=lambda r: r.rank), ACCURACY, found)


def test_a_real_lead_is_one_with_its_cost():
    told = verdict(made({"attn_rnn": 0.9, "gru": 0.8}, attn_rnn=0.7))
    assert told.startswith("attn_rnn leads gru by 10.0 +- ")
    assert " points at 0.7 times the latency: use it. attn_rnn beats logistic regression by 40.0 +- " in told


def test_of_equals_the_fastest_is_to_be_used():
    told = verdict(made({"lstm": 0.8, "gru": 0.8, "rnn": 0.7}, lstm=2.0))
    assert told.startswith("No real lead: lstm (accuracy 80.0%) cannot be told from gru; use gru, the fastest of them.")


def test_a_lead_over_the_second_alone_is_none():
    found = made({"attn_rnn": 0.9, "gru": 0.8, "tcn": 0.9})
    order = {"attn_rnn": 0, "gru": 1, "tcn": 2}  # on validation
    rows = sorted(found.rows, key=lambda row: order.get(row.name, 3))
    told = verdict(Table(rows, ACCURACY, found.drawn))
    assert told.startswith("No real lead: attn_rnn (accuracy 90.0%) cannot be told from tcn; use ")


@pytest.mark.parametrize(
    ("simple", "name", "said"),
    [
        (
            0.8,
            "logistic regression",
            "logistic regression (accuracy 80.0%) is within the interval of the best model (gru",
        ),
        (0.9, "logistic regression", "logistic regression beats the best model (gru, accuracy 80.0%) by 10.0 +- "),
        (0.8, "majority", "Nothing was learned: the best model (gru, accuracy 80.0%) does not beat majority"),
    ],
)
def test_a_baseline_that_is_not_beaten_is_to_be_used_unless_it_is_blind(simple, name, said):
    assert verdict(made({"gru": 0.8}, simple, name)).startswith(said)


def test_without_an_end_there_is_no_verdict():
    assert verdict(made({"gru": 0.8}), finished=False).startswith("Interrupted")


def test_the_leaderboard_says_how_far_each_is_from_the_first_and_the_caption_what_was_left_out():
    found = made({"gru": 0.8})
    left = Table([*found.rows, Row("tcn", "tcn 5x8", False, left_out=True)], ACCURACY, found.drawn)
    assert [row["model"] for row in leaderboard(left)] == ["gru", "logistic regression (baseline)"]
    assert leaderboard(left)[0]["test accuracy"].startswith("80.0% +- ")
    told = caption(left, 3, 20)
    assert "Left out for lack of time: tcn 5x8." in told and "only 20 validation rows" in told

from seqloom.lab.compare.candidates import Candidate
from seqloom.lab.compare.tune import Choice, listed, proposed

TRIED = [(Choice(3e-3), 0.5), (Choice(1e-3), 0.2), (Choice(1e-2), None), (Choice(1e-3, 0.4), 0.1)]


def test_the_usual_rates_come_first():
    assert listed(Candidate("gru"), 2) == [Choice(3e-3), Choice(1e-3)]
    assert listed(Candidate("bi_transformer"), 1) == [Choice(1e-3)]


def test_proposals_follow_from_what_was_tried_and_from_nothing_else():
    found = proposed(TRIED, 3)
    assert found == proposed(TRIED, 3) and len(found) == 3
    assert all(1e-4 <= c.lr <= 3e-2 and 0 <= c.dropout <= 0.5 for c in found)
    assert proposed(TRIED[:3], 3) != found

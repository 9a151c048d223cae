import numpy as np
import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.kinds import decision as decisions
from seqloom.lab.kinds.decision import Decision, _choose_threshold, fit_decision, log_loss, parse_goal


def overconfident(n=4000, factor=3.0):
    """Scores of two classes that are `factor` times too far apart."""
    random = torch.Generator().manual_seed(0)
    true = torch.randn(n, generator=random)
    y = (torch.rand(n, generator=random) < true.sigmoid()).long()
    return torch.stack([torch.zeros(n), factor * true], 1), y


def test_the_temperature_undoes_overconfidence():
    z, y = overconfident()
    decision = fit_decision(Decision(), z, y)
    assert decision.temperature == pytest.approx(3.0, rel=0.15)
    assert log_loss(decision, z.double(), y) < log_loss(Decision(), z.double(), y)
    assert torch.equal(decision.choose(decision.calibrate(z)), z.argmax(-1))


def test_rows_without_an_error_do_not_make_probabilities_certain():
    y = torch.arange(40) % 2
    z = torch.nn.functional.one_hot(y, 2) * 2.0  # right in every row, with a probability of 0.88
    assert fit_decision(Decision(), z, y).temperature == 1.0
    z[0] = z[0].flip(0)
    assert fit_decision(Decision(), z, y).temperature < 1.0


def test_few_rows_do_not_change_the_temperature():
    z, y = overconfident(20)
    assert fit_decision(Decision(), z, y).temperature == 1.0


def test_class_weights_change_the_class_but_not_the_probability():
    weights = (0.5, 50.0)
    z = torch.tensor([[2.0, 3.0]])  # of a model that was trained with these weights
    decision = Decision(weights=weights)
    p = decision.calibrate(z).softmax(-1)[0]
    assert float(p[1] / p[0]) == pytest.approx(float(torch.tensor(1.0).exp()) / 100)
    assert int(decision.choose(decision.calibrate(z))) == 1
    unsure = Decision(weights=weights, reject=0.7)  # takes the likeliest class, or none
    assert int(unsure.choose(unsure.calibrate(z))) == 0


@pytest.mark.parametrize("goal", ["recall=0.9", "precision=0.7", "f1"])
def test_a_threshold_reaches_its_goal_on_the_validation_rows(goal):
    z, y = overconfident()
    decision = fit_decision(Decision(), z, y, threshold=goal)
    said, positive = decision.choose(decision.calibrate(z.double())) == 1, y == 1
    recall, precision = ((said & positive).sum() / part.sum() for part in (positive, said))
    assert decision.facts["recall"] == pytest.approx(float(recall))
    if goal.startswith("recall"):
        assert 0.9 <= recall < 0.91  # not further than needed
    elif goal.startswith("precision"):
        assert 0.7 <= precision < 0.71
    else:
        p = torch.linspace(0.01, 0.99, 99)
        scores = decision.calibrate(z.double()).softmax(-1)[:, 1]
        best = max(2 * ((scores >= t) & positive).sum() / ((scores >= t).sum() + positive.sum()) for t in p)
        assert 2 * recall * precision / (recall + precision) >= best - 1e-6


def test_a_threshold_may_be_for_the_first_class():
    z, y = overconfident()
    decision = fit_decision(Decision(positive=0), z, y, threshold="recall=0.95")
    said = decision.choose(decision.calibrate(z.double()))
    assert ((said == 0) & (y == 0)).sum() / (y == 0).sum() >= 0.95


def test_rejecting_reaches_the_accuracy_of_what_is_kept():
    z, y = overconfident()
    decision = fit_decision(Decision(), z, y, reject="accuracy=0.85")
    p = decision.calibrate(z.double()).softmax(-1)
    keeps = p.max(-1).values >= decision.reject
    assert (p.argmax(-1) == y)[keeps].double().mean() >= 0.85 > (p.argmax(-1) == y).double().mean()
    assert decision.facts["kept"] == pytest.approx(float(keeps.double().mean()))


@pytest.mark.parametrize("text", ["recall", "recall=2", "F2", "accuracy=0.9", "-1", "0.1.2"])
def test_a_goal_that_makes_no_sense_is_refused(text):
    with pytest.raises(UserError, match=r"write a number between 0 and 1, or recall=0.9 or precision=0.9"):
        parse_goal(text, "threshold", ("recall", "precision"))


def test_a_decision_is_stored_and_a_changed_file_is_refused(tmp_path):
    decision = Decision(0, 1.5, (0.5, 2.0), 0.25, 0.0, {"goal": "recall=0.9"})
    decisions.save(tmp_path, decision)
    assert decisions.load(tmp_path) == decision
    assert decisions.load(tmp_path / "nothing") == Decision()
    file = tmp_path / decisions.FILE
    file.write_text(file.read_text().replace("0.25", "0.26"))
    with pytest.raises(UserError, match="damaged"):
        decisions.load(tmp_path)


@pytest.mark.parametrize(
    ("decision", "classes"),
    [(Decision(weights=(1.0,) * 5000), 2), (Decision(positive=2), 2), (Decision(threshold=0.5), 3)],
)
def test_a_decision_that_does_not_fit_the_classes_is_refused_in_one_line(decision, classes, tmp_path):
    decisions.save(tmp_path, decision)
    assert decisions.load(tmp_path) == decision
    with pytest.raises(UserError, match=r"decision\.json is damaged: [^\n]*$"):
        decisions.load(tmp_path, classes)


def test_unseen_classes_do_not_count():
    z, y = overconfident()
    y[:100] = -1
    assert np.isfinite(fit_decision(Decision(), z, y).temperature)


def test_without_rows_all_would_be_kept():
    facts = fit_decision(Decision(), torch.zeros(2, 3), torch.full((2,), -1), reject="0.9").facts
    assert facts["kept"] == 1.0 and "accuracy_of_kept" not in facts


@pytest.mark.parametrize(
    ("goal", "value", "expected"), [("precision", 0.9, 0.25), ("recall", 0.9, 0.25), ("f1", 0, 0.25)]
)
def test_a_threshold_lies_between_two_probabilities(goal, value, expected):
    p, is_positive = np.array([0.3, 0.1, 0.4, 0.2]), np.array([True, False, True, False])
    assert _choose_threshold(p, is_positive, goal, value) == pytest.approx(expected)

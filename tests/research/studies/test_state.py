from dataclasses import replace

import pytest
import torch

from research.studies.state import MODELS, UNIFORM, State, StateSettings, track
from research.studies.support.contenders import count_trained
from research.studies.support.growing import AHEAD, GrowingBatches
from research.studies.support.outcome import Trial
from research.studies.support.state_report import PUBLISHED, contrasts, count_solved
from seqloom.core.errors import UserError
from seqloom.lab.data.task import IGNORE

CPU = torch.device("cpu")
TINY = StateSettings(
    (track("parity", 4), track("S3", 4)),
    ("attn_rnn", "transformer", "min_gru"),
    seeds=3,
    budget=900,
    lrs=(1e-2,),
    starts=("default",),
    batch=4,
    valid=8,
    test=8,
    other_seeds=2,
    train_length=8,
    valid_lengths=(8,),
    test_lengths=(8, 16),
    main_length=16,
    rounds=2,
)


def trial(condition, model, seed, accuracy, steps=None):
    scores = {"accuracy": accuracy, "scaled": accuracy, "while training": accuracy}
    scores |= {"T = 8": accuracy, "T = 16": accuracy, "round 1": accuracy, "round 2": accuracy}
    scores |= {} if steps is None else {"steps to solve": steps}
    return Trial(condition, model, 1e-2, "default", seed, "test", 8, 100, scores, [1.0, 0.5], 1.0)


def test_the_training_length_grows_from_one_step_to_all():
    study = State(TINY)
    draw = GrowingBatches(study.problem(TINY.conditions[0]).draw, 4, 8, growing=120)
    random = torch.Generator().manual_seed(0)
    asked, seen = [], []
    for done in range(2 * AHEAD + 1):
        draw.prepare(random, done)
        x, y, labels = draw(random, CPU)
        asked.append(int((y != IGNORE).sum(1)[0]))
        seen.append(x)
        assert int(labels) == 4 * asked[-1] == int((y != IGNORE).sum())
        torch.testing.assert_close(y[:, : asked[-1]], x.cumsum(1)[:, : asked[-1]] % 2)
    assert asked == [min(8, 1 + i // 15) for i in range(2 * AHEAD + 1)]
    assert len(torch.stack(seen).flatten(1).unique(dim=0)) == len(seen)  # no batch comes twice


def test_with_a_power_of_two_the_training_length_stays_short_for_longer():
    draw = GrowingBatches(State(TINY).problem(TINY.conditions[0]).draw, 4, 8, growing=40, power=2)
    random, asked = torch.Generator().manual_seed(0), []
    draw.prepare(random, 0)
    for _ in range(AHEAD):
        asked.append(int((draw(random, CPU)[1] != IGNORE).sum(1)[0]))
    assert asked == [min(8, 1 + i * i * 8 // 1600) for i in range(AHEAD)]


def test_without_growing_every_label_is_asked_from_the_first_step_on():
    draw = GrowingBatches(State(TINY).problem(TINY.conditions[0]).draw, 4, 8, growing=0)
    draw.prepare(torch.Generator().manual_seed(0), 0)
    _, y, labels = draw(torch.Generator(), CPU)
    assert int(labels) == 32 and not (y == IGNORE).any()


def test_a_step_without_a_label_has_a_finite_loss():
    study = State(replace(TINY, conditions=(track("recall", 4),)))
    model = study.build("gru", 8, "default", study.settings.conditions[0])
    draw = study.draw(study.settings.conditions[0])
    draw.prepare(torch.Generator(), 0)
    x, y, labels = draw(torch.Generator(), CPU)
    assert float(study.loss(model, (x, y, labels)).detach()) == 0 and int((y != IGNORE).sum()) == 0


@pytest.mark.parametrize("model", MODELS)
def test_every_model_answers_after_every_symbol_and_is_causal(model):
    study = State(TINY)
    c = TINY.conditions[1]
    network = study.build(model, 16, study.grid(model)[0][1], c).eval()
    x, _ = study.problem(c).draw(torch.Generator().manual_seed(0), 2, 8)
    y = network(x)
    assert y.shape == (2, 8, 6)
    changed = x.clone()
    changed[:, 5:] = (x[:, 5:] + 1) % 6
    torch.testing.assert_close(network(changed)[:, :5], y[:, :5])
    assert not torch.allclose(network(changed)[:, 5:], y[:, 5:])


def test_uniform_weights_do_not_train_their_query():
    study = State(TINY)
    full, uniform = (study.build(m, 16, "default", TINY.conditions[0]) for m in ("attn_rnn", UNIFORM))
    assert count_trained(full) - count_trained(uniform) == 16 * 16 + 16


def test_models_outside_the_primary_contrasts_have_fewer_seeds_and_all_are_scored_at_all_lengths():
    study = State(TINY)
    rows = list(study.run(lambda _: None))
    results = [t for t in rows if t.split == "test" and t.condition == "parity"]
    assert [(t.model, t.seed) for t in results] == [
        ("attn_rnn", 0), ("attn_rnn", 1), ("attn_rnn", 2), ("transformer", 0), ("transformer", 1),
        ("min_gru", 0), ("min_gru", 1), ("min_gru", 2),
    ]  # fmt: skip
    assert study.parts == len(rows)
    assert all(t.scores["accuracy"] == t.scores["T = 16"] and 0 <= t.scores["round 2"] <= 1 for t in results)
    document = study.document(rows)
    assert [row["model"] for row in document["table"]] == [*TINY.models] * 2
    assert "train longer (--effort 2)" in document["verdict"]
    assert study.page(rows, document).blocks


def test_solved_seeds_are_counted_with_an_exact_interval_and_failed_ones_are_not_solved():
    trials = [trial("parity", "gru", i, 0.99 if i < 4 else 0.98) for i in range(5)]
    broken = replace(trials[0], scores={}, failed="the gradient was not finite")
    assert str(count_solved(trials, 16)) == "4 of 5"
    assert str(count_solved([*trials, broken], 16)) == "4 of 6"
    assert (count_solved(trials, 16).low, count_solved(trials, 16).high) == pytest.approx((0.2836, 0.9949), abs=1e-4)


def test_contrasts_count_seeds_compare_steps_and_are_corrected_within_a_question():
    steps = {"attn_rnn": (100.0, 110.0, 120.0), "gru": (400.0, 410.0, 430.0)}
    rows = [
        trial(c, model, i, 0.5 if model == "min_gru" else 1.0, steps[model][i % 3] if model in steps else None)
        for c in ("parity", "S3")
        for model in ("attn_rnn", "gru", "min_gru")
        for i in range(6)
    ]
    study = State(TINY)
    by_name = {(c.question, c.condition): c for c in contrasts(study, rows)}
    same, apart = by_name["attn_rnn - gru", "parity"], by_name["nonlinear - linear", "parity"]
    assert (same.p, same.better, same.faster) == (1, None, True)
    assert same.steps.low < same.steps.effect < same.steps.high < 0.3
    assert (str(apart.a), str(apart.b), apart.better) == ("12 of 12", "0 of 6", True)
    assert apart.holm == pytest.approx(2 * apart.p)
    verdict = study.verdict(rows)
    assert "parity: attn_rnn, gru by every seed, min_gru by none" in verdict
    assert "nonlinear solved 2 of 2 conditions with more seeds (parity 12 of 12 against 0 of 6" in verdict
    assert "attn_rnn - gru: no significant difference in the seeds that solve any of 2 conditions" in verdict


def test_published_numbers_name_their_source_and_belong_to_a_problem_of_the_study():
    problems = {c.task["problem"] for c in State.full.conditions}
    assert all(problem in problems and "arXiv" in source for problem, _, source in PUBLISHED)
    assert "Deletang et al. 2023" in State(State.quick).caption()


def test_linear_recurrences_take_part_with_and_without_negative_eigenvalues():
    models = ("gated_deltanet", "gated_deltanet negative", "mamba2")
    study = State(replace(State.quick, models=models, hidden=16))
    for model in models:
        built = study.build(model, 16, "default", study.settings.conditions[0])
        kinds = [m.negative_eigenvalues for m in built.modules() if hasattr(m, "negative_eigenvalues")]
        assert kinds == ([] if model == "mamba2" else [model.endswith("negative")])
        assert built(torch.randint(2, (2, 20))).shape == (2, 20, 2)
    with pytest.raises(UserError, match="mamba2 has no setting for negative eigenvalues"):
        study.build("mamba2 negative", 16, "default", study.settings.conditions[0])

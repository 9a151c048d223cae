import json
import math
from dataclasses import replace

import pytest
import torch

from research.studies.adding import Adding, at
from research.studies.support import trials
from research.studies.support.conditions import FINALISTS, TrialSettings
from research.studies.support.contenders import (
    OF_CUDNN,
    Reader,
    count_trained,
    find_hidden_size,
    layer,
    multiple,
    natural,
    rates,
    starts,
)
from research.studies.support.ledger import FILE
from research.studies.support.metric import ACCURACY, ERROR, TrialMetric
from research.studies.support.outcome import Trial, contests, format_contests, tabulate_contests
from research.studies.support.trial_report import describe_edges

ONE, TWO = at(4, 3), at(6, 3, tuned_at="T = 4, marks anywhere")
TINY = TrialSettings((ONE, TWO), ("rnn", "attn_rnn"), seeds=2, budget=900, batch=4, valid=10, test=20, together=3)


def run(settings=TINY, folder=None, **more):
    return list(Adding(settings, folder=folder, **more).run(lambda _: None))


def without_time(trials):
    return [replace(t, ms_per_step=None) for t in trials]


@pytest.fixture
def counted(monkeypatch):
    """Return the names of all trainings in the order of their requests."""
    names, real = [], trials.train_many

    def count(trainings, device):
        names.extend(t.name for t in trainings)
        return real(trainings, device)

    monkeypatch.setattr(trials, "train_many", count)
    return names


def test_every_model_is_tuned_alike_and_then_trained_with_fresh_seeds(counted):
    study = Adding(TINY)
    said = []
    rows = list(study.run(said.append))
    assert len(rows) == len(said) == study.parts == len(counted) == 2 * 4 + 2 * 2 * 2
    tuning = [t for t in rows if t.split == "valid"]
    assert [(t.model, t.lr, t.start, t.seed) for t in tuning] == [
        (model, lr, start, 1000)
        for model, kept in (("rnn", "orthogonal"), ("attn_rnn", "chrono"))
        for lr in (1e-3, 3e-3)
        for start in ("default", kept)
    ]
    for model in TINY.models:
        best = min((t for t in tuning if t.model == model), key=lambda t: t.scores["MAE"])
        results = [t for t in rows if t.model == model and t.split == "test"]
        assert [(t.seed, t.condition) for t in results] == [(s, c.name) for c in (ONE, TWO) for s in (0, 1)]
        assert {(t.lr, t.start) for t in results} == {(best.lr, best.start)}
        assert len({t.scores["MAE"] for t in results}) == 4


def test_tuning_may_take_a_share_of_the_steps_and_results_take_all(tmp_path):
    rows = run(replace(TINY, tuning=0.5), tmp_path)
    keys = [json.loads(line)["key"] for line in (tmp_path / FILE).read_text().splitlines()]
    assert {(next(iter(key["scored"])), key["conditions"][0]["steps"]) for key in keys} == {("valid", 2), ("test", 3)}
    assert all(len(t.losses) == (2 if t.split == "valid" else 3) for t in rows)
    assert "for every model with 0.5 of the steps on 10 validation" in Adding(replace(TINY, tuning=0.5)).caption()
    assert "for every model on 10 validation" in Adding(TINY).caption()


def scored_by(monkeypatch, score):
    """Return a study whose score is a function of model, learning rate, start and seed; nothing is trained."""

    def train(self, group):
        for spec in group:
            value = score(spec.model, spec.lr, spec.start, spec.seed)
            yield Trial(
                spec.condition.name, spec.model, spec.lr, spec.start, spec.seed, spec.split, 8, 1, value, [], 1.0
            )

    monkeypatch.setattr(Adding, "_train", train)


def test_several_seeds_decide_by_their_mean(monkeypatch):
    luck = {("default", 1000): 0.0, ("default", 1001): 1.0}  # the best single one, and not the best mean
    scored_by(monkeypatch, lambda _model, _lr, start, seed: {"MAE": luck.get((start, seed), 0.3), "MSE": 0.0})
    settings = replace(TINY, conditions=(ONE,), models=("gru",), lrs=(1e-3,), starts=("default", "chrono"))
    rows = run(replace(settings, tuning_seeds=2))
    assert [t.seed for t in rows if t.split == "valid"] == [1000, 1001] * 2
    assert {t.start for t in rows if t.split == "test"} == {"chrono"}
    assert {t.start for t in run(settings) if t.split == "test"} == {"default"}
    assert Adding(replace(settings, tuning_seeds=2)).parts == len(rows)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        ({"gru": 3e-3, "lstm": 3e-3}, [1e-3, 3e-3, 1e-2]),
        ({"gru": 1e-2, "lstm": 3e-3}, [1e-3, 3e-3, 1e-2, 3e-2]),
        ({"gru": 3e-2, "lstm": 3e-3}, [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]),
        ({"gru": 1e-2, "lstm": 1e-3}, [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]),
        ({"gru": 1e-1, "lstm": 3e-3}, [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]),  # where the ladder ends
    ],
)
def test_a_grid_is_widened_for_all_models_until_no_best_rate_lies_at_its_edge(monkeypatch, best, tried):
    scored_by(monkeypatch, lambda model, lr, *_: {"MAE": abs(math.log(lr / best[model])), "MSE": 0.0})
    settings = replace(TINY, conditions=(ONE,), models=("gru", "lstm"), lrs=(1e-3, 3e-3, 1e-2), widen=True)
    rows = run(settings)
    for model in best:
        assert sorted({t.lr for t in rows if t.split == "valid" and t.model == model}) == tried
        assert {t.lr for t in rows if t.split == "test" and t.model == model} == {best[model]}
    narrow = run(replace(settings, widen=False))
    assert {t.lr for t in narrow} == {1e-3, 3e-3, 1e-2}


def test_a_killed_study_continues_without_repeating_a_finished_trial(tmp_path, counted):
    going = Adding(TINY, folder=tmp_path).run(lambda _: None)
    early = [next(going) for _ in range(5)]
    going.close()
    first = len(counted)
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text("".join(lines[:4]) + lines[4][: len(lines[4]) // 2])  # killed while writing the fifth
    rows = run(folder=tmp_path)
    assert without_time(rows) == without_time(run())
    assert rows[:4] == early[:4]
    assert len(counted) - first == 16 - 4 + 16  # the rest, and the run without a folder
    assert run(folder=tmp_path) == rows
    assert len(counted) - first == 16 - 4 + 16


def test_untrained_models_do_not_appear_in_the_verdict():
    study, rows = Adding(TINY), run()
    tuning = [t for t in rows if t.split == "valid"]
    assert study.document(tuning, finished=False)["verdict"] == "Interrupted before the first result."
    first = study.document([*tuning, next(t for t in rows if t.split == "test")], finished=False)["verdict"]
    told, edges = first.split(" Not tuned: ")  # a grid of two learning rates has no inner one
    assert told.endswith("(mean absolute error below 0.05): rnn: none.")
    assert "in 1 of 1 pairs of condition and model (T = 4, marks anywhere: rnn 0.00" in edges


def test_a_best_rate_at_the_edge_of_its_grid_is_not_reported_as_tuned():
    def trial(lr, error, split="valid", model="gru"):
        scores = {m.name: error for m in Adding.metrics}
        return Trial("T = 4, marks anywhere", model, lr, "default", 0, split, 8, 900, scores, [], None, "", 0)

    def tell(*errors):
        study, rates = Adding(replace(TINY, conditions=(ONE,), models=("gru",))), (1e-3, 3e-3, 1e-2)
        rows = [trial(lr, error) for lr, error in zip(rates, errors, strict=True)]
        return describe_edges(study, [*rows, trial(3e-3, 0.1, "test")])

    assert tell(0.3, 0.1, 0.2) == "" == describe_edges(Adding(TINY), [])
    assert tell(0.3, 0.2, 0.1).endswith("in 1 of 1 pairs of condition and model (T = 4, marks anywhere: gru 0.01).")
    assert tell(0.1, 0.2, 0.3).endswith("gru 0.001).")


def test_the_best_settings_are_tuned_again_with_all_steps_and_that_round_decides(monkeypatch):
    monkeypatch.setattr(Adding, "rate_tuning", lambda _, t: -abs(t.lr - (1e-2 if t.seed < FINALISTS else 3e-3)))
    settings = replace(
        TINY, conditions=(ONE,), models=("gru",), lrs=(1e-3, 3e-3, 1e-2, 3e-2), starts=("default",), tuning=0.5
    )
    rows = run(replace(settings, finalists=2))
    second = [t for t in rows if t.seed >= FINALISTS]
    assert [t.lr for t in second] == [1e-2, 3e-3] and {t.split for t in second} == {"valid"}
    assert {t.lr for t in rows if t.split == "test"} == {3e-3}
    assert {t.lr for t in run(settings) if t.split == "test"} == {1e-2}
    steps = [Adding(replace(settings, finalists=n)).parts for n in (0, 2)]
    assert steps == [len(rows) - 2, len(rows)]


def test_the_second_round_has_seeds_of_its_own_and_leaves_out_conditions_that_take_too_long():
    settings = replace(TINY, conditions=(ONE,), models=("gru",), lrs=(1e-3, 1e-2), starts=("default",), finalists=2)
    several = replace(settings, finalist_seeds=2)
    assert [t.seed for t in run(several) if t.seed >= FINALISTS] == 2 * [FINALISTS, FINALISTS + 1]
    assert "the best 2 settings of each model again with all steps and 2 other seeds" in Adding(several).caption()
    without = replace(several, conditions=(replace(ONE, widens=False),))
    rows = run(without)
    assert not [t for t in rows if t.seed >= FINALISTS] and Adding(without).parts == len(rows)
    assert f"(not with {ONE.name})" in Adding(without).caption()


def test_a_trial_with_other_fields_names_its_file(tmp_path):
    run(replace(TINY, models=("rnn",)), tmp_path)
    file = tmp_path / FILE
    file.write_text(file.read_text().replace('"lr": 0.001, "start"', '"rate": 0.001, "start"'))
    with pytest.raises(ValueError, match=r"trials.jsonl was written by another version: .*'rate'.*; move it away"):
        run(replace(TINY, models=("rnn",)), tmp_path)


def test_the_same_study_gives_the_same_table_and_another_setting_is_another_trial(tmp_path):
    one, two = run(), run(folder=tmp_path)
    timeless = [[row | {"ms/step": 0} for row in Adding(TINY).table(rows)] for rows in (one, two)]
    assert timeless[0] == timeless[1]
    keys = [json.loads(line)["key"] for line in (tmp_path / FILE).read_text().splitlines()]
    run(replace(TINY, batch=5), tmp_path)
    more = [json.loads(line)["key"] for line in (tmp_path / FILE).read_text().splitlines()]
    assert more[: len(keys)] == keys and all(key["training"]["batch"] == 5 for key in more[len(keys) :])


def test_a_model_continues_through_conditions_and_is_retrained_from_the_first(tmp_path, counted):
    chain = TrialSettings(
        (ONE, at(6, 3, after=ONE.name)), ("gru",), 1, hidden=8, lrs=(1e-3,), starts=("default",), test=20
    )
    whole = run(chain, tmp_path)
    fresh = run(replace(chain, conditions=(at(6, 3),)))
    assert whole[1].scores != fresh[0].scores
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text(lines[0])
    counted.clear()
    assert without_time(run(chain, tmp_path)) == without_time(whole)
    assert counted == [f"{c.name}, gru, seed 0" for c in chain.conditions]


def test_a_condition_cannot_build_on_one_without_its_model():
    with pytest.raises(ValueError, match=r"'T = 6, marks anywhere' builds on 'T = 4, marks anywhere', where 'rnn'"):
        run(replace(TINY, conditions=(replace(ONE, models=("attn_rnn",)), TWO)))
    with pytest.raises(ValueError, match="did you mean 'gru'"):
        run(replace(TINY, models=("gruu",)))


def test_a_training_that_fails_is_a_failed_seed(monkeypatch):
    def broken(self, model, hidden, start, condition):
        made = Reader(layer(model, 2, hidden, start, 4), 1)
        if model == "rnn":
            torch.nn.init.constant_(made.head.bias, float("nan"))
        return made

    monkeypatch.setattr(Adding, "build", broken)
    rows = run()
    table = {row["model"]: row for row in Adding(TINY).table(rows)}
    assert (table["rnn"]["MAE"], table["rnn"]["seeds"], table["rnn"]["failed"]) == (None, 0, 2)
    assert (table["attn_rnn"]["seeds"], table["attn_rnn"]["failed"]) == (2, 0)
    study = Adding(TINY)
    json.dumps(study.document(rows), allow_nan=False)
    assert study.page(rows, study.document(rows)).blocks


def trial(model, seed, score, failed=""):
    scores = {} if failed else {"MAE": score}
    return Trial("c", model, 1e-3, "default", seed, "test", 4, 9, scores, [], None, failed)


def trials_of(scores, condition="c"):
    return [
        replace(trial(model, seed, score), condition=condition)
        for model, line in scores.items()
        for seed, score in enumerate(line)
    ]


def test_a_difference_is_significant_if_the_corrected_p_value_is():
    rows = trials_of({"a": (0.10, 0.11, 0.12), "b": (0.2, 0.21, 0.22), "c": (0.11, 0.10, 0.13)})
    low, high = TrialMetric("MAE", ERROR), TrialMetric("MAE", ACCURACY)
    actual = contests(rows, low, "a")
    assert [(c.other, c.better) for c in actual] == [("b", True), ("c", None)]
    assert [c.better for c in contests(rows, high, "a", lambda _: 1_000)] == [False, None]
    text = format_contests(actual, "a", low)
    assert "a is better than b in 1 of 1 condition (c: 0.11 against 0.21)." in text
    assert "a shows no significant difference from c in the only condition (c: ratio 0.7" in text
    single = contests([*rows[:3], trial("b", 3, 0.5)], low, "a")
    assert single[0].change.n == (3, 1) and single[0].better is None


def test_conditions_of_a_pair_of_models_are_corrected_together_and_other_pairs_apart():
    values = {"a": (0.10, 0.11, 0.12), "b": (0.2, 0.21, 0.22), "c": (0.13, 0.14, 0.16)}
    rows = [t for condition in "uvw" for t in trials_of(values, condition)]
    actual = contests(rows, TrialMetric("MAE", ERROR), "a")
    assert [(c.condition, c.other) for c in actual] == [(x, m) for x in "uvw" for m in "bc"]
    assert all(c.p == pytest.approx(3 * c.p_alone) for c in actual)


def test_outcomes_that_are_solved_or_not_are_compared_as_counts():
    metric = TrialMetric("MAE", ERROR, solved=0.05)
    rows = trials_of(
        {"a": (0.01,) * 6, "b": (0.3, 0.3, 0.3, 0.3, 0.3, 0.01), "c": (0.04, 0.06, 0.04, 0.05, 0.05, 0.04)}
    )
    b, c = contests(rows, metric, "a")
    assert [str(count) for count in b.solved] == ["6 of 6", "1 of 6"]
    assert b.better and b.p == pytest.approx(14 / 924)  # Fisher's exact test
    assert c.solved is None  # close to the limit on both sides: not two kinds of outcomes
    assert "(c: solved by 6 of 6 seeds against 1 of 6)" in format_contests([b], "a", metric)
    failed = contests([*rows[:6], *(trial("b", i, 0.0, "lost") for i in range(5)), trial("b", 5, 0.01)], metric, "a")
    assert str(failed[0].solved[1]) == "1 of 6"


def test_failed_trainings_are_the_worst_results():
    good, lost = [(0.10 + i / 1_000) for i in range(10)], [trial("a", i, 0.0, "lost") for i in range(9)]
    rows = [*lost, trial("a", 9, 0.05), *(trial("b", i, v) for i, v in enumerate(good))]
    metric = TrialMetric("MAE", ERROR)
    contest = contests(rows, metric, "a")[0]
    assert contest.failed == (9, 0) and contest.better is False  # although the only result is the best of all
    assert "c: 0.05 (9 failed seeds) against 0.105" in format_contests([contest], "a", metric)
    assert tabulate_contests([contest], metric)[0]["seeds"] == "1 of 10 + 10"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", ["rnn", "lstm", "gru", "attn_rnn", "ln_gru"])
def test_the_hidden_size_uses_the_parameter_budget(model, device):
    def build(hidden):
        return Reader(layer(model, 2, hidden, "default", 50), 1)

    hidden = find_hidden_size(build, 50_000, multiple(model, device))
    if device == "cuda" and model in OF_CUDNN:  # in steps of 64, and no rival with gates is smaller than AttnRNN
        assert hidden == (192 if model == "rnn" else 128)
    else:
        assert count_trained(build(hidden)) == pytest.approx(50_000, rel=0.05)  # half a step of 4 units in 112 is 3.6 %
    assert hidden % (16 if (model, device) == ("attn_rnn", "cuda") else 4) == 0


def test_starts_set_the_gate_and_a_cell_without_one_gets_as_many_others():
    assert starts("rnn", ("default", "chrono", "keep 2")) == ("default", "orthogonal", "xavier")
    assert starts("gru", ("default", "chrono")) == ("default", "chrono")
    assert len(rates((1e-3, 3e-3), ("default", "chrono"))) == 4 and rates((0.1, 0.2), ("default",)) == (0.1, 0.2)
    assert torch.equal(layer("attn_rnn", 2, 16, "keep 3", 50).bias_g_l0, torch.full((16,), -3.0))
    assert layer("lstm", 2, 8, "chrono", 50).bias_ih_l0[8:16].max() < torch.tensor(49.0).log()


@pytest.mark.gpu
def test_only_attn_rnn_computes_in_half_precision_and_answers_in_float32():
    for model, kind in (("attn_rnn", torch.bfloat16), ("gru", torch.float32)):
        reader = Reader(layer(model, 2, 16, "default", 9), 1).cuda()
        with natural(reader, torch.device("cuda")):
            assert reader.layer(torch.rand(3, 5, 2, device="cuda"))[0].dtype == kind
        assert reader(torch.rand(3, 5, 2, device="cuda")).dtype == torch.float32


def test_a_reader_answers_after_the_last_real_step_or_after_every_step():
    x, lengths = torch.randint(3, 8, (2, 7)), torch.tensor([7, 4])
    for model in ("lstm", "attn_rnn"):
        reader = Reader(layer(model, 5, 8, "default", 7, num_layers=2), 4, symbols=(3, 5))
        every = Reader(reader.layer, 4, every=True, symbols=(3, 5))
        every.head = reader.head
        actual = every(x)
        torch.testing.assert_close(reader(x, lengths), torch.stack([actual[0, 6], actual[1, 3]]))
    both = Reader(layer("gru", 5, 8, "default", 7, bidirectional=True), 4, symbols=(3, 5))
    y, _ = both.layer((x.unsqueeze(-1) == both.symbols).float())
    torch.testing.assert_close(both(x), both.head(torch.cat([y[:, -1, :8], y[:, 0, 8:]], -1)))


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("natural", "on cuda in float32, AttnRNN under bfloat16 autocast;"),
        ("bfloat16", "on cuda under bfloat16 autocast;"),
        ("float32", "on cuda in float32;"),
    ],
)
def test_the_caption_names_the_precision_and_the_seeds_of_tuning(precision, text):
    settings = replace(TINY, precision=precision, tuning_seeds=2)
    caption = Adding(settings, device="cuda").caption()
    assert text in caption and "with 2 separate seeds; then" in caption


def test_a_condition_tuned_at_several_takes_the_setting_with_the_best_validation():
    both = at(6, 3, tuned_at="T = 4, marks anywhere;T = 5, marks anywhere")
    settings = replace(TINY, conditions=(ONE, at(5, 3), both), models=("attn_rnn",), seeds=1)
    rows = run(settings)
    tuned = [t for t in rows if t.split == "valid"]
    best = min(tuned, key=lambda t: t.scores["MAE"])
    assert {t.condition for t in tuned} == {"T = 4, marks anywhere", "T = 5, marks anywhere"}
    assert (rows[-1].lr, rows[-1].start) == (best.lr, best.start)


def test_a_condition_may_have_fewer_seeds_of_a_model():
    settings = replace(TINY, conditions=(replace(ONE, seeds_of={"rnn": 1}),))
    seeds = [(t.model, t.seed) for t in run(settings) if t.split == "test"]
    assert seeds == [("rnn", 0), ("attn_rnn", 0), ("attn_rnn", 1)]

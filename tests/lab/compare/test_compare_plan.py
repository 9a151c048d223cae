import re

import pytest

from seqloom.lab.compare.plan import Limits, TrainingCost, TrainingPlan, plan_budget, share_time
from seqloom.lab.console import format_seconds

MODELS = {f"m{i}": TrainingCost(0.01 * (1 + i % 3), 0.1, 0.2) for i in range(14)}


def cost(plan: TrainingPlan, workers: int) -> float:
    """Return the seconds of a plan if the slowest models are the best ones."""
    slow = sorted((MODELS[m].step + 0.1 / plan.every for m in plan.models), reverse=True)
    total = plan.rates * plan.first * sum(slow) + (plan.second - plan.first) * sum(slow[: plan.survivors])
    total += (plan.steps - plan.second + (plan.seeds - 1) * plan.steps) * sum(slow[: plan.finalists])
    return total / workers


@pytest.mark.parametrize("seconds", [60, 120, 600, 3600])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_plan_keeps_to_the_budget_and_uses_it(seconds, workers):
    plan = plan_budget(MODELS, Limits(seconds, workers, 3, epoch=100))
    assert plan.seconds <= seconds
    assert cost(plan, workers) < 1.2 * seconds
    assert plan.seconds > 0.75 * seconds or plan.steps > 1980  # longer trainings would not help
    assert plan.steps % plan.every == 0 and plan.first % plan.every == 0 and plan.second % plan.every == 0


def test_more_time_never_means_less():
    sizes = [plan_budget(MODELS, Limits(s, 2, 3, epoch=100)) for s in (30, 60, 120, 240, 480, 960)]
    work = [len(p.models) * p.rates * p.first + p.finalists * p.seeds * p.steps for p in sizes]
    assert work == sorted(work)


def test_when_time_is_short_the_last_models_are_dropped_before_seeds():
    plan = plan_budget(MODELS, Limits(60, 1, 3, epoch=100))
    assert plan.seeds == 3 and 2 <= len(plan.models) < 14
    assert plan.models == tuple(MODELS)[: len(plan.models)]


def test_models_and_settings_that_were_chosen_are_kept():
    plan = plan_budget(MODELS, Limits(40, 2, 3, epoch=100, all_models=True, rates=2))
    assert len(plan.models) == 14 and plan.rates == 2


def test_a_single_training_is_no_faster_for_more_workers():
    one = {"m0": MODELS["m0"]}
    alone, many = (plan_budget(one, Limits(10, workers, 1, epoch=100, rates=1)) for workers in (1, 4))
    assert alone.steps == many.steps and many.seconds <= 10


def test_few_models_are_all_trained_to_the_end():
    few = {name: MODELS[name] for name in ("m0", "m1")}
    plan = plan_budget(few, Limits(20, 1, 1, epoch=100, rates=1))
    assert not plan.is_screened and plan.finalists == 2


@pytest.mark.parametrize(("seconds", "steps"), [(2.6, 1), (1.8, 0)])
def test_a_single_step_is_trained_if_there_is_time_for_one(seconds, steps):
    plan = plan_budget({"gru": TrainingCost(1.0, 0.1, 0.1)}, Limits(seconds, 1, 1, epoch=100))
    assert (plan.steps, len(plan.models), plan.is_short) == (steps, steps, True)


SLOW = {"gru": TrainingCost(0.5, 1.0, 1.0), "lstm": TrainingCost(1.0, 1.0, 1.0)}


def test_a_small_budget_gets_part_of_an_epoch_and_says_what_more_time_would_buy():
    plan = plan_budget(SLOW, Limits(60, 2, 3, epoch=1000, spent=10))
    assert plan.is_short and plan.models == ("gru",) and 30 < plan.steps < 200 and plan.seeds == 1
    assert not plan.is_screened and plan.seconds <= 60 and plan.epochs == plan.steps / 1000
    budget = re.fullmatch(r"--budget (\d+)m would allow ([\d,]+) steps \([\d.]+ epochs\).*", plan.more)
    assert budget and int(budget[2].replace(",", "")) >= 1000
    assert plan_budget(SLOW, Limits(60 * int(budget[1]) - 10, 2, 3, epoch=1000)).steps >= 1000


def test_a_short_plan_leaves_no_worker_idle_unless_a_model_is_much_slower():
    alike = {name: TrainingCost(1.0, 5.0, 5.0) for name in ("gru", "lstm", "rnn")}
    alone, two = (plan_budget(alike, Limits(60, workers, 3, epoch=1000)) for workers in (1, 2))
    assert alone.models == ("gru",) and two.models == ("gru", "lstm") and 0 < two.steps == alone.steps < 60
    slower = alike | {"lstm": TrainingCost(3.0, 5.0, 5.0)}
    assert plan_budget(slower, Limits(60, 2, 3, epoch=1000)).models == ("gru",)


def test_models_chosen_by_name_get_few_steps_before_they_are_dropped():
    assert len(plan_budget(SLOW, Limits(130, 1, 3, epoch=1000, all_models=True)).models) == 2


@pytest.mark.parametrize("seconds", [0.5, -20.0])
def test_without_time_for_a_step_nothing_is_trained(seconds):
    plan = plan_budget(SLOW, Limits(seconds, 2, 3, epoch=1000, spent=10))
    assert plan.is_short and not plan.models and not plan.is_screened and "--budget" in plan.more
    assert plan_budget({}, Limits(60, 2, 3, epoch=10)).models == ()


@pytest.mark.parametrize("seconds", [60, 600])
def test_each_stage_has_a_share_of_the_time_and_the_last_one_ends_it(seconds):
    plan = plan_budget(MODELS, Limits(seconds, 2, 3, epoch=100))
    shares = share_time(plan, MODELS)
    assert list(shares) == ["first", "second", "final"] and shares["final"] == 1
    assert 0.05 < shares["first"] < shares["second"] <= 0.8
    assert share_time(plan_budget(SLOW, Limits(60, 2, 3, epoch=1000)), SLOW) == {"final": 1.0}


def test_endless_data_need_no_epoch():
    assert plan_budget(MODELS, Limits(60, 2, 3, epoch=None)).steps >= 100


@pytest.mark.parametrize(("seconds", "text"), [(0.32, "0.32s"), (90, "90s"), (60, "1m"), (600, "10m"), (7200, "2h")])
def test_durations_are_formatted_like_the_budget(seconds, text):
    assert format_seconds(seconds) == text

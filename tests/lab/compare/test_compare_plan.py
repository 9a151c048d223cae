import re

import pytest

from seqloom.lab.compare.plan import Asked, Plan, Speed, clock, plan

MODELS = {f"m{i}": Speed(0.01 * (1 + i % 3), 0.1, 0.2) for i in range(14)}


def cost(made: Plan, workers: int) -> float:
    """What the plan takes if the models that go on are the slowest ones."""
    slow = sorted((MODELS[m].step + 0.1 / made.every for m in made.models), reverse=True)
    total = made.rates * made.first * sum(slow) + (made.second - made.first) * sum(slow[: made.halved])
    total += (made.steps - made.second + (made.seeds - 1) * made.steps) * sum(slow[: made.finalists])
    return total / workers


@pytest.mark.parametrize("seconds", [60, 120, 600, 3600])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_plan_keeps_to_the_budget_and_uses_it(seconds, workers):
    made = plan(MODELS, Asked(seconds, workers, 3, epoch=100))
    assert made.seconds <= seconds
    assert cost(made, workers) < 1.2 * seconds
    assert made.seconds > 0.75 * seconds or made.steps > 1980  # longer trainings would not help
    assert made.steps % made.every == 0 and made.first % made.every == 0 and made.second % made.every == 0


def test_more_time_never_means_less():
    sizes = [plan(MODELS, Asked(s, 2, 3, epoch=100)) for s in (30, 60, 120, 240, 480, 960)]
    work = [len(p.models) * p.rates * p.first + p.finalists * p.seeds * p.steps for p in sizes]
    assert work == sorted(work)


def test_when_time_is_short_models_go_before_seeds_and_the_first_ones_stay():
    made = plan(MODELS, Asked(60, 1, 3, epoch=100))
    assert made.seeds == 3 and 2 <= len(made.models) < 14
    assert made.models == tuple(MODELS)[: len(made.models)]


def test_models_and_settings_that_a_person_chose_are_kept():
    made = plan(MODELS, Asked(40, 2, 3, epoch=100, all_models=True, rates=2))
    assert len(made.models) == 14 and made.rates == 2


def test_a_single_training_is_no_faster_for_more_workers():
    one = {"m0": MODELS["m0"]}
    alone, many = (plan(one, Asked(10, workers, 1, epoch=100, rates=1)) for workers in (1, 4))
    assert alone.steps == many.steps and many.seconds <= 10


def test_few_models_are_all_trained_to_the_end():
    few = {name: MODELS[name] for name in ("m0", "m1")}
    made = plan(few, Asked(20, 1, 1, epoch=100, rates=1))
    assert not made.screened and made.finalists == 2


def test_a_budget_too_small_for_an_epoch_of_anything_says_what_would_fit():
    slow = {"gru": Speed(0.5, 1.0, 1.0), "lstm": Speed(1.0, 1.0, 1.0)}
    with pytest.raises(
        ValueError, match=r"the budget is too small: an epoch of gru, the fastest model, takes about 8\.3m"
    ) as e:
        plan(slow, Asked(30, 2, 3, epoch=1000, spent=10))
    budget = re.search(r"--budget (\d+)m is enough for ([\d,]+) steps of (\d) model", str(e.value))
    assert budget and int(budget[2].replace(",", "")) >= 1000
    assert plan(slow, Asked(60 * int(budget[1]) - 10, 2, 3, epoch=1000)).steps >= 1000


def test_data_without_end_need_no_epoch():
    assert plan(MODELS, Asked(60, 2, 3, epoch=None)).steps >= 100


@pytest.mark.parametrize(("seconds", "said"), [(0.32, "0.32s"), (90, "90s"), (60, "1m"), (600, "10m"), (7200, "2h")])
def test_times_are_written_as_they_are_given(seconds, said):
    assert clock(seconds) == said

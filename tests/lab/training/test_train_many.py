"""Many small trainings at once."""

import gc
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import seqloom
from seqloom.core.cell import Cell
from seqloom.lab.training import many
from seqloom.lab.training.many import NO_MEMORY, train_many
from seqloom.lab.training.recipe import LOSS_SPANS, Recipe, SmallTraining, TrainedModel


class Adder(nn.Module):
    def __init__(self, kind=seqloom.GRU, hidden=16):
        super().__init__()
        self.layer, self.head = kind(2, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1]).squeeze(1)


def batch(noise, device, length=6):
    x = torch.rand(32, length, 2, generator=noise, device=device)
    return x, x[..., 0].mean(1)


def loss(model, drawn):
    x, y = drawn
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        actual = model(x)
    return F.mse_loss(actual.float(), y)


def training(seed=0, steps=120, model=Adder, **changes):
    given = dict(name=f"adder {seed}", model=model, batch=batch, loss=loss, recipe=Recipe(steps, 1e-2), seed=seed)
    return SmallTraining(**(given | changes))


def test_many_trainings_learn_and_each_depends_on_its_seed_alone():
    together = train_many([training(0), training(1)], "cpu")
    (alone,) = train_many([training(1)], "cpu")
    assert [t.name for t in together] == ["adder 0", "adder 1"]
    assert together[1].losses == alone.losses != together[0].losses
    assert all(torch.equal(a, b) for a, b in zip(together[1].model.parameters(), alone.model.parameters(), strict=True))
    assert len(alone.losses) == LOSS_SPANS and alone.losses[-1] < 0.3 * alone.losses[0]
    assert not alone.model.training


@pytest.mark.parametrize("steps", [1, 7, 53])
def test_the_losses_are_means_over_equal_spans(steps):
    constant = training(steps=steps, loss=lambda model, _: 0 * sum(p.sum() for p in model.parameters()) + 3.0)
    (actual,) = train_many([constant], "cpu")
    assert actual.losses == pytest.approx([3.0] * min(LOSS_SPANS, steps))


def test_a_failed_training_ends_and_the_others_continue():
    def broken(model, drawn):
        raise ValueError("no such thing")

    nan = training(2, loss=lambda model, drawn: loss(model, drawn) * float("nan"))
    ends = train_many([training(0, steps=3), training(1, loss=broken), nan], "cpu")
    reason = "the gradient was not finite in 120 of 120 steps"
    assert [e.failed for e in ends] == ["", "ValueError: no such thing", reason]
    assert ends[1].model is None


def spoilt(at):
    """Return a loss that is NaN in these steps."""
    steps = iter(range(1000))

    def one(model, drawn):
        return loss(model, drawn) * (float("nan") if next(steps) in at else 1.0)

    return one


def test_a_step_whose_gradient_is_not_finite_changes_nothing_and_is_counted():
    plain, spoilt_once = train_many([training(steps=10), training(steps=10, loss=spoilt({3, 7}))], "cpu")
    assert (plain.skipped, spoilt_once.skipped) == (0, 2) and not spoilt_once.failed
    assert all(p.isfinite().all() for p in spoilt_once.model.parameters())
    assert spoilt_once.losses[:3] == plain.losses[:3] and math.isnan(spoilt_once.losses[3])
    assert all(math.isfinite(value) for value in spoilt_once.losses[8:])
    (none,) = train_many([training(steps=10, loss=spoilt(set(range(10))), model=Adder)], "cpu")
    torch.manual_seed(0)
    untouched = Adder()
    assert none.failed and all(
        torch.equal(a, b) for a, b in zip(none.model.parameters(), untouched.parameters(), strict=True)
    )


def test_what_is_due_before_a_step_runs_before_every_step_in_order():
    calls = []

    def prepare(model, noise, done):
        calls.append((done, model.head.weight.detach().clone(), torch.is_grad_enabled()))

    with_it, without = train_many([training(steps=4, prepare=prepare), training(steps=4)], "cpu")
    assert [done for done, *_ in calls] == [0, 1, 2, 3] and with_it.losses == without.losses
    assert not torch.equal(calls[0][1], calls[1][1]) and not any(grad for *_, grad in calls)


@pytest.mark.gpu
def test_a_graph_reads_what_was_prepared_for_its_step():
    class Counted:
        """Batches that are drawn two at a time."""

        def prepare(self, model, noise, done):
            if done % 2 == 0:
                x = torch.rand(2, 32, 6, 2, generator=noise, device=noise.device)
                self.x = x if done == 0 else self.x.copy_(x)
                self.next = torch.zeros(1, dtype=torch.long, device=noise.device) if done == 0 else self.next.zero_()

        def __call__(self, noise, device):
            x = self.x.index_select(0, self.next).squeeze(0)
            self.next += 1
            return x, x[..., 0].mean(1)

    def one(device):
        batches = Counted()
        return train_many([training(batch=batches, prepare=batches.prepare)], device)[0]

    alone, cpu = one("cuda"), one("cpu")
    assert alone.losses == one("cuda").losses and alone.losses[-1] < 0.3 * alone.losses[0]
    assert alone.losses[-1] < 2 * cpu.losses[-1] + 0.01


def make_adder_of(cell):
    return lambda: Adder(partial(seqloom.Recurrent, cell), 32)


@pytest.mark.parametrize("cell", sorted(Cell.registry))
def test_every_cell_trains(cell):
    (done,) = train_many([training(steps=24, model=make_adder_of(cell))], "cpu")
    assert not done.failed and not done.skipped
    assert done.losses[-1] < done.losses[0]


@pytest.mark.gpu
@pytest.mark.parametrize("cell", sorted(Cell.registry))
def test_every_cell_trains_as_a_graph(cell):
    (done,) = train_many([training(steps=24, model=make_adder_of(cell))], "cuda")
    assert not done.failed and not done.skipped
    assert done.losses[-1] < done.losses[0]


def test_frozen_objects_are_hidden_from_the_collector_for_a_while():
    gc.unfreeze()  # a server that ran before in this process froze its own
    with many._frozen_objects():
        assert gc.get_freeze_count() > 10_000
        with many._frozen_objects():
            pass
        assert gc.get_freeze_count() > 10_000  # the inner one leaves what it did not freeze
    assert gc.get_freeze_count() == 0


def test_the_rate_rises_and_falls():
    recipe = Recipe(100, 1.0, warm_up=0.1)
    rates = [recipe.rate(i) for i in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] == rates[10] == 1.0 and rates[-1] < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "AttnRNN"])
def test_graphs_on_streams_match_trainings_in_order(kind):
    def model():
        return Adder(getattr(seqloom, kind), 32)

    together = train_many([training(seed, model=model) for seed in range(4)], "cuda")
    (alone,) = train_many([training(2, model=model)], "cuda")
    assert [t.failed for t in together] == [""] * 4
    assert together[2].losses == pytest.approx(alone.losses, rel=1e-3)
    assert all(t.losses[-1] < 0.3 * t.losses[0] for t in together)


@pytest.mark.gpu
def test_a_graph_skips_steps_whose_gradient_is_not_finite():
    def by_chance(model, drawn):
        return loss(model, drawn) * torch.where(drawn[0][0, 0, 0] > 0.8, math.nan, 1.0)

    (actual,) = train_many([training(loss=by_chance)], "cuda")
    assert 5 < actual.skipped < 60 and not actual.failed
    assert all(p.isfinite().all() for p in actual.model.parameters()) and actual.losses[-1] < 0.5 * actual.losses[0]


@pytest.mark.parametrize("room", [1, 3, 6, 9])
def test_trainings_that_do_not_fit_into_memory_run_after_the_others(monkeypatch, room):
    groups = []

    def group(trainings, *_):
        groups.append(len(trainings))
        held = [f"{NO_MEMORY}: full" if t.name == "huge" or i >= room else "" for i, t in enumerate(trainings)]
        return [TrainedModel(t.name, None, [], 0.0, failed) for t, failed in zip(trainings, held, strict=True)]

    monkeypatch.setattr(many, "_train_group", group)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    asked = [training(seed, name="huge" if seed == 2 else f"adder {seed}") for seed in range(8)]
    ends = train_many(asked, "cuda")
    assert [one.name for one in ends] == [t.name for t in asked]
    assert [one.name for one in ends if one.failed] == ["huge"] and groups[0] == 8 and groups[-1] <= 2

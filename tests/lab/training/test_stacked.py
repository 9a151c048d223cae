from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from research.studies.support.mixers import make_linear
from seqloom.lab.training import many
from seqloom.lab.training.many import _train_one
from seqloom.lab.training.recipe import Recipe, SmallTraining
from seqloom.lab.training.stacked import StackedStep

CPU = torch.device("cpu")
STEPS = 12


def draw(random, device):
    x = torch.randn(4, 9, 8, generator=random, device=device)
    return x, x.cumsum(1)


def loss(model, batch):
    y, _ = model(batch[0])
    return F.mse_loss(y, batch[1])


def make_trainings(kind="gated_deltanet negative", **settings):
    settings = {"loss": loss} | settings
    return [
        SmallTraining(
            "a", lambda: make_linear(kind, 8), draw, settings["loss"], Recipe(STEPS, lr, weight_decay=decay), seed
        )
        for lr, decay, seed in ((1e-2, 0.0, 0), (1e-3, 0.1, 1), (3e-3, 0.0, 2))
    ]


def read_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["gated_deltanet negative", "mamba2"])
def test_stacked_trainings_give_what_each_gives_alone(kind):
    stacked = StackedStep(make_trainings(kind), CPU)
    for done in range(STEPS):
        stacked.prepare(done)
        stacked()
    for training, model, losses in zip(make_trainings(kind), stacked.models, stacked.losses.T, strict=True):
        alone = _train_one(training, CPU)
        torch.testing.assert_close(losses[-1].item(), alone.losses[-1], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(read_weights(model), read_weights(alone.model), rtol=1e-2, atol=2e-3)


def test_a_step_without_a_finite_gradient_changes_nothing_in_its_model_alone():
    def lose(model, batch):
        return loss(model, batch) * torch.where(batch[0].sum() > 10, torch.inf, 1.0)

    stacked = StackedStep(make_trainings(loss=lose), CPU)
    before = stacked.flat.clone()
    stacked()
    skipped = stacked.losses[0].isnan()
    changed = (stacked.flat != before).any(1)
    assert skipped.any() and not skipped.all()
    torch.testing.assert_close(changed, ~skipped)


def test_a_model_shows_its_weights_while_it_is_trained():
    stacked = StackedStep(make_trainings(), CPU)
    before = read_weights(stacked.models[1])
    stacked()
    torch.testing.assert_close(read_weights(stacked.models[1]), stacked.flat[1])
    assert not torch.equal(read_weights(stacked.models[1]), before)


def test_models_that_differ_in_a_buffer_are_not_stacked():
    def build():
        model = make_linear("mamba2", 8)
        model.register_buffer("noise", torch.rand(3))
        return model

    trainings = [SmallTraining("a", build, draw, loss, Recipe(STEPS, 1e-2), seed) for seed in (0, 1)]
    with pytest.raises(ValueError, match="buffers"):
        StackedStep(trainings, CPU)


def test_trainings_that_cannot_be_recorded_as_one_model_are_left_to_run_alone(monkeypatch, caplog):
    def refuse(*_):
        raise RuntimeError("no graph")

    monkeypatch.setattr(many, "_Recording", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    trainings = [replace(training, stack="mamba") for training in make_trainings("mamba2")]
    assert many._train_stacks(trainings, CPU) == {}
    assert "mamba: not trained as one model: no graph" in caplog.text

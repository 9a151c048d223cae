"""Trainings towards goals (research/quality) that are divided into several runs of the process."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

from research.quality import goal_training

STEPS = 12


@pytest.fixture
def training_module():
    return goal_training


def make_training(module, losses):
    """Return a training of one weight, towards 3, that appends its loss at each step."""

    def loss(model, batch):
        losses.append((model(batch[0]) - 3).square().mean())
        return losses[-1]

    return module.Training(
        "three", "adam", 0, lambda: nn.Linear(1, 1, bias=False), lambda _: (torch.ones(4, 1),), loss,
        lambda model, _: {"weight": float(model.weight)}, STEPS, 0.1, ema=0.5, score_every=0.5,
    )  # fmt: skip


def run(module, folder, until):
    """Return the number of steps that were taken, and the records of the ledger."""
    losses, ledger = [], folder / "ledger.jsonl"
    training = make_training(module, losses)
    module.train_all([training], torch.device("cpu"), math.inf, ledger, until, folder / "states")
    return len(losses), [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def test_a_training_in_two_runs_takes_the_steps_of_one(training_module, tmp_path):
    first, ended = run(training_module, tmp_path, 0.5)
    assert (first, ended) == (STEPS // 2, [])
    second, ended = run(training_module, tmp_path, 1.0)
    assert second == STEPS - first
    assert [record["steps"] for record in ended] == [STEPS]
    assert [point["step"] for point in ended[0]["curve"]][-1] == STEPS


def test_a_training_in_two_runs_ends_with_the_weights_of_one(training_module, tmp_path):
    run(training_module, tmp_path / "divided", 0.5)
    _, divided = run(training_module, tmp_path / "divided", 1.0)
    _, whole = run(training_module, tmp_path / "whole", 1.0)
    assert divided[0]["test"]["weight"] == pytest.approx(whole[0]["test"]["weight"], abs=1e-6)


def test_an_interrupted_write_leaves_the_earlier_state(training_module, tmp_path):
    run(training_module, tmp_path, 0.5)
    (tmp_path / "states" / "three-adam-0.partial").write_bytes(b"cut off")
    second, ended = run(training_module, tmp_path, 1.0)
    assert second == STEPS // 2
    assert len(ended) == 1

"""What a comparison measures before it plans, with a clock that ticks a quarter of a second when it is read."""

from dataclasses import asdict
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from seqloom.lab.compare import timing
from seqloom.lab.compare.timing import TaskSize, measure_speed, measure_task
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines.counts import ConstantText
from seqloom.lab.kinds.settings import TrainSettings

TICK = 0.25
OPTIONS = {"steps": 6}
BATCH = 4


@pytest.fixture
def clock(monkeypatch):
    ticks = count()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: TICK * next(ticks)))


def measure(tmp_path, seconds, size):
    settings = TrainSettings(model="rnn", hidden=4, batch=BATCH, device="cpu").model_dump()
    return measure_speed({"data": "adding", "options": OPTIONS}, settings, asdict(size), seconds, tmp_path)


def test_the_cost_of_a_step_is_its_time_for_an_average_batch(clock, tmp_path):
    result = measure(tmp_path, 3 * TICK, TaskSize(None, 6, BATCH * 6.0, 0.0, 0.0))
    assert result["step"] == pytest.approx(TICK)
    assert result["valid"] == pytest.approx(2 * TICK)  # two checkpoints: no steps
    assert result["test"] == 0
    assert result["memory"] > 0


def test_validation_and_test_cost_the_time_of_their_steps(clock, tmp_path):
    result = measure(tmp_path, 3 * TICK, TaskSize(None, 6, BATCH * 12.0, BATCH * 6.0 * 10, BATCH * 6.0 * 5))
    assert result["step"] == pytest.approx(2 * TICK)
    assert result["valid"] == pytest.approx(10 * TICK + 2 * TICK)
    assert result["test"] == pytest.approx(5 * TICK)


def test_the_size_of_a_task_counts_rows_and_steps(monkeypatch):
    monkeypatch.setattr(timing, "SAMPLED_BATCHES", 5)  # of 250 batches
    task = open_task("adding", **OPTIONS)
    size = measure_task(task, BATCH)
    assert (size.length, size.train) == (6, BATCH * 6)
    assert size.valid == task.splits["valid"].size * 6
    assert size.batches == task.count("train", batch=BATCH)


def test_a_constant_text_is_the_same_for_every_recording():
    text = ConstantText(ids=torch.tensor([5, 3, 4]))
    assert text(torch.zeros(2, 7, 3)).tolist() == [[5, 3, 4]] * 2
    assert text.state_dict()["ids"].tolist() == [5, 3, 4]

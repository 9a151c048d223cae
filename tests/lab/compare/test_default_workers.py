"""How many processes a comparison starts unless it is told."""

import os
from types import SimpleNamespace

import pytest
import torch

from seqloom.lab.compare import execution
from seqloom.lab.compare.folder import PROCESSES_PER_GPU, default_workers


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(6, 0, 6), (100, 1, PROCESSES_PER_GPU), (100, 3, 3 * PROCESSES_PER_GPU), (2, 3, 2)]
)
def test_there_is_a_worker_for_each_core_and_a_few_for_each_gpu(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert default_workers() == workers


class ChosenError(Exception):
    """Where the jobs of a comparison would run."""


@pytest.mark.parametrize(
    ("ray", "workers", "expected"),
    [(None, None, ("ray", "stored", 2)), ("new", None, ("ray", "new", 2)), (None, 3, ("here", 3))],
)
def test_workers_without_ray_move_a_comparison_to_this_machine(monkeypatch, ray, workers, expected):
    def use_ray(address, at_once):
        raise ChosenError("ray", address, at_once)

    def use_processes(number):
        raise ChosenError("here", number)

    monkeypatch.setattr(execution.runner, "Cluster", use_ray)
    monkeypatch.setattr(execution.runner, "Processes", use_processes)
    comparison = SimpleNamespace(settings=SimpleNamespace(ray="stored", workers=2), workers=2)
    with pytest.raises(ChosenError) as chosen:
        execution._run_jobs(comparison, SimpleNamespace(ray=ray, workers=workers))
    assert chosen.value.args == expected

"""How many processes a comparison starts unless it is told."""

import os

import pytest
import torch

from seqloom.lab.compare.folder import PROCESSES_PER_GPU, default_workers


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(6, 0, 6), (100, 1, PROCESSES_PER_GPU), (100, 3, 3 * PROCESSES_PER_GPU), (2, 3, 2)]
)
def test_there_is_a_worker_for_each_core_and_a_few_for_each_gpu(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert default_workers() == workers

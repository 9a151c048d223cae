"""Steps that are recorded for a GPU, with a GPU that only counts."""

from contextlib import contextmanager

import pytest
import torch

from seqloom.lab.training import many
from seqloom.lab.training.many import RecordedSteps


@pytest.fixture
def gpu(monkeypatch):
    """Replace torch's streams, events and graphs; return what happened, in order."""
    happened = []

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            pass

    class Event:
        def record(self):
            self.number = len([name for name in happened if name == "event"])
            happened.append("event")

        def query(self):
            return f"ended {self.number}" in happened

        def synchronize(self):
            happened.append(f"ended {self.number}")

    class Graph:
        def register_generator_state(self, generator):
            happened.append("generator")

        def replay(self):
            happened.append("replay")

    @contextmanager
    def inside(*_, **__):
        yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", inside)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    return happened


class CountedStep:
    """A step that notes its calls."""

    def __init__(self, happened):
        self.happened, self.generators = happened, [None]

    def prepare(self, done):
        self.happened.append(f"prepare {done}")

    def __call__(self):
        self.happened.append("step")


def test_the_host_is_at_most_some_steps_ahead(gpu):
    recorded = RecordedSteps(torch.device("cpu"), 2)
    for number in range(4):
        assert recorded.is_ready() == (number < 2)
        recorded.run(lambda: None)
    assert [name for name in gpu if name.startswith("ended")] == ["ended 0", "ended 1"]


def test_warm_up_steps_are_part_of_the_training_and_the_recording_is_not(gpu):
    recording = many._Recording(CountedStep(gpu), 5, torch.device("cpu"))
    assert gpu[-2:] == ["generator", "step"]  # the recording itself, which runs nothing on a GPU
    many._replay([recording], torch.device("cpu"))
    assert recording.done == 5
    assert [name for name in gpu if name.startswith("prepare")] == [f"prepare {done}" for done in range(5)]
    assert gpu.count("replay") == 2 and gpu.count("step") == many.WARM_UP_STEPS + 1


def test_a_training_shorter_than_the_warm_up_is_not_replayed(gpu):
    recording = many._Recording(CountedStep(gpu), 2, torch.device("cpu"))
    many._replay([recording], torch.device("cpu"))
    assert recording.done == 2 and "replay" not in gpu

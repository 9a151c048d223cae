"""What is kept between calls is kept for each of torch's numeric flags."""

from contextlib import contextmanager

import pytest
import torch

from seqloom.core.precision import numeric_flags
from seqloom.kernels.cuda.runtime import graphs, recorded

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
HAS_PRECISIONS = hasattr(torch._C, "_get_fp32_precision_getter")  # torch 2.9 or newer


@contextmanager
def _set(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CHANGES = {
    "tf32 in products": lambda: _set(MATMUL, *(("fp32_precision", "tf32") if HAS_PRECISIONS else ("allow_tf32", True))),
    "tf32 in cuDNN": lambda: (
        _set(CUDNN.rnn, "fp32_precision", "ieee") if HAS_PRECISIONS else _set(CUDNN, "allow_tf32", False)
    ),
    "cuDNN": lambda: _set(CUDNN, "enabled", False),
    "float16 sums": lambda: _set(MATMUL, "allow_fp16_reduced_precision_reduction", False),
    "bfloat16 sums": lambda: _set(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "deterministic": _deterministic,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast's type": lambda: torch.autocast("cpu", torch.float16),
}


class _Work:
    def launch(self):
        pass


def find_work(key):
    with graphs.record(key, _Work) as (work, _):
        return work


@pytest.mark.parametrize("change", CHANGES)
def test_a_recording_is_not_used_under_other_flags(change):
    before = numeric_flags()
    first = find_work("test")
    assert find_work("test") is first
    with CHANGES[change]():
        assert numeric_flags() != before
        other = find_work("test")
        assert other is not first
    assert numeric_flags() == before
    assert find_work("test") is first


def test_no_recording_is_discarded_while_a_user_captures_a_graph(monkeypatch):
    monkeypatch.setattr(graphs, "_cache", graphs.OrderedDict())
    monkeypatch.setattr(graphs.heuristics, "GRAPHS_KEPT", 2)
    oldest = find_work("oldest")
    find_work("other")
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_available", lambda: True)
        capture.setattr(torch.cuda, "current_stream", lambda: "the stream of the capture")
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        find_work("captured")
        assert len(graphs._cache) == 3
    find_work("oldest")
    assert len(graphs._cache) == 2 and find_work("oldest") is oldest


class _Graph:
    def __init__(self, log):
        self.log = log

    def replay(self):
        self.log.append("replay")


def test_a_pass_is_recorded_after_some_runs_and_replayed_under_the_same_flags(monkeypatch):
    log = []

    def record(launch):
        launch()
        return _Graph(log)

    monkeypatch.setattr(graphs.heuristics, "RUNS_BEFORE_RECORDING", 2)
    monkeypatch.setattr(graphs, "_record_launches", record)
    recorder = recorded.Recorder(torch.device("cpu"), 1)
    for flags in (1, 1, 1, 2, 2, 1):
        recorder.run(lambda tensors: log.append("launch") or [2 * tensors[0]], flags, [torch.ones(3)])
    recording = ["launch", "launch", "replay"]
    assert log == [*recording, "replay", *recording, "launch"]


def test_a_recording_that_is_dropped_during_a_capture_is_freed_later(monkeypatch):
    monkeypatch.setattr(graphs, "_discarded", [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(graphs, "_record_launches", lambda _: _Graph([]))
    work = graphs.RecordedLaunches(list)
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        del work
        assert len(graphs._discarded) == 1
    other = graphs.RecordedLaunches(list)
    assert not graphs._discarded
    del other

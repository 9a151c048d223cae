"""The test rows of a training are scored, and their metrics are logged once."""

import json
from types import SimpleNamespace

import pytest

from seqloom.lab.compare import rung as module
from seqloom.lab.compare.rung import METRICS, Rung


@pytest.mark.parametrize("is_logged", [False, True])
def test_metrics_of_the_test_are_logged_unless_they_are_already(monkeypatch, tmp_path, is_logged):
    before = [{"split": "valid"}, {"split": "test"}] if is_logged else [{"split": "valid"}]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in before))
    monkeypatch.setattr(module, "load_weights", lambda *_: None)
    monkeypatch.setattr(module.row_scores, "score_rows", lambda *_: {"right": [1, 0]})
    scores = SimpleNamespace(rows=2, values={"accuracy": 0.5}, intervals={"accuracy": (0.1, 0.9)})
    monkeypatch.setattr(module, "compute_scores", lambda *_, **__: scores)
    best = SimpleNamespace(tensors=lambda _: {}, facts={"step": 3})
    training = Rung.__new__(Rung)
    training.run = SimpleNamespace(checkpoint=lambda *_, **__: best, metrics=lambda: before, folder=tmp_path)
    training.model = SimpleNamespace(fit_decision=lambda *_: None, store_decision=lambda *_: None)
    training.settings, training.task = None, SimpleNamespace(overlap=None)
    assert training.test(8) == {"right": [1, 0]}
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert lines[: len(before)] == before
    assert len(lines) == 2
    if not is_logged:
        assert {
            "step": 3,
            "split": "test",
            "rows": 2,
            "accuracy": 0.5,
            "accuracy_interval": [0.1, 0.9],
        }.items() <= lines[1].items()

"""Models that a page runs by itself."""

import base64
import json

import numpy as np
import polars as pl
import pytest
import torch

import seqloom
from seqloom.lab.explore.portable_model import explain_not_portable, pack_model
from seqloom.lab.explore.subject import Subject, open_subject
from seqloom.lab.training.model import build


@pytest.fixture(scope="module")
def subject(run):
    return open_subject(run)


def change(run, **settings):
    return Subject("changed", build(run.task, run.settings.model_copy(update=settings)).eval(), run.task)


@pytest.mark.parametrize("model", ["gru", "lstm", "attn_rnn", "transformer", "bi_gru"])
def test_these_models_run_in_a_page(run, model):
    packed = pack_model(subject := change(run, model=model))
    assert explain_not_portable(subject) == ""
    json.dumps(packed, allow_nan=False)
    for name, tensor in subject.network.state_dict().items():
        stored = packed["tensors"][name]
        values = np.frombuffer(base64.b64decode(stored["data"]), "<f4").reshape(stored["shape"])
        assert torch.equal(torch.from_numpy(values.copy()), tensor)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "min_gru"}, "not min_gru"),
        ({"model": "tcn"}, "not this TCN"),
        ({"model": "local_transformer"}, "not this Projected"),
        ({"readout": "attention"}, "no attention readout"),
    ],
)
def test_other_models_say_why_they_do_not(run, settings, reason):
    assert reason in explain_not_portable(change(run, **settings))


def test_a_model_that_is_too_large_says_so(subject, monkeypatch):
    monkeypatch.setattr("seqloom.lab.explore.portable_model.MAX_BYTES", 1000)
    assert "its weights have" in explain_not_portable(subject)


def test_a_model_of_numbers_is_recorded_only(folder):
    frame = pl.DataFrame({"x": [[float(i), 1.0, 2.0] for i in range(40)], "y": ["a", "b"] * 20})
    run = seqloom.train(frame, out=folder / "numbers", hidden=8, steps=1, validate_every=1, device="cpu")
    assert explain_not_portable(open_subject(run)).startswith("a page can run models that read words or characters")


def test_a_baseline_is_recorded_only(run):
    subject = change(run)
    subject.network = torch.nn.Identity()
    assert explain_not_portable(subject) == "a page runs trained models, not baselines"

"""Runs to look into, trained once."""

import pytest
import torch
from turning_words import make_frame

import seqloom


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("explore")


@pytest.fixture(scope="session")
def run(folder):
    """A sentiment model that knows turning words."""
    torch.manual_seed(0)
    data = folder / "turns.csv"
    make_frame().write_csv(data)
    settings = dict(model="gru", hidden=24, embedding=16, steps=220, lr=1e-2, dropout=0.0, readout="last")
    return seqloom.train(str(data), out=folder / "turns", device="cpu", validate_every=220, **settings)

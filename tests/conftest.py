"""Use one thread per test: the layers are small, and tests run two at a time."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Do not touch the folders of the user who runs the tests."""
    os.environ["SEQLOOM_STATE"] = str(tmp_path_factory.mktemp("state"))
    os.environ["SEQLOOM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))

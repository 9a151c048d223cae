"""Small runs, and a client of an application that serves them. Without the extra `serve` there is nothing to test."""

from importlib.util import find_spec

import pytest

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "websockets", "httpx2")
collect_ignore_glob = [] if all(map(find_spec, PACKAGES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    from small_runs import train_runs

    return train_runs(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def site(folder):
    from small_runs import open_site

    opened = open_site([folder / name for name in ("cups", "pulses", "level", "verse")])
    with opened.client:
        yield opened


@pytest.fixture
def client(site):
    return site.client

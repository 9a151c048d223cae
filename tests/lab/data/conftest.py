"""Give every test a separate cache."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))

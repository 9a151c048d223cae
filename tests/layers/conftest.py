import pytest

from seqloom.layers.recurrent.layer import Recurrent


@pytest.fixture
def ran(monkeypatch):
    """Return a list that grows with every call of the layer's `run_with`."""
    calls, run = [], Recurrent.run_with
    monkeypatch.setattr(Recurrent, "run_with", lambda *args, **kw: calls.append(1) or run(*args, **kw))
    return calls

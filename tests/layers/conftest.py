import pytest

from seqloom.layers.recurrent import layer as module
from seqloom.layers.recurrent.layer import Recurrent


@pytest.fixture
def ran(monkeypatch):
    """Return a list that grows with every call of the layer that the engine's step does not run."""
    calls, run, plan = [], Recurrent.run_with, module.try_plan

    def try_plan(*args):
        result = plan(*args)
        calls.extend([] if result is None else [1])
        return result

    monkeypatch.setattr(Recurrent, "run_with", lambda *args, **kw: calls.append(1) or run(*args, **kw))
    monkeypatch.setattr(module, "try_plan", try_plan)
    return calls

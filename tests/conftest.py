"""Use one thread per test: the layers are small, and tests run two at a time. Poison memory that nothing wrote."""

import gc
import logging
import os
from collections import Counter

import pytest
import torch

os.environ.setdefault("SEQLOOM_POISON", "1")  # read when seqloom is imported: see core/memory.py
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start: two tests run at a time

import seqloom.cells  # noqa: F401  (fills the registry)
from seqloom.core.cell import Cell
from warm_python import WarmPython

# Pytest adds handlers to loggers that do not propagate. With one on this logger torch writes down every tensor that it
# traces, which takes a quarter of the time.
logging.getLogger("torch.__trace").propagate = True

# `make test` runs a test of "every cell" for these, which cover every structure: one state and several, states of other
# widths, one product and several in sequence, row sums, kernels written by hand. Other cells have the marker `long`
# there, unless the test is marked `every_cell`.
REPRESENTATIVES = frozenset(
    {
        *("attn_rnn", "gru", "indrnn", "ln_gru", "ln_lstm", "lstm", "min_gru", "min_lstm", "ntm", "ode_gru", "rnn"),
        *("rnn_attention", "t_lstm"),
    }
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Do not touch the folders of the user who runs the tests."""
    os.environ["SEQLOOM_STATE"] = str(tmp_path_factory.mktemp("state"))
    os.environ["SEQLOOM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks():
    """Do not wait until a disk has stored a file: no test turns the machine off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # fails for the same descriptors
        yield


@pytest.fixture(scope="session")
def warm_python():
    """Return what runs code in a new process that need not import torch first."""
    server = WarmPython()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def free_and_refill(tensors):
    """Free the memory of tensors and bring their values back elsewhere, as FSDP does; return what lies there now."""
    values = [t.detach().clone() for t in tensors]
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
    sizes = {key: storage.nbytes() for key, storage in storages.items()}
    for storage in storages.values():
        storage.resize_(0)
    # as many large numbers of each size as the allocator has free pieces, where stale addresses would read
    litter = [torch.full((size // 4,), 1e38, device=tensors[0].device) for size in sizes.values() for _ in range(8)]
    for key, storage in storages.items():
        storage.resize_(sizes[key])
    with torch.no_grad():
        for t, value in zip(tensors, values, strict=True):
            t.data.copy_(value)
    return litter


@pytest.fixture(scope="module")
def move_weights():
    """Return a function that moves the memory of weights; stale addresses then read large numbers."""
    alive = []
    return lambda tensors: alive.append(free_and_refill(list(tensors)))


def pytest_collection_modifyitems(config, items):
    seen = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None:
            key = item.nodeid.partition("[")[0]
            if seen[key] % sample.args[0]:
                item.add_marker(pytest.mark.long)
            seen[key] += 1
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if _is_of_other_cell(item) and not item.get_closest_marker("every_cell"):
            item.add_marker(pytest.mark.long)
    if hasattr(config, "workerinput"):  # a process of pytest-xdist, which gets whole files
        _put_long_files_first(items)
    if config.option.markexpr == "gpu":  # make test-gpu; `-m "gpu and long"` runs the other cells
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)


def pytest_collection_finish():
    """Leave what the tests share, torch's modules and the tests themselves, out of every later collection."""
    gc.collect()
    gc.freeze()


def _put_long_files_first(items):
    """Sort tests by how long their file takes, so that no process is left with a long one at the end."""
    slow = Counter()
    for item in items:
        if not item.get_closest_marker("long"):
            slow[item.path] += bool(item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def _is_of_other_cell(item):
    """Return whether a parameter of the test is a cell of the package that is not a representative."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = [v.name if isinstance(v, type) and issubclass(v, Cell) else v for v in values]
    names = [name.removeprefix("bi_") for name in names if isinstance(name, str)]
    return any(name in Cell.registry and name not in REPRESENTATIVES for name in names)

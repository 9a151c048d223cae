"""Memory that nothing wrote holds values that fail a test: the switch SEQLOOM_POISON, which tests/conftest.py sets."""

import os
import re
from pathlib import Path

import pytest
import torch

import seqloom
from seqloom.core import memory
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.cpu.kept_memory import LEAST_BYTES, kept_memory

PACKAGE = Path(seqloom.__file__).parent
TORCHS_OWN = {
    "kernels/cpu/bound_step.py": "names functions of torch's C interface",
    "kernels/cpu/kept_memory.py": "poisons the pieces that it hands out",
    "kernels/cuda/runtime/launch.py": "a tensor that creates the device's context",
    "kernels/op.py": "shapes for torch.compile, without memory",
    "kernels/compiled/run.py": "a tensor without memory that takes that of another",
}


def test_new_memory_is_poisoned_in_every_type():
    like = torch.zeros(2, 3)
    for t in (memory.empty(2, 3), memory.empty_like(like), memory.new_empty(like, 2, 3)):
        assert t.shape == (2, 3) and t.isnan().all()
    assert memory.empty(4, dtype=torch.bfloat16).isnan().all()
    assert memory.empty(4, dtype=torch.int64).eq(torch.iinfo(torch.int64).max).all()
    assert memory.empty(4, dtype=torch.uint8).eq(255).all()
    assert memory.empty(4, device="meta").is_meta


def test_memory_that_is_kept_is_poisoned_when_it_is_used_again():
    numbers = LEAST_BYTES // 4 + 1
    first = kept_memory.allocate(torch.zeros(1), numbers).zero_()
    place = first.data_ptr()
    del first
    again = kept_memory.allocate(torch.zeros(1), numbers)
    assert again.data_ptr() == place and again.isnan().all()


def test_a_kernel_that_leaves_a_step_unwritten_gives_nan():
    def run(cell, job):
        y, last = loop.run(cell, job)
        room = memory.empty_like(y)
        room[:, :-1] = y[:, :-1]
        return room, last

    cell, x = seqloom.GRUCell(3, 4), torch.randn(2, 5, 3)
    y, _ = run(cell, ScanJob(x, cell.start(x)))
    assert y[:, -1].isnan().all() and not y[:, :-1].isnan().any()


def test_kernels_allocate_through_one_module():
    allocates = re.compile(r"torch\.empty|\.new_empty\(|empty_strided")
    users = {
        str(file.relative_to(PACKAGE))
        for file in (PACKAGE / "kernels").rglob("*.py")
        if allocates.search(file.read_text())
    }
    assert users == set(TORCHS_OWN)


@pytest.mark.slow
def test_without_the_switch_the_functions_are_torchs_own(warm_python, tmp_path):
    code = "import torch; from seqloom.core import memory; print(memory.empty is torch.empty, memory.IS_POISONED)"
    env = {name: value for name, value in os.environ.items() if name != "SEQLOOM_POISON"}
    result = warm_python.run(code, cwd=tmp_path, env=env)
    assert result.stdout.split() == ["True", "False"]

"""Plans on disk: another process loads them, and whatever does not fit is built again."""

import hashlib
import importlib.util
import json
import os
import sys
import warnings

import pytest
import torch

from seqloom.compiler import compile as compiling
from seqloom.compiler import fingerprint, storage
from seqloom.compiler.evaluation import Evaluator
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import UnfitError, find_operator
from seqloom.core.cache import DIGEST, sign
from seqloom.core.job import ScanJob
from seqloom.core.state import read_secret
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel, stages
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

HELPER = "def mix(new, h):\n    return 0.25 * new + 0.75 * h\n"
SOURCE = """
import torch
from torch import nn
import helper_of_a_test
from seqloom.core.cell import Cell

SCALE = 1.5


class Mine(Cell):
    beta = 1.0

    def __init__(self, alpha=0.5):
        super().__init__(3, 4)
        self.alpha = alpha
        self.W, self.U = nn.Linear(3, 4), nn.Linear(4, 4)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = helper_of_a_test.mix(self.alpha * self.beta * SCALE * torch.tanh(x + self.U(state[0])), state[0])
        return h, (h,)
"""


def load(folder, name="cell_of_a_test"):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, monkeypatch, forget):
    """Return a folder with the source of a cell; plans are kept in its folder `cache`."""
    (tmp_path / "helper_of_a_test.py").write_text(HELPER)
    (tmp_path / "cell_of_a_test.py").write_text(SOURCE)
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("cell_of_a_test", "helper_of_a_test"):
        sys.modules.pop(name, None)


@pytest.fixture
def traces(monkeypatch):
    """Return a list that grows with every trace."""
    calls, trace = [], compiling.trace
    monkeypatch.setattr(compiling, "trace", lambda *a: (calls.append(1), trace(*a))[1])
    return calls


def start_again(folder, forget):
    """Import the cell as a new process would."""
    forget()
    load(folder, "helper_of_a_test")
    return load(folder).Mine


def check(cell):
    """The kernel runs and gives the results of the loop."""
    x = torch.randn(2, 4, 3)
    job = ScanJob(x, cell.start(x))
    assert kernel.why_not(cell, job) is None
    torch.testing.assert_close(kernel.run(cell, job)[0], loop.run(cell, job)[0])


def find_file(folder):
    (file,) = (folder / "cache" / "cells").glob("*.plan")
    return file


def write_signed(file, content):
    """Write a file as somebody who has the user's secret would."""
    file.write_bytes(sign(read_secret(), file, content) + content)


def rewrite(file, change):
    """Change the stored data and sign it."""
    data = json.loads(file.read_bytes()[DIGEST:])
    change(data)
    write_signed(file, json.dumps(data).encode())


def test_a_stored_plan_needs_no_trace(folder, forget, traces):
    check(start_again(folder, forget)())
    assert len(traces) == 1 and find_file(folder).exists()
    check(start_again(folder, forget)())
    assert len(traces) == 1


def test_another_process_needs_no_trace(folder, forget, warm_python):
    check(start_again(folder, forget)())
    code = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from seqloom.compiler import compile
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled import kernel
from cell_of_a_test import Mine
def trace(*_): raise AssertionError("traced")
compile.trace = trace
x = torch.randn(2, 4, 3)
reason = kernel.why_not(Mine(), ScanJob(x, Mine().start(x)))
assert reason is None, reason
"""
    done = warm_python.run(code, str(folder), cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("cell_of_a_test.py", "torch.tanh", "torch.sigmoid"),
        ("helper_of_a_test.py", "0.25 * new", "0.35 * new"),
        ("cell_of_a_test.py", "SCALE = 1.5", "SCALE = 2.5"),
    ],
)
def test_a_changed_source_file_is_traced_again(folder, forget, traces, file, old, new):
    check(start_again(folder, forget)())
    (folder / file).write_text((folder / file).read_text().replace(old, new))
    check(start_again(folder, forget)())
    assert len(traces) == 2


@pytest.mark.parametrize("change", ["setting", "class", "global", "function"])
def test_what_a_process_changes_before_its_first_call_counts(folder, forget, traces, change):
    check(start_again(folder, forget)())
    kind = start_again(folder, forget)
    if change == "class":
        kind.beta = 3.0
    if change == "global":
        sys.modules["cell_of_a_test"].SCALE = -1.0
    if change == "function":
        sys.modules["helper_of_a_test"].mix = lambda new, _: new
    check(kind(alpha=0.9) if change == "setting" else kind())
    assert len(traces) == 2


def test_a_class_that_a_function_defined_is_not_stored(folder, forget):
    kind = start_again(folder, forget)

    def define(alpha):
        class Inner(kind):
            def step(self, x, state):
                h = torch.tanh(alpha * x + self.U(state[0]))
                return h, (h,)

        return Inner

    for alpha in (0.5, 2.0):
        cell = define(alpha)()
        assert fingerprint.describe(cell) is None
        check(cell)
        forget()


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "not JSON", "no plan", "a checksum without the secret"])
def test_a_damaged_file_is_built_again_with_one_warning(folder, forget, traces, damage):
    check(start_again(folder, forget)())
    file = find_file(folder)
    whole = file.read_bytes()
    if damage == "no plan":
        rewrite(file, lambda data: data.pop("plan"))
    else:
        write_signed(file, b"{")
        file.write_bytes(
            {
                "a bit": whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
                "cut": whole[: len(whole) // 2],
                "empty": b"",
                "not JSON": file.read_bytes(),
                "a checksum without the secret": hashlib.sha256(whole[DIGEST:]).digest() + whole[DIGEST:],
            }[damage]
        )
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="building it again") as messages:
        check(kind())
    assert len(messages) == 1 and len(traces) == 2
    check(start_again(folder, forget)())
    assert len(traces) == 2


def test_a_plan_of_another_version_is_not_read(folder, forget, traces, monkeypatch):
    check(start_again(folder, forget)())
    monkeypatch.setattr(storage, "digest_compiler", lambda: "another version")
    check(start_again(folder, forget)())
    assert len(traces) == 2


def test_a_folder_that_cannot_be_written_gives_one_warning(folder, forget, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("SEQLOOM_CACHE", str(folder / "file"))
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="is not used: it is not a folder") as messages:
        check(kind())
    assert len(messages) == 1 and "set SEQLOOM_CACHE" in str(messages[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(kind())


def find_nest(data):
    return next(p for p in data["plan"]["scans"][0]["parts"] if p.get("body"))


def find_product(data):
    return next(p for p in data["plan"]["scans"][0]["parts"] if "product" in p)["product"]


def outside(data):
    find_nest(data)["stores"][0][0][1] += 1000


def before_the_start(data):
    find_nest(data)["stores"][0][0][1] = -1


def no_such_buffer(data):
    find_nest(data)["stores"][0][0][0] = 99


def negative_buffer(data):
    find_nest(data)["stores"][0][0][0] = -1


def long_loop(data):
    find_nest(data)["sizes"][0] *= 1000


def unknown_instruction(data):
    find_nest(data)["body"][0][0] = "jump"


def unknown_register(data):
    find_nest(data)["body"][0][2] = [{"register": 99}] * len(find_nest(data)["body"][0][2])


def large_product(data):
    find_product(data)[5] = 1000


def no_such_source(data):
    find_product(data)[0] = 99


def negative_source(data):
    find_product(data)[0] = -1


def unknown_operator(data):
    data["plan"]["calls"][0][1] = "set_.source_Storage"


def unknown_overload(data):
    data["plan"]["calls"][0][1] = "add.__class__"


def large_buffer(data):
    data["plan"]["scans"][0]["buffers"][0][2] = -5


def too_few_memories(data):
    data["plan"]["scans"][0]["memory"].pop()


def integer_as_float(data):
    data["plan"]["scans"][0]["buffers"][0][2] = float(data["plan"]["scans"][0]["buffers"][0][2])


def huge_number(data):
    find_nest(data)["stores"][0][0][2] = 2**70


def circle(data):
    call = data["plan"]["calls"][0]
    call[2][0] = {"node": call[0]}


def other_device(data):
    data["plan"]["calls"][0][3] = [["device", "meta"]]


def in_place(data):
    data["plan"]["calls"][0][1] = "mul.out"


def write_to_the_input(data):
    scan = data["plan"]["scans"][0]
    to = find_nest(data)["stores"][0][0]
    to[0] = next(i for i, m in enumerate(scan["memory"]) if m[0] == "value")


def long_state(data):
    for scan in data["plan"]["scans"]:
        for buffer, memory in zip(scan["buffers"], scan["memory"], strict=True):
            if memory[0] in ("state", "gradient"):
                buffer[2] = 400


def no_such_weight(data):
    data["plan"]["weights"] = {"step.__globals__": data["plan"]["values"][0][0]}


def no_such_state(data):
    next(m for m in data["plan"]["scans"][0]["memory"] if m[0] == "state")[2] = 7


FORGED = [outside, before_the_start, no_such_buffer, negative_buffer, long_loop, unknown_instruction, unknown_register,
          large_product, no_such_source, negative_source, unknown_operator, unknown_overload, large_buffer,
          too_few_memories, integer_as_float, huge_number, circle, other_device, in_place, write_to_the_input,
          long_state, no_such_weight, no_such_state]  # fmt: skip


@pytest.mark.parametrize("forge", FORGED)
def test_a_plan_that_reaches_outside_of_its_memory_is_never_run(folder, forget, traces, forge):
    check(start_again(folder, forget)())
    rewrite(find_file(folder), forge)
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="building it again"):
        check(kind())
    assert len(traces) == 2


def other_constant(data):
    find_nest(data)["body"].append(["mul", 99, [{"register": find_nest(data)["body"][-1][1]}, 1.5]])
    find_nest(data)["stores"][0][1] = {"register": 99}


def lost_result(data):
    del data["plan"]["results"]["dx"]
    data["plan"]["results"]["y"] = 10**6


def short_value(data):
    for value in data["plan"]["values"]:
        value[2] = [1, *value[2][1:-1], 3] if len(value[2]) > 1 else value[2]


@pytest.mark.parametrize("forge", [other_constant, lost_result, short_value])
def test_a_plan_that_is_valid_and_wrong_is_traced_again(folder, forget, traces, forge):
    cell = start_again(folder, forget)()
    check(cell)
    rewrite(find_file(folder), forge)
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="building it again") as messages:
        check(kind())
    assert len(messages) == 1 and len(traces) == 2
    check(start_again(folder, forget)())
    assert len(traces) == 2  # it was overwritten


def test_a_program_whose_buffers_are_too_long_for_a_call_is_refused_by_the_engine_and_traced_again(
    folder, forget, traces, monkeypatch
):
    check(start_again(folder, forget)())
    rewrite(find_file(folder), long_state)
    monkeypatch.setattr(compiling, "check_sizes", lambda *_: None)  # what checks the sizes before the engine
    monkeypatch.setattr(stages, "_check_length", lambda *_: None)
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="a buffer is shorter than a program needs"):
        check(kind())
    assert len(traces) == 2


def test_a_call_that_a_stored_plan_does_not_fit_is_traced_again(folder, forget, traces, monkeypatch):
    check(start_again(folder, forget)())
    cell = start_again(folder, forget)()
    check(cell)
    calls, run_program = [], kernel.run_trusted

    def refuse_once(*args):
        calls.append(1)
        if len(calls) == 1:
            raise UnfitError("too short")
        run_program(*args)

    monkeypatch.setattr(kernel, "run_trusted", refuse_once)
    with pytest.warns(UserWarning, match=r"does not fit \(UnfitError: too short\); building it again"):
        check(cell)
    assert len(traces) == 2


def test_a_stored_check_of_another_plan_does_not_count(folder, forget, traces):
    check(start_again(folder, forget)())
    (checks,) = (folder / "cache" / "cells").glob("*.checks")
    content = checks.read_bytes()[DIGEST:]
    rewrite(find_file(folder), other_constant)
    checks.write_bytes(b"")
    write_signed(checks, content)  # of the plan that was there
    kind = start_again(folder, forget)
    with pytest.warns(UserWarning, match="differs from the loop's"):
        check(kind())
    assert len(traces) == 2


def test_an_operator_with_side_effects_is_refused():
    with pytest.raises(ValueError, match="not an operator without side effects"):
        find_operator("set_.source_Storage")


def test_a_refusal_is_not_stored(folder, forget, monkeypatch):
    def refuse(*_):
        raise UnsupportedError("no")

    monkeypatch.setattr(compiling, "trace", refuse)
    cell = start_again(folder, forget)()
    x = torch.randn(2, 4, 3)
    assert kernel.why_not(cell, ScanJob(x, cell.start(x))) == "no"
    assert not (folder / "cache").exists()


def test_a_stored_plan_equals_the_one_that_was_traced(folder, forget):
    cell = start_again(folder, forget)()
    x = torch.randn(2, 4, 3)
    first = compiling.compile_cell(cell, ScanJob(x, cell.start(x)))
    forget()
    second = compiling.compile_cell(cell, ScanJob(x, cell.start(x)))
    assert first is not second
    for field in ("values", "inputs", "weights", "results", "after"):
        assert getattr(first, field) == getattr(second, field)
    assert [vars(a) for a in (first.infer, first.train, first.reverse)] == [
        vars(b) for b in (second.infer, second.train, second.reverse)
    ]
    assert Evaluator(second).needs == Evaluator(first).needs

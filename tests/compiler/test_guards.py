"""A compiled cell follows every value that its step reads, in this process and in the plans on disk."""
# ruff: noqa: E501  # a line of the tables is a whole kind

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from comparison import make_job, run_auto, why_not

from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

SOURCE = """
import collections, contextvars, dataclasses, datetime, enum, functools, itertools, logging, math, os, random, time
import threading, types, uuid, weakref
import numpy as np
import torch
import package_of_a_test.settings
from torch import nn
from torch.nn import functional as F
import comparison

class Base(comparison.Base):  # its attributes may be replaced
    project = comparison.Cell.project  # no product of the input, which would double the time of a trace

    def __init__(self):
        super().__init__(4, 4)

    def new(self, x, h):
        return self.helper(torch.tanh(x + h), h)

    def helper(self, new, h):
        return self.alpha * new + (1 - self.alpha) * h

tanh, softmax, linear, forward = torch.tanh, F.softmax, F.linear, nn.Linear.forward
sigmoid, mul = torch.Tensor.sigmoid, torch.Tensor.__mul__
{definitions}

class Mine(Base):
    beta = 0.5

    def new(self, x, h):
        new = super().new(x, h)
        {body}
"""


class Kind(NamedTuple):
    """A value that a step reads: how it is defined, read and changed.

    Attributes:
        definitions: Global code of the cell's module.
        read: What the step multiplies its result with; or, with "return", the step's last line.
        change: A statement that sets the value, `{}`; `cell` is the cell.
        values: The first value and another one.
    """

    definitions: str
    read: str
    change: str
    values: tuple[str, str] = ("0.5", "0.25")


CONFIG = "class Config:\n    decay = 0.5"
HOLDER = "class Holder:\n    factor = 0.5\n    def scale(self, h): return self.factor * h\nHOLDER = Holder()"
SLOTS = "class Slots:\n    __slots__ = ('__factor',)\n    def set(self, v): self.__factor = v\n    def get(self): return self.__factor\nSLOTS = Slots()"
CLOSURE = "def build(factor):\n    def read(): return factor\n    def change(v):\n        nonlocal factor\n        factor = v\n    return read, change\nread, change = build(0.5)"
WRAPPED = (
    CLOSURE
    + "\ndef wrap(f):\n    @functools.wraps(f)\n    def inner(h): return read() * f(h)\n    return inner\n@wrap\ndef scale(h): return h"
)
DESCRIPTOR = (
    "class Field:\n    value = 0.5\n    def __get__(self, *_): return self.value\nclass Config:\n    decay = Field()"
)
DATACLASS = "@dataclasses.dataclass\nclass Config:\n    decay: float = 0.5\nCONFIG = Config()"
META = "class Meta(type):\n    decay = 0.5\nclass Config(metaclass=Meta): pass"
SETTINGS = "package_of_a_test.settings"

KINDS = {
    "an attribute of the cell": Kind("", "self.alpha", "cell.alpha = {}"),
    "an attribute of the cell's class": Kind("", "self.beta", "Mine.beta = {}"),
    "an attribute of a base of the cell's class": Kind("Base.gamma = 0.5", "self.gamma", "Base.gamma = {}"),
    "a setting of a submodule": Kind("", "self.norm.eps", "cell.norm.eps = {}"),
    "a list of the cell": Kind("", "self.many[0]", "cell.many = [{}]"),
    "a property of a module of its own class": Kind(
        "class Lazy(types.ModuleType):\n    factor = 0.5\n    value = property(lambda self: Lazy.factor)\nLAZY = Lazy('lazy')",
        "LAZY.value",
        "Lazy.factor = {}",
    ),
    "an attribute of the class of a module": Kind(
        "class Lazy(types.ModuleType):\n    factor = 0.5\nLAZY = Lazy('lazy')", "LAZY.factor", "Lazy.factor = {}"
    ),
    "an element of a list": Kind("MANY = [0.5]", "MANY[0]", "MANY[0] = {}"),
    "a value in a nested dict": Kind("NESTED = {'a': [{'b': 0.5}]}", "NESTED['a'][0]['b']", "NESTED['a'][0]['b'] = {}"),
    "a deque": Kind("MANY = collections.deque([0.5])", "MANY[0]", "MANY[0] = {}"),
    "the default of a dict": Kind(
        "TABLE = collections.defaultdict(lambda: 0.5)", "TABLE.copy()['a']", "TABLE.default_factory = lambda: {}"
    ),
    "a bytearray": Kind("BYTES = bytearray([1])", "BYTES[0]", "BYTES[0] = {}", ("1", "2")),
    "a NumPy array": Kind("ARRAY = np.array([0.5])", "float(ARRAY[0])", "ARRAY[0] = {}"),
    "a method of a dict": Kind("TABLE = {'a': 0.5}\nread = TABLE.get", "read('a')", "TABLE['a'] = {}"),
    "a view of a dict": Kind(
        "TABLE = {'a': 0.5}\nVIEW = types.MappingProxyType(TABLE)", "VIEW['a']", "TABLE['a'] = {}"
    ),
    "an attribute of a dict": Kind("class T(dict): pass\nTABLE = T()", "TABLE.factor", "TABLE.factor = {}"),
    "a global number": Kind("SCALE = 0.5", "SCALE", "globals()['SCALE'] = {}"),
    "a name that hides a built-in one": Kind("", "max(0.1, 0.5)", "globals()['max'] = {}", ("max", "min")),
    "the type of a number": Kind("", "(0.5 if self.flag is True else 0.25)", "cell.flag = {}", ("True", "1")),
    "the sign of zero": Kind("", "math.copysign(0.5, self.zero)", "cell.zero = {}", ("0.0", "-0.0")),
    "an attribute of a class": Kind(CONFIG, "Config.decay", "Config.decay = {}"),
    "an attribute of a base": Kind(CONFIG + "\nclass Mild(Config): pass", "Mild.decay", "Config.decay = {}"),
    "the bases of a class": Kind(
        "class A: decay = 0.5\nclass B: decay = 0.25\nclass Mild(A): pass",
        "Mild.decay",
        "Mild.__bases__ = ({},)",
        ("A", "B"),
    ),
    "an attribute of a metaclass": Kind(META, "Config.decay", "Meta.decay = {}"),
    "a class under another name": Kind(CONFIG + "\ndef read(c): return c.decay", "read(Config)", "Config.decay = {}"),
    "a computed name of a class": Kind(CONFIG, "getattr(Config, 'de' + 'cay')", "Config.decay = {}"),
    "a class inside a class": Kind(
        f"class Outer:\n    {CONFIG.replace('    ', '        ')}", "Outer.Config.decay", "Outer.Config.decay = {}"
    ),
    "a descriptor's attribute": Kind(DESCRIPTOR, "Config.decay", "vars(Config)['decay'].value = {}"),
    "a data class": Kind(DATACLASS, "CONFIG.decay", "CONFIG.decay = {}"),
    "a named tuple": Kind(
        "Pair = collections.namedtuple('Pair', 'a b')\nPAIR = Pair(0.5, 0)", "PAIR.a", "globals()['PAIR'] = Pair({}, 0)"
    ),
    "an enum's member": Kind("class Rate(enum.Enum):\n    SLOW = 0.5", "Rate.SLOW.value", "Rate.SLOW._value_ = {}"),
    "a simple namespace": Kind("SPACE = types.SimpleNamespace(a=0.5)", "SPACE.a", "SPACE.a = {}"),
    "an attribute of an object": Kind(HOLDER, "HOLDER.factor", "HOLDER.factor = {}"),
    "a class attribute of an object": Kind(HOLDER, "HOLDER.factor", "Holder.factor = {}"),
    "a class attribute of an object of the cell": Kind(
        HOLDER, "self.held.factor", "cell.held = HOLDER; Holder.factor = {}"
    ),
    "an object that refers to itself": Kind(HOLDER + "\nHOLDER.me = HOLDER", "HOLDER.me.factor", "HOLDER.factor = {}"),
    "a private slot": Kind(SLOTS, "SLOTS.get()", "SLOTS.set({})"),
    "a weak reference": Kind(HOLDER + "\nREF = weakref.ref(HOLDER)", "REF().factor", "HOLDER.factor = {}"),
    "a constant of a module": Kind("", f"{SETTINGS}.SCALE", f"{SETTINGS}.SCALE = {{}}"),
    "an import inside the step": Kind(
        "def read():\n    from package_of_a_test.settings import SCALE\n    return SCALE",
        "read()",
        f"{SETTINGS}.SCALE = {{}}",
    ),
    "a module under another name": Kind("def read(m): return m.SCALE", f"read({SETTINGS})", f"{SETTINGS}.SCALE = {{}}"),
    "a module of the cell": Kind("", "self.m.SCALE", f"cell.m = {SETTINGS}; {SETTINGS}.SCALE = {{}}"),
    "a computed name of a module": Kind("", f"getattr({SETTINGS}, 'SC' + 'ALE')", f"{SETTINGS}.SCALE = {{}}"),
    "a module's function": Kind("", f"{SETTINGS}.read()", f"{SETTINGS}.SCALE = {{}}"),
    "a variable of the environment": Kind("", "float(os.environ['DECAY'])", "os.environ['DECAY'] = str({})"),
    "getenv": Kind("", "float(os.getenv('DECAY', '1'))", "os.environ['DECAY'] = str({})"),
    "a variable that is not set": Kind(
        "", "(0.5 if 'DECAY' in os.environ else 0.25)", "os.environ.{}", ("pop('DECAY', 0)", "update(DECAY='1')")
    ),
    "all variables": Kind("", "float({**os.environ}['DECAY'])", "os.environ['DECAY'] = str({})"),
    "an attribute of a function": Kind("def f(): pass\nf.scale = 0.5", "f.scale", "f.scale = {}"),
    "a context variable": Kind("VAR = contextvars.ContextVar('v', default=1.0)", "VAR.get()", "VAR.set({})"),
    "a context variable of the cell": Kind(
        "VAR = contextvars.ContextVar('v')", "self.v.get()", "cell.v = VAR; VAR.set({})"
    ),
    "a closure": Kind(CLOSURE, "read()", "change({})"),
    "a closure of a decorator": Kind(WRAPPED, "return scale(new)", "change({})"),
    "a default value": Kind("def f(a=[0.5]): return a[0]", "f()", "f.__defaults__[0][0] = {}"),
    "the defaults of a function": Kind("def f(a=0.5): return a", "f()", "f.__defaults__ = ({},)"),
    "a keyword's default": Kind("def f(*, a=0.5): return a", "f()", "f.__kwdefaults__['a'] = {}"),
    "a function": Kind(
        "def f(): return 0.5\ndef g(): return 0.25\nuse = f", "use()", "globals()['use'] = {}", ("f", "g")
    ),
    "the code of a function": Kind(
        "def f(): return 0.5\ndef g(): return 0.25\ndef use(): pass", "use()", "use.__code__ = {}.__code__", ("f", "g")
    ),
    "the code of a method": Kind(
        "def f(self, a, b): return 0.5 * a\ndef g(self, a, b): return 0.25 * a",
        "1.0",
        "Base.helper.__code__ = {}.__code__",
        ("f", "g"),
    ),
    "a partial function": Kind(
        HOLDER + "\ndef f(o): return o.factor\nread = functools.partial(f, HOLDER)", "read()", "HOLDER.factor = {}"
    ),
    "a bound method": Kind(HOLDER + "\nscale = HOLDER.scale", "return scale(new)", "HOLDER.factor = {}"),
    "a method of the cell": Kind("", "1.0", "cell.helper = lambda new, h: {} * new"),
    "a method of the cell's class": Kind(
        "helper = Base.helper", "1.0", "Base.helper = {}", ("helper", "lambda self, new, h: new - h")
    ),
    "a property": Kind(
        HOLDER + "\nHolder.half = property(lambda self: 0.5 * self.factor)", "HOLDER.half", "HOLDER.factor = {}"
    ),
    "the level of a logger": Kind(
        "log = logging.getLogger('of a test')",
        "(0.5 if log.isEnabledFor(10) else 0.25)",
        "log.setLevel({})",
        ("30", "10"),
    ),
    "the default type": Kind(
        "",
        "torch.finfo(torch.get_default_dtype()).eps ** 0.1",
        "torch.set_default_dtype({})",
        ("torch.float32", "torch.float64"),
    ),
    "the type of new tensors": Kind(
        "",
        "torch.finfo(torch.ones(1).dtype).eps ** 0.1",
        "torch.set_default_dtype({})",
        ("torch.float32", "torch.float64"),
    ),
    "a flag of a library": Kind(
        "",
        "(0.5 if torch.backends.cudnn.benchmark else 0.25)",
        "torch.backends.cudnn.benchmark = {}",
        ("False", "True"),
    ),
    "deterministic algorithms": Kind(
        "",
        "(0.5 if torch.are_deterministic_algorithms_enabled() else 0.25)",
        "torch.use_deterministic_algorithms({})",
        ("False", "True"),
    ),
    "the precision of products": Kind(
        "",
        "(0.5 if torch.get_float32_matmul_precision() == 'high' else 0.25)",
        "torch.set_float32_matmul_precision({})",
        ("'highest'", "'high'"),
    ),
    "a replaced operator": Kind("", "return torch.tanh(new)", "torch.tanh = {}", ("tanh", "lambda h: 0.5 * h")),
    "a replaced operator with a computed name": Kind(
        "", "return getattr(torch, self.act)(new)", "cell.act = 'tanh'; torch.tanh = {}", ("tanh", "lambda h: 0.5 * h")
    ),
    "a replaced function": Kind("", "return F.softmax(new, -1)", "F.softmax = {}", ("softmax", "lambda h, _: 0.5 * h")),
    "a replaced function inside a module": Kind(
        "", "self.U(new)", "F.linear = {}", ("linear", "lambda h, w, b: 0.5 * linear(h, w, b)")
    ),
    "a replaced method of a tensor": Kind(
        "", "return new.sigmoid()", "torch.Tensor.sigmoid = {}", ("sigmoid", "lambda h: 0.5 * h")
    ),
    "a replaced operator of a tensor": Kind(
        "", "return new * new", "torch.Tensor.__mul__ = {}", ("mul", "lambda a, b: a + b")
    ),
    "a replaced method of a module": Kind(
        "", "self.U(new)", "nn.Linear.forward = {}", ("forward", "lambda self, h: 0.5 * forward(self, h)")
    ),
}


@pytest.fixture
def make_cell(tmp_path, monkeypatch, forget):
    """Return a function that writes the source of a cell and returns its module; plans are kept in `cache`."""
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("DECAY", raising=False)
    names = "cell_of_a_guard", "package_of_a_test", "package_of_a_test.settings"

    def make(kind, folder=tmp_path):
        (folder / "package_of_a_test").mkdir(parents=True)
        (folder / "package_of_a_test" / "__init__.py").write_text("")
        (folder / "package_of_a_test" / "settings.py").write_text("SCALE = 0.5\ndef read(): return SCALE\n")
        body = kind.read if kind.read.startswith("return ") else f"return ({kind.read}) * new"
        (folder / f"{names[0]}.py").write_text(SOURCE.format(definitions=kind.definitions, body=body))
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module(names[0])

    yield make
    for name in names:
        sys.modules.pop(name, None)


def apply(kind, value, module, cell):
    """Run the statement that changes a value."""
    exec(kind.change.format(value), vars(module) | {"cell": cell, "globals": lambda: vars(module)})


def run_both(cell, job):
    """Return the outputs of the kernel, which must run, and of the loop."""
    assert why_not(cell, job) is None
    return kernel.run(cell, replace(job))[0], loop.run(cell, job)[0]


@pytest.mark.parametrize("name", KINDS)
def test_a_changed_value_takes_effect(name, make_cell):
    kind = KINDS[name]
    module = make_cell(kind)
    cell = module.Mine().double()
    cell.flag, cell.zero = True, 0.0
    job, outputs = make_job(cell), []
    try:
        for value in kind.values:  # the second time, plans of the first value are in memory and on disk
            apply(kind, value, module, cell)
            ours, expected = run_both(cell, job)
            torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
            outputs.append(expected)
    finally:
        apply(kind, kind.values[0], module, cell)
    assert not torch.allclose(*outputs)


REFUSED = {
    "a cached function": ("@functools.lru_cache\ndef f(): return 0.5", "f()", "calls f, whose results"),
    "a cached function of a class": (
        "class C:\n    @staticmethod\n    @functools.cache\n    def f(): return 0.5",
        "C.f()",
        "calls C.f, whose results",
    ),
    "a cached method": ("Base.f = functools.lru_cache(lambda self: 0.5)", "self.f()", "calls <lambda>, whose results"),
    "the time": ("", "(0.5 if time.time() > 0 else 1)", "calls time.time"),
    "the date": ("", "(0.5 if datetime.datetime.now().year > 0 else 1)", "calls datetime.now"),
    "a random number": ("", "(0.5 if random.random() < 2 else 1)", "calls Random.random"),
    "a random number through Python": ("", "(0.5 if random.uniform(0, 1) < 2 else 1)", "calls Random.random"),
    "a random number of NumPy": ("", "(0.5 if np.random.rand() < 2 else 1)", ""),
    "a generator of random numbers": ("RANDOM = random.Random(0)", "(0.5 if RANDOM.random() < 2 else 1)", ""),
    "torch's seed": ("", "(0.5 if torch.initial_seed() else 1)", "calls initial_seed of a random generator"),
    "a universal identifier": ("", "(0.5 if uuid.uuid4() else 1)", "calls posix.urandom"),
    "the number of the process": ("", "(0.5 if os.getpid() else 1)", "calls posix.getpid"),
    "an address": ("", "(0.5 if id(self) else 1)", "calls builtins.id"),
    "a hash": ("", "(0.5 if hash('a') else 1)", "calls builtins.hash"),
    "a file": ("def f():\n    with open(__file__): return 0.5", "f()", "calls io.open"),
    "evaluated text": ("", "eval('0.5')", "calls builtins.eval"),
    "an iterator": (
        "ITERATOR = itertools.cycle([0.5])",
        "next(ITERATOR)",
        "may read from an iterator (itertools.cycle)",
    ),
    "a loop over an iterator": (
        "def f():\n    for v in ITERATOR: return v\nITERATOR = itertools.cycle([0.5])",
        "f()",
        "may read from an iterator (itertools.cycle)",
    ),
    "a generator": ("def g():\n    while True: yield 0.5\nG = g()", "next(G)", "may read from an iterator (generator)"),
    "a thread": (
        "def f():\n    t = threading.Thread(target=int)\n    t.start()\n    return 0.5",
        "f()",
        "calls _thread",
    ),
    "a tensor as a list": ("T = torch.tensor([0.5])", "T.tolist()[0]", "reads numbers out of a tensor by tolist"),
    "a tensor as an array": (
        "T = torch.tensor([0.5])",
        "float(T.numpy()[0])",
        "reads numbers out of a tensor by numpy",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_cannot_be_followed_is_refused(name, make_cell):
    definitions, read, reason = REFUSED[name]
    cell = make_cell(Kind(definitions, read, "")).Mine().double()
    job = make_job(cell)
    assert str(why_not(cell, job)).startswith(f"step {reason}")
    torch.testing.assert_close(run_auto(cell, job)[0], loop.run(cell, job)[0], rtol=0, atol=0)


def test_hooks_of_all_modules_are_called(make_cell):
    cell = make_cell(Kind("", "0.5", "")).Mine().double()
    job = make_job(cell)
    assert why_not(cell, job) is None
    handle = torch.nn.modules.module.register_module_forward_hook(lambda _m, _x, y: 0.5 * y)
    try:
        assert "hooks of all modules" in why_not(cell, job)
        torch.testing.assert_close(run_auto(cell, job)[0], loop.run(cell, job)[0], rtol=0, atol=0)
    finally:
        handle.remove()
    assert why_not(cell, job) is None


def test_a_step_is_not_traced_under_a_mode_that_changes_functions(make_cell):
    class Doubled(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            y = func(*args, **(kwargs or {}))
            return 2 * y if func is torch.tanh else y

    cell = make_cell(Kind("", "0.5", "")).Mine().double()
    job = make_job(cell)
    with Doubled():
        assert "TorchFunctionMode" in why_not(cell, job)
    ours, expected = run_both(cell, job)
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


def list_plans(folder):
    return list((folder / "cache" / "cells").glob("*.plan"))


def test_a_plan_is_kept_if_all_reads_have_a_text(make_cell, tmp_path, forget, monkeypatch):
    module = make_cell(KINDS["an attribute of a class"])
    cell = module.Mine().double()
    job = make_job(cell)
    run_both(cell, job)
    assert len(list_plans(tmp_path)) == 1
    forget()
    monkeypatch.setattr("seqloom.compiler.compile.trace", None)  # would fail
    torch.testing.assert_close(*run_both(cell, job), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["an attribute of an object", "a NumPy array", "a closure", "a partial function"])
def test_a_plan_whose_reads_have_no_text_is_not_kept(name, make_cell, tmp_path):
    cell = make_cell(KINDS[name]).Mine().double()
    run_both(cell, make_job(cell))
    assert list_plans(tmp_path) == []


@pytest.mark.parametrize("name", ["an attribute of a class", "a global number", "a constant of a module"])
def test_an_installed_cell_is_followed(name, make_cell, tmp_path):
    kind = KINDS[name]
    module = make_cell(kind, tmp_path / "site-packages")
    cell = module.Mine().double()
    job, outputs = make_job(cell), []
    for value in kind.values:
        apply(kind, value, module, cell)
        ours, expected = run_both(cell, job)
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
        outputs.append(expected)
    assert not torch.allclose(*outputs) and list_plans(tmp_path)


@pytest.mark.slow
def test_a_sweep_over_processes_gives_the_results_of_the_loop(make_cell, tmp_path, warm_python):
    kind = KINDS["an attribute of a class"]
    make_cell(kind._replace(definitions=f"{kind.definitions}\nBase.project = comparison.Base.project"))
    code = """
import sys, torch
from cell_of_a_guard import Config, Mine
from comparison import make_job, why_not
from seqloom.compiler.compile import compile_cell
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
Config.decay = float(sys.argv[1])
torch.manual_seed(0)
cell = Mine().double()
job = make_job(cell)
assert why_not(cell, job) is None
assert compile_cell(cell, job).projects  # though torch looks up its operators for the first time
ours, expected = kernel.run(cell, job)[0], loop.run(cell, job)[0]
torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)
print(float(ours.sum()))
"""
    folders = [str(tmp_path), os.path.dirname(__file__)]
    path = os.pathsep.join([*folders, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = os.environ | {"PYTHONPATH": path}
    first = subprocess.run([sys.executable, "-c", code, "0.5"], check=True, env=environment, capture_output=True)
    sums = {first.stdout.decode()}
    for decay in ("0.25", "0.125"):
        done = warm_python.run(f"import sys; sys.path[:0] = {folders}{code}", decay, cwd=tmp_path, env=os.environ)
        assert done.returncode == 0, done.stderr
        sums.add(done.stdout)
    assert len(sums) == 3 and len(list_plans(tmp_path)) == 1

"""Changed files and folders of the cache: the results stay those of the loop, and no process crashes.

A file is changed by somebody without the user's secret, or by somebody who has it: then the numbers of a plan are
changed and the file is signed, so that the checks behind the signature are reached, those of the engine too.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import random
import shutil
import sys
import types
import warnings
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import seqloom
from fuzz.mutation import mutate
from fuzz.run_records import STRANGE, list_paths
from seqloom.compiler import compile as compiling
from seqloom.compiler import storage
from seqloom.core import cache as kept
from seqloom.core.cache import DIGEST, sign
from seqloom.core.state import read_secret
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cuda.runtime import nvrtc

SOURCE = """
import torch
from torch import nn

from seqloom.core.cell import Cell


class Plain(Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = 0.3 * torch.tanh(x + self.U(state[0])) + 0.7 * state[0]
        return h, (h,)


class Normed(Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W = nn.Linear(input_size + hidden_size, 2 * hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def initial_state(self, x):
        return (x.new_zeros(x.shape[0], self.hidden_size),) * 2

    def step(self, x, state):
        a, b = self.W(torch.cat([x, state[0]], -1)).chunk(2, -1)
        c = torch.sigmoid(a) * state[1] + self.norm(b)
        h = torch.tanh(c) * c.amax(-1, keepdim=True).clamp(-1.0, 1.0)
        return h, (h, c)


class Matrix(Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.q, self.k = nn.Linear(input_size, hidden_size), nn.Linear(input_size, hidden_size)
        self.decay = nn.Parameter(torch.full((hidden_size, 1), 0.8))

    def initial_state(self, x):
        return (x.new_zeros(x.shape[0], self.hidden_size, self.hidden_size),)

    def output(self, state):
        return state[0].sum(1)

    def step(self, x, state):
        S = self.decay * state[0] + self.k(x).unsqueeze(2) * torch.tanh(x).mean(-1).unsqueeze(1).unsqueeze(2)
        return (S * self.q(x).unsqueeze(2)).sum(1), (S,)
"""
CELLS = ("Plain", "Normed", "Matrix", "peephole_lstm")
SIZES = (-1, 0, 1, 2, 3, 7, 64, 4096, 10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30)
_traces: dict[tuple[str, bool, bool], Any] = {}
FAR = 1e-4  # a larger difference from the loop, as a share of the largest number, is wrong in float64


@cache
def load_cells(work: Path) -> types.ModuleType:
    """Write the cells' source file and import it."""
    file = work / "cells_of_the_fuzzer.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def run_layer(name: str, work: Path, kernel: str, lengths: bool, train: bool) -> list[Tensor]:
    """Return outputs, last states and gradients of a layer with fixed weights on a fixed batch."""
    kind = getattr(load_cells(work), name, name)
    torch.manual_seed(0)
    layer = seqloom.Recurrent(kind, 5, 6, batch_first=True, kernel=kernel, dtype=torch.float64)
    x = torch.randn(4, 9, 5, dtype=torch.float64, requires_grad=train)
    with torch.set_grad_enabled(train):
        y, state = layer(x, lengths=[9, 4, 0, 7] if lengths else None)
    states = state if isinstance(state, tuple) else (state,)
    results = [y, *states]
    if train:
        results += torch.autograd.grad(sum(r.square().sum() for r in results), [x, *layer.parameters()])
    return [r.detach() for r in results]


@cache
def expect(name: str, work: Path, lengths: bool, train: bool) -> list[Tensor]:
    """Return the results of the loop."""
    return run_layer(name, work, "loop", lengths, train)


def forget() -> None:
    """Forget what this process has compiled, so that it reads the cache as a new process does."""
    compiling._plans.clear()
    kernel._prepare.cache_clear()
    storage._discarded.clear()
    kept._warned.clear()


def use(name: str, work: Path, lengths: bool, train: bool) -> tuple[int, bool]:
    """Run a compiled layer and build a kernel, and compare both with what is right.

    Returns:
        How many traces and builds were needed, and whether there was a warning.
    """
    forget()
    trace, built = compiling._trace, []

    def count_trace(*args: Any) -> Any:
        built.append("trace")
        key = (name, lengths, train)
        if key not in _traces:  # the same cell gives the same plan; what is stored and read is what changes
            _traces[key] = trace(*args)
        return _traces[key]

    def compile_source(name: str, text: str, flags: object) -> bytes:
        built.append("kernel")
        return f"machine code of {text}".encode() * 50

    with (
        warnings.catch_warnings(record=True) as messages,
        mock.patch.object(compiling, "_trace", count_trace),
        mock.patch.object(nvrtc, "compile_source", compile_source),
        mock.patch.object(nvrtc, "version", return_value=(13, 0)),
    ):
        warnings.simplefilter("always")
        actual = run_layer(name, work, "compiled", lengths, train)
        code = nvrtc.build("a name", {}, "sm_90", "a text")
    for ours, loop in zip(actual, expect(name, work, lengths, train), strict=True):
        assert ours.shape == loop.shape, (ours.shape, loop.shape)
        difference = float((ours - loop).abs().max()) if loop.numel() else 0.0
        assert difference <= FAR * max(float(loop.abs().max()), 1e-3), f"{name} differs by {difference}"
    assert code == b"machine code of a text" * 50
    return len(built), bool(messages)


def prepare(work: Path) -> None:
    """Fill a cache for every cell. Cases then run in forks: one may crash its process."""
    if not (work / "full").exists():
        os.environ |= {"SEQLOOM_CACHE": f"{work}/cache", "SEQLOOM_STATE": f"{work}/state"}
        for name in CELLS:
            for lengths in (False, True):
                for train in (False, True):
                    for _ in range(2):  # the second process checks the plans of the package
                        use(name, work, lengths, train)
        shutil.copytree(work / "cache", work / "full")
        shutil.copytree(work / "state", work / "full state")


def change_number(draw: random.Random, data: dict[str, Any]) -> None:
    """Change some numbers of a plan: sizes, offsets, indices, shapes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = [p for p in list_paths(data["plan"], ("plan",)) if type(_find(data, p)) in (int, float, bool)]
        path = draw.choice(places)
        value = _find(data, path)
        small = (value + 1, value - 1, 2 * value, -value, value // 2 if isinstance(value, int) else value / 2)
        _set(data, path, draw.choice(small) if draw.random() < 0.5 else draw.choice(SIZES))


def change_shape(draw: random.Random, data: dict[str, Any]) -> None:
    """Remove a part of a plan, copy another one over it, or put a strange value in its place."""
    places = list_paths(data)
    path = draw.choice(places)
    change = draw.randrange(3)
    if change == 0:
        del _find(data, path[:-1])[path[-1]]
    elif change == 1:
        _set(data, path, copy.deepcopy(_find(data, draw.choice(places))))
    else:
        _set(data, path, draw.choice(STRANGE))


def _find(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _set(data: Any, path: tuple[Any, ...], value: object) -> None:
    _find(data, path[:-1])[path[-1]] = value


def write_signed(file: Path, content: bytes) -> None:
    """Write a file of the cache as the user's own process would."""
    file.write_bytes(sign(read_secret(), file, content) + content)


# --- changes ---


def change_bytes(draw: random.Random, cache: Path) -> None:
    file = draw.choice(list_files(cache))
    file.write_bytes(mutate(draw, file.read_bytes()))


def flip_bit(draw: random.Random, cache: Path) -> None:
    file = draw.choice(list_files(cache))
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def truncate(draw: random.Random, cache: Path) -> None:
    file = draw.choice(list_files(cache))
    data = file.read_bytes()
    file.write_bytes(data[: draw.choice((0, 1, DIGEST - 1, DIGEST, draw.randrange(len(data))))])


def swap(draw: random.Random, cache: Path) -> None:
    first, second = draw.sample(list_files(cache), 2)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    if draw.random() < 0.7:
        second.write_bytes(one)


def sign_by_another(draw: random.Random, cache: Path) -> None:
    secret = draw.choice((b"", bytes(32), draw.randbytes(32)))
    for file in list_files(cache):
        content = file.read_bytes()[DIGEST:]
        file.write_bytes(sign(secret, file, content) + content)


def sign_numbers(draw: random.Random, cache: Path) -> None:
    _sign_changed(draw, cache, change_number)


def sign_shape(draw: random.Random, cache: Path) -> None:
    _sign_changed(draw, cache, change_shape)


def _sign_changed(draw: random.Random, cache: Path, change: Any) -> None:
    for file in sorted(cache.glob("cells/*.plan")):  # whichever the case uses
        data = json.loads(file.read_bytes()[DIGEST:])
        change(draw, data)
        write_signed(file, json.dumps(data).encode())


def sign_bytes(draw: random.Random, cache: Path) -> None:
    for file in sorted(cache.glob("cells/*")):
        write_signed(file, mutate(draw, file.read_bytes()[DIGEST:]))


def sign_swapped(draw: random.Random, cache: Path) -> None:
    files = sorted(cache.glob("cells/*.plan"))
    contents = [file.read_bytes()[DIGEST:] for file in files]
    draw.shuffle(contents)
    for file, content in zip(files, contents, strict=True):
        write_signed(file, content)


def open_folder(draw: random.Random, cache: Path) -> None:
    folder = draw.choice((cache, cache / "cells", cache / "kernels"))
    folder.chmod(draw.choice((0o777, 0o1777, 0o770, 0o755, 0o750, 0o701, 0o720, 0o702)))


def link_folder(draw: random.Random, cache: Path) -> None:
    folder = draw.choice((cache, cache / "cells", cache / "kernels"))
    other = cache.with_name("elsewhere")
    folder.rename(other)
    folder.symlink_to(draw.choice((other, cache.with_name("nothing"), Path("/"), other / "cells")))


def replace_folder(draw: random.Random, cache: Path) -> None:
    folder = draw.choice((cache, cache / "cells", cache / "kernels"))
    shutil.rmtree(folder)
    if draw.random() < 0.8:
        folder.write_bytes(b"a file")


def replace_file(draw: random.Random, cache: Path) -> None:
    file = draw.choice(list_files(cache))
    other = cache.with_name("elsewhere")
    file.rename(other)
    change = draw.randrange(6)
    if change == 0:
        file.symlink_to(other)
    elif change == 1:
        file.symlink_to(draw.choice(("/dev/zero", "/dev/full", "/nowhere", "/", ".")))
    elif change == 2:
        file.mkdir()
    elif change == 3:
        os.mkfifo(file)
    elif change == 4:
        os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 1 << 40)  # sparse


def change_secret(draw: random.Random, cache: Path) -> None:
    secret = cache.with_name("state") / "cache.key"
    change = draw.randrange(6)
    if change == 0:
        secret.unlink()
    elif change == 1:
        secret.write_bytes(draw.randbytes(draw.choice((0, 31, 32, 33))))
    elif change == 2:
        secret.chmod(draw.choice((0o644, 0o660, 0o666)))
    elif change == 3:
        secret.rename(cache.with_name("elsewhere"))
        secret.symlink_to(cache.with_name("elsewhere"))
    elif change == 4:
        secret.parent.chmod(0o777)
    else:
        shutil.rmtree(secret.parent)
        secret.parent.write_bytes(b"a file")


def change_owner(draw: random.Random, cache: Path) -> None:
    me = os.geteuid()  # every file and folder then belongs to another user; changing an owner takes rights
    os.geteuid = lambda: me + 1  # type: ignore[assignment]


UNSIGNED = (change_bytes, flip_bit, truncate, swap, sign_by_another, open_folder, link_folder, replace_folder,
            replace_file, change_secret, change_owner)  # fmt: skip
SIGNED = (sign_numbers, sign_shape, sign_bytes, sign_swapped)


def list_files(cache: Path) -> list[Path]:
    """List the files of a cache."""
    return sorted(path for path in cache.glob("*/*") if path.is_file())


def check(draw: random.Random, work: Path) -> str:
    """Change the cache, use it, and return the change and whether the stored plan was used."""
    prepare(work)
    cache, state, euid = work / "cache", work / "state", os.geteuid
    for name in ("cache", "state", "elsewhere"):
        _remove(work / name)
    shutil.copytree(work / "full", cache)
    shutil.copytree(work / "full state", state)
    name, lengths, train = draw.choice(CELLS), draw.random() < 0.5, draw.random() < 0.7
    change = draw.choice(SIGNED if draw.random() < 0.6 else UNSIGNED)
    try:
        change(draw, cache)
        made, is_warned = use(name, work, lengths, train)
        if change in UNSIGNED and made:
            assert is_warned or change in (replace_folder, replace_file, change_secret, link_folder), "no warning"
        if change in (sign_by_another, change_owner):
            assert made == 2 and is_warned
        if change in (sign_numbers, sign_shape) and made:
            assert is_warned or change is sign_shape, "no warning"
        return f"{change.__name__}: {'built again' if made else 'used'}"
    except BaseException as error:
        error.add_note(f"{change.__name__}, {name}, lengths {lengths}, train {train}")
        raise
    finally:
        os.geteuid = euid  # type: ignore[assignment]


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        path.chmod(0o700)
        shutil.rmtree(path)

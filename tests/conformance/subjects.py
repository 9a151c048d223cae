"""What the rows of the conformance suite run on: every kernel by its name, and every public layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import seqloom
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.kernels.registry import ANY, KERNELS, find_kernel
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.registry import list_names, make

ROWS, STEPS, INPUT, HIDDEN = 3, 6, 8, 16
HIDDEN_ON_GPU = 64  # which every GPU kernel can divide
ON_CPU = frozenset({"aten", "compiled", "cpu", "loop", "manual", "parallel", "scan"})  # backends
ON_GPU = frozenset({*ON_CPU - {"cpu"}, "cluster", "cuda", "graph", "grid", "row", "slots", "tiles"})
OF_ANY_CELL = ("gru", "peephole_lstm")  # cells that stand for all in a kernel that runs every cell
WARM_CALLS = 4  # calls of one kind until it is prepared, and on a GPU recorded


class UserCell(Cell, name=""):
    """A user's cell: h' = h + sigmoid(W x + U h) * (tanh(V x) - h)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(2 * hidden_size, input_size) / input_size**0.5)
        self.weight_hh = nn.Parameter(torch.randn(hidden_size, hidden_size) / hidden_size**0.5)

    def project(self, x: Tensor) -> Tensor:
        return x @ self.weight_ih.t()

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        gate, value = x.chunk(2, -1)
        h = h + torch.sigmoid(gate + h @ self.weight_hh.t()) * (torch.tanh(value) - h)
        return h, (h,)


def build_kernel(cell: str, backend: str, device: str) -> nn.Module:
    """Build a layer that runs on one kernel."""
    settings = {"slots": 2} if backend == "slots" else {}
    hidden = HIDDEN if device == "cpu" else HIDDEN_ON_GPU
    return Recurrent(cell, INPUT, hidden, batch_first=True, kernel=backend, **settings)


KERNEL_SUBJECTS = {
    f"{cell}_{kernel.backend}": (cell, kernel)
    for kernel in KERNELS
    for cell in (OF_ANY_CELL if kernel.cell == ANY else (kernel.cell,))
}
LAYER_SUBJECTS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(make, name, INPUT, HIDDEN) for name in list_names()},
    "user_cell": lambda: Recurrent(UserCell, INPUT, HIDDEN, batch_first=True),
    "deep_gru": lambda: seqloom.GRU(INPUT, HIDDEN, num_layers=2, bidirectional=True),  # time first
    "deep_attn_rnn": lambda: seqloom.AttnRNN(INPUT, HIDDEN, num_layers=2, bidirectional=True),
    "lstm_cpu_stack": lambda: seqloom.LSTM(INPUT, HIDDEN, num_layers=2, kernel="cpu"),
}


# Layers that `make test` runs; the others have the marker `long`.
QUICK_LAYERS = frozenset(
    {
        *("attn_rnn", "gru", "indrnn", "ln_lstm", "lstm", "min_lstm", "rnn", "t_lstm", "bi_gru", "bi_attn_rnn"),
        *("tcn", "transformer", "linear_transformer", "linformer", "deltaproduct", "gla", "mamba2", "lru", "rwkv7"),
        *(
            "memory_transformer",
            "hybrid",
            "rnn_then_attention",
            "user_cell",
            "deep_gru",
            "deep_attn_rnn",
            "lstm_cpu_stack",
        ),
    }
)
SLOW_LAYERS = frozenset({"indrnn", "t_lstm", "user_cell"})  # compiled when they are first called
MARKS = {"scan": [pytest.mark.long], "compiled": [pytest.mark.slow]}  # of backends; torch compiles a scan for minutes


def make_subject(device: str, name: str) -> Any:
    """Return a subject on a device as a value of a parameter, with its markers."""
    marks = [pytest.mark.gpu] if device == "cuda" else []
    if name in KERNEL_SUBJECTS:
        marks += MARKS.get(KERNEL_SUBJECTS[name][1].backend, ())
    elif name not in QUICK_LAYERS:
        marks.append(pytest.mark.long)
    elif name in SLOW_LAYERS:
        marks.append(pytest.mark.slow)
    return pytest.param((device, name), marks=marks, id=f"{device}-{name}")


TRAINED_IN_RANKS = ("gru", "lstm", "attn_rnn", "gla")  # by training_ranks.py
CALLED_IN_FORKS = ("gru", "attn_rnn", "lstm_cpu_stack", "gla")  # by forked_calls.py
SUBJECTS = [
    make_subject(device, name)
    for device, backends in (("cpu", ON_CPU), ("cuda", ON_GPU))
    for name in (*KERNEL_SUBJECTS, *LAYER_SUBJECTS)
    if (name in LAYER_SUBJECTS and (device, name) != ("cuda", "lstm_cpu_stack"))
    or (name in KERNEL_SUBJECTS and KERNEL_SUBJECTS[name][1].backend in backends)
]


@dataclass(eq=False)
class Case:
    """A subject that has run often enough to be prepared, with its input.

    Attributes:
        layer: The layer.
        x: Its input, (B, T, D) or (T, B, D).
        move: Frees the memory of tensors and brings their values back elsewhere.
    """

    layer: nn.Module
    x: Tensor
    move: Callable[[list[Tensor]], None]

    @property
    def weights(self) -> list[Tensor]:
        """All parameters."""
        return list(self.layer.parameters())

    def run(self, layer: nn.Module | None = None, x: Tensor | None = None) -> Tensor:
        """Return the outputs."""
        y: Tensor = (layer or self.layer)(self.x if x is None else x)[0]
        return y

    def differentiate(self, y: Tensor, layer: nn.Module | None = None, **settings: bool) -> list[Tensor | None]:
        """Return the gradients of the input and of every weight for a loss of these outputs."""
        leaves = [self.x, *(layer or self.layer).parameters()]
        return list(torch.autograd.grad(find_loss(y), leaves, allow_unused=True, **settings))


def find_loss(y: Tensor) -> Tensor:
    """Return a number whose gradient depends on the outputs, and is not 0 for normalised ones."""
    weight = torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)
    return (weight * y.float().sin()).sum()


def open_case(device: str, name: str, move: Callable[[list[Tensor]], None]) -> Case:
    """Build a subject and call it until its calls are prepared; skip one that cannot run on this device."""
    dtype = torch.float32
    if name in KERNEL_SUBJECTS:
        cell, kernel = KERNEL_SUBJECTS[name]
        layer = build_kernel(cell, kernel.backend, device).to(device)
        dtype = _find_type(layer, kernel.name, device)
        layer = layer.to(dtype)
    else:
        layer = LAYER_SUBJECTS[name]().to(device)
    is_batch_first = getattr(layer, "batch_first", True)
    shape = (ROWS, STEPS, INPUT) if is_batch_first else (STEPS, ROWS, INPUT)
    case = Case(layer, torch.randn(shape, device=device, dtype=dtype).requires_grad_(), move)
    for _ in range(WARM_CALLS if device == "cuda" else 2):
        case.differentiate(case.run())
    return case


def _find_type(layer: nn.Module, kernel: str, device: str) -> torch.dtype:
    """Return the first type that a kernel computes in; skip the test if there is none."""
    reasons = []
    cell = layer.cells[0]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(ROWS, STEPS, INPUT, device=device, dtype=dtype)
        view = copy.deepcopy(cell).to(device, dtype) if device == "cuda" else cell
        try:
            reason = find_kernel(kernel).code.why_not(view, ScanJob(x, view.start(x)))
        except UserError as error:
            reason = str(error)
        if reason is None:
            return dtype
        reasons.append(reason)
    pytest.skip(f"{kernel} does not run here: {reasons[0]}")

"""One time step of stacked cells on the CPU engine, in one call and without copying weights."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from seqloom.core.cell import Cell, State
from seqloom.core.checks import has_memory
from seqloom.core.memory import empty, empty_like
from seqloom.kernels import heuristics
from seqloom.kernels.cpu.bound_step import BoundStep, bind_step
from seqloom.kernels.cpu.engine import TYPES, load_library
from seqloom.kernels.cpu.prepared import CONTEXT_FLAGS

HiddenState: TypeAlias = Tensor | State
StepFunction: TypeAlias = Callable[[Tensor, HiddenState], tuple[Tensor, HiddenState] | None]

_gates = ("weight_ih", "weight_hh", "scale_ih", "scale_hh", "scale_c"), ("bias_ih", "bias_hh", "", "", "bias_c")
_attention = (
    ("weight_u", "weight_q", "weight_o", "weight_g", "scale_n"),
    ("bias_u", "bias_q", "bias_o", "bias_g", "bias_n"),
)
# For each cell: its number in csrc/step_cells.hpp, its number of gates, and the settings that the engine depends on.
CELLS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "rnn": (0, 1, ("nonlinearity",)),
    "gru": (1, 3, ("reset_after",)),
    "ln_gru": (1, 3, ("reset_after",)),
    "lstm": (2, 4, ("proj_size",)),
    "ln_lstm": (2, 4, ("proj_size",)),
    "attn_rnn": (3, 1, ("heads", "context", "norm", "slots", "input_norm", "initial")),
}
SHAPES_KEPT = 256  # functions for inputs of different shapes
NO_MEMORY = "the CPU engine could not allocate memory for a step"
SUPPORTED_SETTINGS = {
    "nonlinearity": ("tanh", "relu"),
    "reset_after": (True,),
    "proj_size": (0,),
    "input_norm": (False,),
}


class StepStruct(ctypes.Structure):
    """Step of csrc/step.hpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("cell", "wide", "D", "H", "heads", "parts", "norm", "slots")),
        ("w", ctypes.c_void_p * 5),
        ("b", ctypes.c_void_p * 5),
    ]


Whole = ctypes.c_int64 * 3  # Stack of csrc/step.hpp
_call = struct.Struct("7Q")  # Call of csrc/step.hpp, separate bytes for each call and thread


def load_step() -> Callable[[bytes], int] | str:
    """Return the engine's function seqloom_step, or the reason why it cannot be used."""
    engine = load_library()
    if isinstance(engine, str):
        return engine
    size = getattr(engine, "seqloom_step_size", lambda: 0)()
    if size != ctypes.sizeof(StepStruct) + ctypes.sizeof(Whole) + _call.size:
        return "the CPU engine belongs to another version of seqloom; install it again"
    step: Any = engine.seqloom_step
    step.argtypes, step.restype = [ctypes.c_char_p], ctypes.c_int
    return step


def why_not_step(cell: Cell, home: Mapping[str, Tensor]) -> str | None:
    """Return why the engine cannot run a step of this cell; None if it can.

    Args:
        cell: A cell of a layer.
        home: The layer's weights by the layer's names.
    """
    if cell.name not in CELLS:
        return f"the engine's step does not support cell {cell.name or type(cell).__name__!r}"
    for setting, known in SUPPORTED_SETTINGS.items():
        if setting in CELLS[cell.name][2] and getattr(cell, setting) not in known:
            return f"the engine's step does not support {setting}={getattr(cell, setting)!r}"
    slots = getattr(cell, "slots", 1)
    if cell.hidden_size > (most := int(heuristics.STEP_LARGEST_HIDDEN / math.sqrt(slots))):
        return f"the engine's step runs on one core, too slow above {most} units" + (slots > 1) * f" of {slots} slots"
    own = _own(cell, home)
    for name, w in own.items():
        if type(w) not in (Tensor, nn.Parameter):
            return f"{name} is computed or is not a plain tensor"
        if w.device.type != "cpu" or w.dtype not in TYPES or w.dtype != next(iter(own.values())).dtype:
            return f"the engine's step reads float32 or float64 on the CPU, {name} is {w.dtype} on {w.device}"
        if not w.is_contiguous() or tuple(w.shape) != _shape(cell, name):
            return f"{name} is not contiguous or has another shape than the cell expects"
        if w.is_neg() or not has_memory(w):
            return f"{name} cannot be read by address"
    engine = load_step()
    return engine if isinstance(engine, str) else None


def _own(cell: Cell, home: Mapping[str, Tensor]) -> dict[str, Any]:
    names = cell.__dict__["_names"].items()
    return {mine: home.get(theirs) for mine, theirs in names if not mine.startswith("initial_")}


def _shape(cell: Cell, name: str) -> tuple[int, ...]:
    H = cell.hidden_size
    rows = H if name.endswith("_c") else CELLS[cell.name][1] * H
    if not name.startswith("weight"):
        return (rows,)
    return rows, {"ih": cell.input_size, "u": cell.input_size, "g": 2 * H}.get(name.rpartition("_")[2], H)


def count_most_rows(cell: Cell) -> int:
    """Return the largest number of rows for which the engine runs a step of this cell."""
    if cell.name == "attn_rnn":
        return heuristics.STEP_MOST_ROWS
    most = min(heuristics.STEP_MOST_GATED_ROWS, heuristics.STEP_MOST_NUMBERS // cell.hidden_size)
    return max(heuristics.STEP_MOST_ROWS, most)


class CellStack:
    """Stacked cells with the addresses of their weights, or the reason why the engine cannot run them.

    Threads may share it: after construction only functions for further shapes are added.
    """

    def __init__(
        self, settings: Mapping[str, object], cells: Sequence[Cell], home: Mapping[str, Tensor], reason: str | None
    ) -> None:
        self.layer_settings, self.cells, self.reason = tuple(settings.values()), cells, reason
        self.addresses = [w.data_ptr() for w in home.values()]
        # for the latest shape of inputs, see bound_step.py
        self.bound_step: BoundStep | None = None
        self.bound_sequence: BoundStep | None = None  # bound function for sequences of one step
        self.most_rows = 0 if reason else count_most_rows(cells[0])
        if reason is not None:
            return
        self.names, self.home = settings, dict(home)
        own = [_own(cell, home) for cell in cells]
        self.dtype = next(iter(own[0].values())).dtype
        self.records = (StepStruct * len(cells))(*map(_record, cells, own))
        self.strides = [w.stride() for w in home.values()]
        self.settings = [(cell, name, getattr(cell, name)) for cell in cells for name in CELLS[cell.name][2]]
        self.by_shape: dict[torch.Size, StepFunction] = {}  # functions for inputs of `step`
        self.by_sequence: dict[torch.Size, StepFunction] = {}  # functions for sequences of one step
        self.bound_by_shape: dict[tuple[torch.Size, bool], BoundStep] = {}
        self.alive: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Leave the stack out of a copy of the layer, even if its class was changed, as by torch's parametrize."""

    def has_changed(self, home: Mapping[str, Tensor]) -> bool:
        """Return whether a setting of a cell or the strides of a weight have changed."""
        if self.reason is not None:
            return False
        transposed = [w.stride() for w in home.values()] != self.strides
        return transposed or any(getattr(cell, name) != known for cell, name, known in self.settings)

    def start(self, x: Tensor, time: int | None = None) -> HiddenState:
        """Return the initial state of a stream, in torch's form.

        Args:
            x: The input.
            time: The time dimension, if the input is a sequence of one step.
        """
        x = x if time is None else x.squeeze(time)
        row = x if x.dim() == 2 else x.unsqueeze(0)
        starts = [cell.start(row) for cell in self.cells]
        whole = tuple(torch.stack(parts) for parts in zip(*starts, strict=True))
        whole = whole if x.dim() == 2 else tuple(s.squeeze(1) for s in whole)
        return whole[0] if len(whole) == 1 else whole

    def find(self, shape: torch.Size, time: int | None = None) -> StepFunction:
        """Return the function that runs a step for inputs of one shape, and make its bound version the latest."""
        is_sequence = time is not None
        run = (self.by_sequence if is_sequence else self.by_shape).get(shape) or self.add(shape, time)
        bound = self.bound_by_shape.get((shape, is_sequence))
        if is_sequence:
            self.bound_sequence = bound
        else:
            self.bound_step = bound
        return run

    def add(self, shape: torch.Size, time: int | None = None) -> StepFunction:
        """Return a function of x and hx, in torch's form, that runs a step for inputs of one shape.

        The function returns y and the state, or None for inputs that need the checks of `forward`. It keeps everything
        in local variables, which Python reads fastest.

        Args:
            shape: (B, D) or (D,), or that of a sequence of one step.
            time: The time dimension, if the input is a sequence.
        """
        table = self.by_shape if time is None else self.by_sequence
        if len(table) >= SHAPES_KEPT:
            table.clear()
            self.bound_by_shape.clear()
        rows = torch.Size(n for i, n in enumerate(shape[:-1]) if i != time)
        H, dtype, call = self.cells[0].hidden_size, self.dtype, load_step()
        assert not isinstance(call, str)  # why_not_step has checked this
        fits = len(rows) <= 1 and 1 <= rows.numel() <= self.most_rows
        if not fits or not shape or shape[-1] != self.cells[0].input_size:
            table[shape] = _decline
            return _decline
        m: int = getattr(self.cells[0], "slots", 1)
        slots = () if m == 1 else (m,)
        y_like = empty(*shape[:-1], H, dtype=dtype, device="cpu")
        h_like = empty(len(self.cells), *rows, *slots, H, dtype=dtype, device="cpu")
        whole = Whole(ctypes.addressof(self.records), len(self.cells), rows.numel())
        self.alive.append(whole)
        stack, h_shape = ctypes.addressof(whole), h_like.shape
        like = empty(shape, dtype=dtype, device="cpu")
        states = [h_like] * (1 + (CELLS[self.cells[0].name][0] == 2))
        bound = bind_step(self.records, rows.numel(), like, y_like, states, self.home, self.names)
        if bound is not None:
            self.bound_by_shape[shape, time is not None] = bound

        def prepare(s: Tensor) -> Tensor | None:
            if type(s) is not Tensor or s.shape != h_shape or s.dtype is not dtype or not s.is_cpu:
                return None
            return s if s.is_contiguous() else s.contiguous()

        def step_one_state(x: Tensor, h: HiddenState) -> tuple[Tensor, HiddenState] | None:
            if type(h) is not Tensor or h.shape != h_shape or h.dtype is not dtype or x.dtype is not dtype:
                return None
            if not (x.is_cpu and h.is_cpu):
                return None
            h = h if h.is_contiguous() else h.contiguous()
            x = x if x.is_contiguous() else x.contiguous()
            at_x, at_h = _address(x), _address(h)
            if not (at_x and at_h) or x.is_neg() or h.is_neg():  # not plain memory
                return None
            y, h1 = _empty_like(y_like), _empty_like(h_like)
            if call(_pack(stack, at_x, at_h, 0, _address(y), _address(h1), 0)):
                raise MemoryError(NO_MEMORY)
            return y, h1

        def step_two_states(x: Tensor, hc: HiddenState) -> tuple[Tensor, HiddenState] | None:
            if type(hc) is not tuple or len(hc) != 2:
                return None
            h, c = prepare(hc[0]), prepare(hc[1])
            if h is None or c is None or x.dtype is not dtype or not x.is_cpu:
                return None
            x = x if x.is_contiguous() else x.contiguous()
            at_x, at_h, at_c = _address(x), _address(h), _address(c)
            if not (at_x and at_h and at_c) or x.is_neg() or h.is_neg() or c.is_neg():
                return None
            y, h1, c1 = _empty_like(y_like), _empty_like(h_like), _empty_like(h_like)
            if call(_pack(stack, at_x, at_h, at_c, _address(y), _address(h1), _address(c1))):
                raise MemoryError(NO_MEMORY)
            return y, (h1, c1)

        table[shape] = run = step_two_states if len(states) == 2 else step_one_state
        return run


_address, _empty_like, _pack = Tensor.data_ptr, empty_like, _call.pack


def _decline(x: Tensor, hx: HiddenState) -> None:
    """Return None: the shape needs the checks of `forward`."""


def _record(cell: Cell, own: dict[str, Tensor]) -> StepStruct:
    kind = CELLS[cell.name][0]
    record = StepStruct(kind, next(iter(own.values())).dtype == torch.float64, cell.input_size, cell.hidden_size)
    record.slots = 1
    if cell.name == "attn_rnn":
        record.slots, record.heads, record.parts, record.norm = (
            cell.slots,
            cell.heads,
            sum(CONTEXT_FLAGS[part] for part in cell.context),
            cell.norm,
        )
    else:
        record.norm = cell.nonlinearity == "relu" if cell.name == "rnn" else cell.name.startswith("ln_")
    for places, names in zip((record.w, record.b), _attention if kind == 3 else _gates, strict=True):
        for i, name in enumerate(names):
            places[i] = own[name].data_ptr() if name in own else None
    return record

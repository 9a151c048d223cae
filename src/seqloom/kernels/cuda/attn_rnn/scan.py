"""AttnRNN over time on a GPU, forward and backward: what its fused kernels share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like, new_empty
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import fused, heuristics
from seqloom.kernels.attn_rnn_plain import WEIGHT_NAMES
from seqloom.kernels.autograd import Call, Gradients, Prepared, make_call, run_prepared
from seqloom.kernels.cuda.attn_rnn.backward import Chunk, align, name_weights
from seqloom.kernels.cuda.attn_rnn.setting import TYPES, AttnRNNSetting, find_setting
from seqloom.kernels.cuda.fastest import why_not_fastest
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.stack import ProjectedStack, Stack

Maybe = Tensor | None


class AttnRNNWeights(NamedTuple):
    """The weights of a cell by its names; None for those that it lacks."""

    weight_q: Any
    bias_q: Any
    weight_o: Any
    bias_o: Any
    weight_g: Any
    bias_g: Any
    scale_n: Any = None
    bias_n: Any = None
    weight_u: Any = None  # None if the input is projected
    bias_u: Any = None

    @property
    def recurrent(self) -> tuple[Any, ...]:
        """The weights of the recurrence, in the order of WEIGHT_NAMES."""
        return self[: len(WEIGHT_NAMES)]


@dataclass(eq=False)
class AttnRNNKernel:
    """A kernel of the registry: one way to divide the work among the blocks of a GPU.

    Attributes:
        backend: Its short name.
        find_code: Returns the code "forward" or "reverse" of a setting, for B rows on a device.
        chunk: Makes a chunk of the backward pass from `find_code`, a setting, the number of steps and a tensor like u.
        count_steps: Returns the number of steps per chunk of the backward pass, for a tensor like u and the slots.
        largest: Largest hidden size, with heads padded to full tiles, by bytes of a number; other types are refused.
        slots: Largest number of slots.
        others: Those that the registry lists later and that may be faster.
        why_no_room: Returns why the code of a setting does not fit the job's GPU, or None.
        gives_end: Whether the forward kernel can write the last state in the type of the outputs.
        takes_strides: Whether the backward pass takes inputs and outputs in any order of rows and steps.
    """

    backend: str
    find_code: Callable[[AttnRNNSetting, str, int, torch.device], Any]
    chunk: Callable[..., Chunk]
    count_steps: Callable[[Tensor, int], int]
    largest: Mapping[int, int]
    slots: int = 1
    others: tuple[AttnRNNKernel, ...] = ()
    why_no_room: Callable[[AttnRNNKernel, AttnRNNSetting, ScanJob], str | None] = lambda *_: None
    gives_end: bool = False
    takes_strides: bool = False

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why this cell or job cannot run here; None if it can."""
        size = (autocast_dtype("cuda") or job.x.dtype).itemsize
        types = [dtype for dtype in TYPES if dtype.itemsize in self.largest]
        reason = why_not(cell, job, types, largest=self.largest.get(size), slots=self.slots)
        return reason or self.why_no_room(self, read_padded(cell, job), job)

    def why_not_auto(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why another kernel is faster for this job; None if this one is the fastest."""
        others = {kernel.backend: kernel.why_not for kernel in self.others}
        return None if self.slots > 1 else why_not_fastest(self.backend, cell, job, others)

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the cell over the job's sequences."""
        setting = read_padded(cell, job)
        return run_job(lambda stack: AttnRNNScan(self, setting, stack, job.x.device), cell, job)


def why_not_code(kernel: AttnRNNKernel, setting: AttnRNNSetting, job: ScanJob) -> str | None:
    """Return why the code of a setting cannot run on the job's device; None if it can."""
    device = job.x.device
    codes = (kernel.find_code(setting, name, len(job.x), device) for name in ("forward", "reverse"))
    return next((reason for code in codes if (reason := code.why_not(device)) is not None), None)


def why_not(
    cell: Cell,
    job: ScanJob,
    types: Collection[torch.dtype],
    heads: int = 16,
    largest: int | None = None,
    slots: int = 1,
) -> str | None:
    """Return why AttnRNN's GPU kernels cannot run this; None if they can.

    Args:
        types: Types that the kernel computes in.
        heads: Largest number of heads.
        largest: Largest hidden size, with heads padded to full tiles; with slots a multiple of HIDDEN_MULTIPLE. None:
            any.
        slots: Largest number of slots.
    """
    dtype, multiple = autocast_dtype("cuda") or job.x.dtype, heuristics.HIDDEN_MULTIPLE
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if dtype not in types:
        names = " or ".join(str(t).removeprefix("torch.") for t in types)
        return f"it computes in {names}, not {str(dtype).removeprefix('torch.')}"
    if cell.slots > 1 and slots == 1:
        return "it has one slot"
    if cell.heads > heads:
        return f"it takes up to {heads} heads, not {cell.heads}"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    reason = fused.why_not_fused() or launch.why_not(job.x.device)
    if reason is None and largest and slots > 1 and (cell.hidden_size % multiple or cell.hidden_size > largest):
        return f"it takes hidden sizes {multiple}, {2 * multiple}, .. {largest}, not {cell.hidden_size}"
    if reason is None and largest and (padded := cell.heads * pad_head(cell)) > largest:
        as_padded = f" (padded {padded})" if padded > cell.hidden_size else ""
        return f"it takes hidden sizes up to {largest}, not {cell.hidden_size}{as_padded}"
    return reason


def pad_head(cell: Cell) -> int:
    """Return the units per head with which every head fills its tiles."""
    multiple = heuristics.HIDDEN_MULTIPLE // math.gcd(heuristics.HIDDEN_MULTIPLE, cell.heads)
    return -(-cell.hidden_size // cell.heads // multiple) * multiple


def read_setting(cell: Cell, job: ScanJob) -> AttnRNNSetting:
    flags = (job.mask is not None, bool(job.keep), job.reset is not None)
    dtype = autocast_dtype("cuda") or job.x.dtype
    return find_setting(cell.hidden_size, cell.heads, dtype, cell.context, cell.norm, *flags, slots=cell.slots)


def read_padded(cell: Cell, job: ScanJob) -> AttnRNNSetting:
    """Return the setting of the cell with heads that fill their tiles."""
    setting, head = read_setting(cell, job), pad_head(cell)
    real = cell.hidden_size // cell.heads
    if head == real:
        return setting
    own = (setting.dtype, setting.context, setting.norm, setting.mask, setting.keep, setting.reset)
    return find_setting(cell.heads * head, cell.heads, *own, real, slots=cell.slots)


def pad_units(t: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a tensor (.., H) with zeros at the end of each head."""
    D = setting.real_head
    return F.pad(t.unflatten(-1, (-1, D)), (0, setting.hidden // setting.heads - D)).flatten(-2)


def cut_units(t: Tensor, setting: AttnRNNSetting) -> Tensor:
    """Return a tensor (.., H) without what `pad_units` adds."""
    return t.unflatten(-1, (-1, setting.hidden // setting.heads))[..., : setting.real_head].flatten(-2)


class Saved(NamedTuple):
    """What a backward pass needs besides the call.

    Attributes:
        u: The kernel's input, in the order of the call's.
        states: The states after all steps, in the same order.
        first: The state before them, in float32.
    """

    u: Tensor
    states: Tensor
    first: Tensor


class AttnRNNScan:
    """The passes of one cell over inputs of one form, a `Prepared` (`../../autograd.py`).

    Heads of other sizes are padded to full tiles inside the passes.

    Args:
        kernel: How the work is divided among blocks.
        setting: Of the kernels.
        stack: The cell and the form of its input, which may be projected.
        device: Where it runs.
        weights: The cell's, if they are the same in every pass.
    """

    def __init__(
        self,
        kernel: AttnRNNKernel,
        setting: AttnRNNSetting,
        stack: Stack,
        device: torch.device,
        weights: AttnRNNWeights | None = None,
    ) -> None:
        self.kernel, self.setting, self.stack, self.device = kernel, setting, stack, device
        self.B, self.T, self.H = stack.B, stack.T, setting.hidden
        self.is_time_first = len(stack.shape) == 3 and not stack.batch_first
        self.code = kernel.find_code(setting, "forward", self.B, device)
        self.arguments: Any = self.code.arguments
        values: dict[str, Any] = {"B": self.B, "T": self.T}
        self.has_weights = weights is not None and not setting.real_head
        if self.has_weights and weights is not None:
            row, step = (self.H, self.B * self.H) if self.is_time_first else (self.T * self.H, self.H)
            values |= {"x_row": row, "x_step": step, "y_row": row, "y_step": step}
            values["w"] = name_weights(weights.recurrent)
        self.filled = bytes(self.code.pack(values))
        # whether it is worth checking for products with the hi/lo split
        self.is_large = self.B * self.T * self.H * stack.shape[-1] >= heuristics.EXACT_LEAST_PRODUCTS

    def make_start(self) -> tuple[Tensor]:
        """Return the cell's initial state, rounded to the type of the layer."""
        cell, shape = self.stack.cells[0], self.stack.state_shapes[0]
        return (self._pad(torch.full(shape, cell.initial, dtype=self.setting.dtype, device=self.device).float()),)

    def forward(
        self, call: Call, start: tuple[Tensor, ...] | None = None
    ) -> tuple[tuple[Tensor, Tensor], Saved | None]:
        """Return the outputs, the last state, and what is saved; `start` is the first state of a call without one."""
        setting, own = self.setting, AttnRNNWeights(*call.weights)
        if setting.real_head:
            own = self._pad_weights(own)
        u = self._project(call.x, own)
        if u.data_ptr() % 16 or not (self.has_weights or is_aligned(self._put_rows_first(u))):
            u = align(u)
        if call.states:
            first = self._pad(call.states[0]).float().contiguous()
        else:
            (first,) = start or self.make_start()
        end_type = call.states[0].dtype if call.states else setting.dtype
        gives_end = self.kernel.gives_end and end_type == setting.dtype
        y = (empty_like if call.lengths is None else torch.zeros_like)(u, memory_format=torch.contiguous_format)
        last = empty_like(first, dtype=end_type) if gives_end else empty_like(first)
        arguments, states = self.arguments.from_buffer_copy(self.filled), y
        values = {} if self.has_weights else self._read_values(u, y, own)
        if not self.has_weights or call.lengths is not None:
            values |= self._read_options(call)
            launch.fill(arguments, values)
        if setting.slots > 1 and call.train:
            states = new_empty(y, self.B, self.T, setting.slots, self.H)
            arguments.states = states.data_ptr()
        arguments.x, arguments.y, arguments.h0 = u.data_ptr(), y.data_ptr(), first.data_ptr()
        if gives_end:
            arguments.end = last.data_ptr()
        else:
            arguments.last = last.data_ptr()
        self.code.start(arguments, self.B, self.device)
        saved = Saved(u, states, first) if call.train else None
        if setting.real_head:
            y, last = self._cut(y), self._cut(last)
        return (y, last if gives_end else last.to(end_type)), saved

    def _read_values(self, u: Tensor, y: Tensor, own: AttnRNNWeights) -> dict[str, Any]:
        """Return the arguments that are not the same in every pass."""
        (x_row, x_step, _), (y_row, y_step, _) = (self._put_rows_first(t).stride() for t in (u, y))
        strides = {"x_row": x_row, "x_step": x_step, "y_row": y_row, "y_step": y_step}
        return strides | {"w": name_weights(own.recurrent)}

    def backward(self, call: Call, saved: Saved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients, chunk by chunk of time."""
        own = AttnRNNWeights(*call.weights)
        own = self._pad_weights(own) if self.setting.real_head else own
        u, y = self._arrange(saved.u), self._arrange(saved.states)
        dy, dlast = (None if d is None else self._pad(d) for d in grads)
        dy = torch.zeros_like(u) if dy is None else self._arrange(dy.to(u.dtype))
        du, dh = empty_like(u), torch.zeros_like(saved.first) if dlast is None else _copy_wide(dlast)
        options = self._read_options(call)
        dstart = None if options["start"] is None else torch.zeros_like(options["start"])
        values = options | {"x": u, "y": y, "h0": saved.first, "B": self.B, "T": self.T}
        values |= {"dy": dy, "du": du, "dh": dh, "dstart": dstart}
        size = self.kernel.count_steps(u, self.setting.slots)
        chunk = self.kernel.chunk(self.kernel.find_code, self.setting, size, u)
        chunk.load(values, own.recurrent)
        for begin in reversed(range(0, self.T, size)):
            chunk.go_back(begin, min(size, self.T - begin))
        gradients = self._cut_weights(AttnRNNWeights(*chunk.gradients(own.recurrent)))
        dx, gradients = self._differentiate_input(call, du, own, gradients, needs)
        states = [self._cut(dh).view(h.shape).to(h.dtype) for h in call.states]
        return Gradients(dx, states, gradients, () if dstart is None else (self._cut(dstart),))

    def _differentiate_input(
        self, call: Call, du: Tensor, own: AttnRNNWeights, gradients: AttnRNNWeights, needs: Gradients
    ) -> tuple[Maybe, AttnRNNWeights]:
        """Return the gradient of the input from that of its projection du (B, T, H), and those of all weights."""
        flat = (du.transpose(0, 1) if self.is_time_first else du).reshape(-1, self.H)
        if own.weight_u is None:
            return self._cut(flat).view(call.x.shape), gradients
        wanted, inputs = AttnRNNWeights(*needs.weights), call.x.view(-1, call.x.shape[-1])
        both = bool(needs.x), bool(wanted.weight_u)
        dx, dweight = exact.differentiate_linear(flat, inputs, own.weight_u, both)
        dbias = flat.sum(0) if wanted.bias_u else None
        if self.setting.real_head:
            dweight = None if dweight is None else cut_units(dweight.t(), self.setting).t()
            dbias = None if dbias is None else cut_units(dbias, self.setting)
        return None if dx is None else dx.view(call.x.shape), gradients._replace(weight_u=dweight, bias_u=dbias)

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the loop."""
        return differentiate(self.stack, call, grads)

    def _project(self, x: Tensor, own: AttnRNNWeights) -> Tensor:
        """Return the kernel's input, in the order of x."""
        if own.weight_u is None:
            return self._pad(x)
        if self.is_large:
            return exact.linear(x, own.weight_u, own.bias_u).view(*x.shape[:-1], -1)
        u: Tensor = torch._C._nn.linear(x, own.weight_u, own.bias_u)
        return u

    def _read_options(self, call: Call) -> dict[str, Maybe]:
        """Return the inputs without gradients, and the state after a reset, by the names of the kernels' arguments."""
        options = {"mask": call.mask, "keep": call.keep[0] if call.keep else None}
        options["start"] = call.starts[0] if call.starts else None
        options = {name: None if t is None else self._pad(t).contiguous() for name, t in options.items()}
        return options | {"reset": call.reset, "lengths": call.lengths}

    def _put_rows_first(self, t: Tensor) -> Tensor:
        """Return a view (B, T, ..) of a tensor in the order of the input."""
        return t.transpose(0, 1) if self.is_time_first else t.unsqueeze(0) if t.dim() == 2 else t

    def _arrange(self, t: Tensor) -> Tensor:
        """Return (B, T, ..) of a tensor in the order of the input, aligned, contiguous if the kernels need that."""
        t = self._put_rows_first(align(t))
        return t if self.kernel.takes_strides else t.contiguous()

    def _pad(self, t: Tensor) -> Tensor:
        return pad_units(t, self.setting) if self.setting.real_head else t

    def _cut(self, t: Tensor) -> Tensor:
        return cut_units(t, self.setting) if self.setting.real_head else t

    def _pad_weights(self, own: AttnRNNWeights) -> AttnRNNWeights:
        """Return the weights with zeros at the end of each head."""
        padded = AttnRNNWeights(*(None if w is None else self._map_units(pad_units, w) for w in own.recurrent))
        weight = None if own.weight_u is None else self._pad(own.weight_u.t()).t().contiguous()
        return padded._replace(weight_u=weight, bias_u=None if own.bias_u is None else self._pad(own.bias_u))

    def _cut_weights(self, own: AttnRNNWeights) -> AttnRNNWeights:
        """Remove what `_pad_weights` adds to the weights of the recurrence."""
        if not self.setting.real_head:
            return own
        return AttnRNNWeights(*(None if w is None else self._map_units(cut_units, w) for w in own.recurrent))

    def _map_units(self, change: Callable[[Tensor, AttnRNNSetting], Tensor], w: Tensor) -> Tensor:
        """Pad or cut a bias (H,), or the rows and columns of a weight (H, H) or (H, 2 H)."""
        w = change(w, self.setting)
        return w if w.dim() == 1 else change(w.t(), self.setting).t().contiguous()


def _copy_wide(t: Tensor) -> Tensor:
    return t.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def differentiate(stack: Stack, call: Call, grads: Sequence[Maybe]) -> Gradients:
    """Compute the gradients with the loop, so that they are differentiable."""
    with torch.autocast(call.x.device.type, enabled=False):
        return stack.find_gradients(call, grads)


def run_job(
    make_scan: Callable[[Stack], Prepared],
    cell: Cell,
    job: ScanJob,
    dtype: torch.dtype | None = None,
    state_type: torch.dtype | None = torch.float32,
) -> tuple[Tensor, State]:
    """Project the input of a job, and run it by a scan that is made for it.

    Args:
        make_scan: Returns the scan of a cell over inputs of one form.
        cell: The cell.
        job: The job.
        dtype: The type to compute in; by default that of autocast on a GPU or of the input.
        state_type: The type of the states; None for that of the job's.

    Returns:
        The outputs (B, T, H) and the last state.
    """
    dtype, w = dtype or autocast_dtype("cuda") or job.x.dtype, cell.own_parameters()
    u, wide = cell.project(job.x).to(dtype), state_type or job.state[0].dtype
    own = AttnRNNWeights(*(w[name].to(dtype) if name in w else None for name in WEIGHT_NAMES))
    states, starts = (job.state[0].to(wide),), () if job.reset is None else (cell.start(job.x)[0].to(wide),)
    call = make_call(job, u, states, own, starts)
    call.train = call.train and not fused.is_traced()  # a trace records torch's operators
    names = {name: i for i, name in enumerate(WEIGHT_NAMES) if own[i] is not None}
    y, h = run_prepared(make_scan(ProjectedStack([cell], [names], u.shape, True, 1)), call)
    return y, (h.to(job.state[0].dtype),)


def is_aligned(t: Tensor) -> bool:
    """Return whether every step is aligned to 16 bytes."""
    return t.stride(2) == 1 and t.data_ptr() % 16 == 0 and t.stride(0) % 8 == 0 and t.stride(1) % 8 == 0

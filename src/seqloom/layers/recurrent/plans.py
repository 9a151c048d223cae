"""Prepared calls of a recurrent layer: the kernel is chosen and the arguments are checked once per kind of call.

A layer caches facts about itself (its settings, the addresses and shapes of its weights), and a plan for each kind of
input. Every call compares all of them; a difference leads to a new plan, and calls without a plan go through
`Recurrent.run_with`, which also raises the errors. So a plan is never stale, and never affects a result.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from seqloom.core.cell import Cell, State
from seqloom.core.checks import has_memory, read_lengths
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.core.memory import new_empty
from seqloom.core.precision import autocast_dtype, product_flags
from seqloom.kernels import heuristics
from seqloom.kernels.aten import plan as aten
from seqloom.kernels.compiled import prepared as compiled
from seqloom.kernels.cpu import prepared as cpu
from seqloom.kernels.cpu.bound_call import BoundLayer
from seqloom.kernels.cuda.stack_plan import prepare_stack
from seqloom.kernels.dispatch import Choice, choose
from seqloom.kernels.parallel.experience import may_divide
from seqloom.kernels.registry import Kernel
from seqloom.kernels.stack import Stack
from seqloom.layers.recurrent.gpu.covering import CoveredPlan, find_covering_shape
from seqloom.layers.recurrent.gpu.row_order import is_large_batch
from seqloom.layers.recurrent.gpu.streams import keeps_gpu_busy
from seqloom.layers.recurrent.gpu.wavefront import CHUNK_STEPS
from seqloom.layers.recurrent.streaming import try_single_step

if TYPE_CHECKING:  # a cycle
    from seqloom.layers.recurrent.layer import Recurrent

MIN_WAVEFRONT_STEPS = 4 * CHUNK_STEPS  # stacks over longer sequences may run as a wavefront
CAST_TYPES = {torch.float32, torch.bfloat16, torch.float16}  # types that autocast casts
MOST_BOUND = 8  # times that a layer of compiled cells is described to the engine: objects in it are replaced
PLANS_KEPT = 64  # kinds of calls of one layer; if shapes keep changing, the list is cleared
SHAPES_BEFORE_COVERING = 8  # kinds of calls on a GPU that have plans of their own; others share one
Key = tuple[Any, ...]  # shape, type, device, whether it trains, switches, whether it has lengths

is_compiling, is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_address, _tracing = Tensor.data_ptr, torch._C._get_tracing_state
_dispatch_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
_autocast, _count_threads = torch._C._is_any_autocast_enabled, torch.get_num_threads
_is_capturing, _strided = getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool), torch.strided
SETTINGS = (
    "kernel",
    "parallel",
    "check",
    "training",
    "dropout",
    "dropouts",
    "batch_first",
    "bidirectional",
    "num_layers",
    "input_size",
    "residual",
    "stack_norm",
)
_settings = itemgetter(*SETTINGS)
PLAIN = (bool, int, float, str, tuple, type(None))  # types of a cell's settings


def is_plain_context() -> bool:
    """Return whether nothing intercepts the operations of a call: modes, transforms, tracing. Autocast may be on."""
    return not (
        is_compiling()  # checked first, since the others cannot be traced
        or _dispatch_modes()
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
    )


def try_plan(
    layer: Recurrent,
    own: dict[str, Any],
    x: object,
    hx: Tensor | State | None,
    lengths: Tensor | Sequence[int] | None = None,
) -> tuple[Any, Any] | None:
    """Run a call by its plan; return None if `run_with` has to do it, or has to raise the error.

    Args:
        layer: The layer.
        own: Its `__dict__`: every attribute look-up counts here.
        x: The input.
        hx: The state in torch's form, or None.
        lengths: (B,), the real steps of each row, or None.
    """
    if type(x) is not Tensor or is_compiling():
        return None
    known: Any = own.get("_plans")
    if (
        known is not None
        and (call := known.find(own, x, hx)) is not None
        and call.switches == ((None, *_read_gpu_flags()) if x.is_cuda else _count_threads())  # autocast is off
        and (plan := call.plan if lengths is None else call.plan_with_lengths) is not None
    ):
        states: list[Tensor] = [] if hx is None else [hx] if type(hx) is Tensor else [*hx]
        weights = [*own["_parameters"].values(), *call.inner_weights]
        if lengths is None:
            result = call.run(x, states, weights, call.train)
        else:
            result = _run(call.run_with_lengths, plan, x, states, weights, call.train, lengths)
        if result is not None:
            return result
        known = None
    if lengths is None and (step := try_single_step(layer, own, x, hx)) is not None:
        return step
    if not is_plain_context():
        return None
    try:
        weights = list(own["_parameters"].values())
        if known is None or not known.fits(own, weights):
            known = own["_plans"] = LayerPlans(layer, own, weights)
        weights += known.list_inner_weights()
        if known.reason is not None or not is_readable(x):
            return None
        amp = None
        if _autocast():
            amp = autocast_dtype(x.device.type) if x.is_cuda else None
            if amp is None:  # autocast of another device, or of a CPU that ignores it
                return None
        states = [] if hx is None else [hx] if type(hx) is Tensor else [*hx]
        train = is_grad_enabled() and _needs_gradient(x, states, weights)
        switches = (amp, *_read_gpu_flags()) if x.is_cuda else _count_threads()
        key = x.shape, x.dtype, x.device, train, switches, lengths is not None
    except (AttributeError, RuntimeError, TypeError):  # a tensor without memory: `run_with` takes or refuses it
        return None
    plan = known.plans.get(key)
    if plan is None:
        plan = known.find_covering(key, x, weights, amp) or known.add(key, x, weights, amp)
    if plan is DECLINE or (states and not _take_states(states, weights[0], plan.h_shapes)):
        return None
    if amp is None and key in known.plans:
        known.note_call(key, plan, weights)
    result = _run(plan.run, plan, x.contiguous(), states, weights, train, lengths)
    if result is None:
        del own["_plans"]
    return result


def _run(
    run: Callable[..., tuple[Tensor, Any] | None],
    plan: Any,  # noqa: ANN401
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    train: bool,
    lengths: Tensor | Sequence[int] | None,
) -> tuple[Any, Any] | None:
    """Run a plan; return None if it is out of date."""
    if lengths is None:
        return run(x, states, weights, train)
    return run(x, states, weights, train, read_lengths(lengths, plan.B, plan.T, x.device).contiguous())


def _read_gpu_flags() -> tuple[object, ...]:
    """Return what the choice of a kernel on a GPU depends on, besides the layer, its input and autocast."""
    return _is_capturing(), *product_flags()


def _take_states(states: list[Tensor], weight: Tensor, shapes: list[torch.Size]) -> bool:
    """Make the states contiguous, in place; return False if they do not fit the plan."""
    if len(states) != len(shapes):
        return False
    dtype, device = weight.dtype, weight.device
    for i, s in enumerate(states):
        if type(s) is not Tensor or s.shape != shapes[i] or s.dtype is not dtype or s.device != device:
            return False
        if s.layout is not _strided or not is_readable(s):
            return False
        states[i] = s.contiguous()
    return True


def is_readable(t: Tensor) -> bool:
    """Return whether kernels can read this tensor by its address."""
    return _address(t) != 0 and not t.is_neg() and has_memory(t)


def _needs_gradient(x: Tensor, states: list[Tensor], weights: list[Tensor]) -> bool:
    if x.requires_grad:
        return True
    for t in weights:
        if t.requires_grad:
            return True
    return any(t.requires_grad for t in states)


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A kind of call that has occurred at least twice.

    Attributes:
        plan: Runs it without lengths; None if there has not been a second such call.
        plan_with_lengths: Runs it with lengths; None if there has not been a second such call.
        run: Runs the first plan after the comparison of the layer.
        run_with_lengths: Runs the second one.
        train: Whether a gradient is needed.
        switches: Flags on which the choice of the plan also depends: those of a GPU, the threads of a CPU.
        inner_weights: The weights of modules inside the cells, which the engine has compared.
    """

    plan: Any
    plan_with_lengths: Any
    run: Any
    run_with_lengths: Any
    train: bool
    switches: object
    inner_weights: Sequence[Tensor]


class LayerPlans:
    """The prepared calls of a layer, and the settings and weights they were made for."""

    def __init__(self, layer: Recurrent, own: dict[str, Any], weights: list[Tensor]) -> None:
        self.layer, self.layer_settings = weakref.ref(layer), _settings(own)
        self.cells = [layer.cell_at(i) for i in range(len(layer.cells))]
        self.cell_readers = [_read_settings(cell.__dict__) for cell in self.cells]
        self.cell_settings = [read(cell.__dict__) for read, cell in zip(self.cell_readers, self.cells, strict=True)]
        self.plans: dict[Key, Any] = {}
        self.seen: set[Key] = set()  # kinds of calls that came once
        self.times_bound = 0
        self.bound: BoundLayer[KnownCall] | None = None  # compares calls faster than `fits` and the rest of `try_plan`
        self.find: Callable[[dict[str, Any], Any, Any], KnownCall | None] = _find_nothing
        self.inner = _list_inner_modules(self.cells)
        self.inner_parameters = [module.__dict__["_parameters"] for _, _, module in self.inner]
        self.has_inner_weights = bool(self.list_inner_weights())
        self.weights_reason = _why_not_weights([*weights, *self.list_inner_weights()])
        self.reason = self.weights_reason or _why_no_plan(layer, self.cells)
        self.addresses = [] if self.weights_reason else list(map(_address, weights))
        self.shapes = [] if self.weights_reason else [w.shape for w in weights]

    def list_inner_weights(self) -> list[Tensor]:
        """Return the parameters that the cells hold themselves, such as those of an `nn.Linear` of a step."""
        return [p for parameters in self.inner_parameters for p in parameters.values() if p is not None]

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Leave the plans out of a copy of the layer, even if its class was changed, as by torch's parametrize."""

    def fits(self, own: dict[str, Any], weights: list[Tensor]) -> bool:
        """Return whether the layer is unchanged since these plans were made."""
        if _settings(own) != self.layer_settings or self.weights_reason is not None:
            return False
        for read, cell, known in zip(self.cell_readers, self.cells, self.cell_settings, strict=True):
            if read(cell.__dict__) != known:
                return False
        for modules, name, module in self.inner:
            if modules.get(name) is not module:
                return False
        if self.has_inner_weights and _why_not_weights([*weights, *self.list_inner_weights()]) is not None:
            return False
        if list(map(_address, weights)) != self.addresses:
            return False
        for w, shape in zip(weights, self.shapes, strict=True):
            if w.shape != shape or not w.is_contiguous():
                return False
        return True

    def add(self, key: Key, x: Tensor, weights: list[Tensor], amp: torch.dtype | None) -> Any:  # noqa: ANN401  # a plan
        """Return the plan of one kind of call, made now; DECLINE if there is none."""
        if len(self.plans) >= PLANS_KEPT:
            self.plans.clear()
            self.seen.clear()
        plan = self.plans[key] = self._prepare(x, weights, amp, trains=bool(key[3]), has_lengths=bool(key[-1]))
        return plan

    def find_covering(self, key: Key, x: Tensor, weights: list[Tensor], amp: torch.dtype | None) -> CoveredPlan | None:
        """Return a plan for one kind of call that runs it as part of a larger shape; None if it needs its own."""
        layer = self.layer()
        if not x.is_cuda or layer is None or len(self.plans) < SHAPES_BEFORE_COVERING:
            return None
        shape = find_covering_shape(x.shape)
        if shape is None or shape == x.shape or not x.numel():
            return None
        own = (shape, *key[1:-1], True)
        plan = self.plans.get(own) or self.add(own, new_empty(x, *shape), weights, amp)
        return CoveredPlan(plan, x.shape, layer.batch_first) if plan.may_cover else None

    def note_call(self, key: Key, plan: Any, weights: list[Tensor]) -> None:  # noqa: ANN401  # a plan
        """Register this kind of call with the engine when it occurs for the second time.

        Describing a call to the engine takes longer than comparing one in Python.
        """
        if key not in self.seen:
            self.seen.add(key)
            return
        is_compiled = isinstance(plan, compiled.CompiledStack)
        if self.bound is None or (is_compiled and self.times_bound < MOST_BOUND):
            items = plan.dictionaries if is_compiled else None
            if is_compiled and items is None:
                return
            self.times_bound += 1
            cells = items or [(own := cell.__dict__, _plain_settings(own)) for cell in self.cells]
            settings = dict(zip(SETTINGS, self.layer_settings, strict=True))
            self.bound = BoundLayer(weights, settings, cells, len(plan.h_shapes), self.inner_parameters)
            self.find = self.bound.find
        shape, train, switches = key[0], key[3], key[4]
        plain, ragged = (self._find_seen((*key[:-1], has_lengths)) for has_lengths in (False, True))
        run, run_ragged = _find_run(plain), _find_run(ragged)
        known = KnownCall(plain, ragged, run, run_ragged, train, switches, self.list_inner_weights())
        self.bound.add(shape, plan.h_shapes, train, known)

    def _find_seen(self, key: Key) -> Any:  # noqa: ANN401  # a plan
        """Return the plan of a kind of call that has occurred before; None if it has not, or has no plan."""
        plan = self.plans.get(key) if key in self.seen else None
        return None if plan is DECLINE else plan

    def _prepare(
        self, x: Tensor, weights: list[Tensor], amp: torch.dtype | None, *, trains: bool, has_lengths: bool
    ) -> Any:  # noqa: ANN401  # a plan
        layer = self.layer()
        if layer is None or x.dim() not in (2, 3) or not x.numel() or x.shape[-1] != layer.input_size:
            return DECLINE
        if amp is None and x.dtype != weights[0].dtype:
            return DECLINE
        if amp is not None and not {x.dtype, weights[0].dtype} <= CAST_TYPES:
            return DECLINE
        if x.device != weights[0].device or x.layout != torch.strided:
            return DECLINE
        home = {name: i for i, name in enumerate(layer._parameters)}
        names = [{mine: home[theirs] for mine, theirs in cell.__dict__["_names"].items()} for cell in self.cells]
        if self.has_inner_weights:
            places = {id(w): i for i, w in enumerate(weights)}
            for cell, known in zip(self.cells, names, strict=True):
                known |= {name: places[id(w)] for name, w in cell.named_parameters(remove_duplicate=False)}
        stack = Stack(self.cells, names, x.shape, layer.batch_first, 1 + layer.bidirectional)
        if may_divide(self.cells[0], stack.B, stack.T, x.device, amp or x.dtype, layer.parallel):
            return DECLINE
        try:
            choices = self._choose(layer, stack, x, has_lengths)
        except UserError:  # `run_with` raises it
            return DECLINE
        kernels = [choice.kernel for choice in choices]
        dropout = layer.dropout if layer.training and layer.num_layers > 1 else 0.0
        if self.has_inner_weights or (not x.is_cuda and compiled.why_not_stack(choices) is None):
            if x.is_cuda or dropout or compiled.why_not_stack(choices) is not None:
                return DECLINE
            return compiled.CompiledStack(stack, choices)
        takes_aten = {kernel.backend for kernel in kernels} == {"aten"} and not has_lengths
        takes_aten = takes_aten and aten.why_not_plan(self.cells, weights) is None
        if x.is_cuda:
            if takes_aten and (torch.backends.cudnn.enabled or not dropout):
                return aten.AtenPlan(stack, weights, dropout, amp)
            if self._takes_turns(stack, kernels, has_lengths):
                return DECLINE
            return prepare_stack(stack, kernels, weights, amp, dropout, has_lengths)
        if dropout:
            return aten.AtenPlan(stack, weights, dropout) if takes_aten else DECLINE
        if takes_aten or (trains and not has_lengths and self._is_large_step(layer, stack, kernels, weights)):
            return aten.AtenPlan(stack, weights)
        is_engine = {kernel.backend for kernel in kernels} == {"cpu"} and not any(map(cpu.why_not_stack, self.cells))
        return cpu.PreparedStack(stack, weights) if is_engine else DECLINE

    def _takes_turns(self, stack: Stack, kernels: Sequence[Kernel], has_lengths: bool) -> bool:
        """Return whether a call on a GPU is so long that `run_with` arranges streams or sorts rows for it."""
        cell = self.cells[0]
        if len(self.cells) > stack.ways and stack.ways == 1 and stack.T >= MIN_WAVEFRONT_STEPS:
            return True
        if stack.ways == 2 and keeps_gpu_busy(cell, stack.T):
            return True
        return has_lengths and kernels[0].skips_ended_rows and is_large_batch(stack.B, cell.hidden_size)

    def _is_large_step(self, layer: Recurrent, stack: Stack, kernels: Sequence[Kernel], weights: list[Tensor]) -> bool:
        """Return whether a training call on a CPU is one step of a GRU, which torch's operator does faster."""
        cell = self.cells[0]
        if stack.T > 1 or cell.name != "gru" or cell.hidden_size < heuristics.ONE_STEP_HIDDEN or layer.kernel != "auto":
            return False
        return {k.backend for k in kernels} == {"cpu"} and aten.why_not_plan(self.cells, weights) is None

    def _choose(self, layer: Recurrent, stack: Stack, x: Tensor, has_lengths: bool) -> list[Choice]:
        """Return the kernel that was chosen for each cell."""
        lengths = torch.full((stack.B,), stack.T, device=x.device) if has_lengths else None
        depth = 1 if has_lengths else stack.depth
        chosen: dict[object, Choice] = {}  # cells of one kind, such as both directions of a layer, have the same
        choices = []
        for cell, settings in zip(self.cells, self.cell_settings, strict=True):
            kind = (type(cell), repr(settings)) if cell.name else id(cell)
            if kind not in chosen or chosen[kind].kernel.compiles:
                like = new_empty(x, stack.B, stack.T, cell.input_size)  # autocast is what it is during the call
                chosen[kind] = choose(cell, ScanJob(like, cell.start(like), lengths, layers=depth), layer.kernel)
            choices.append(chosen[kind])
        return choices


def _find_run(plan: Any) -> Any:  # noqa: ANN401  # a plan or None, and its method
    """Return a function that runs a plan once the engine has compared the dictionaries of the layer and its cells."""
    return plan.run_compared if isinstance(plan, compiled.CompiledStack) else None if plan is None else plan.run


class _Decline:
    """Placeholder for a plan, for calls that go through `run_with`."""

    backend, may_cover = "", False


DECLINE = _Decline()


def _read_settings(own: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    """Return a function that reads the settings of a cell from its `__dict__`, and detects new ones."""
    read = itemgetter(*_plain_settings(own))
    return lambda now: (len(now), read(now))


def _find_nothing(own: dict[str, Any], x: object, hx: object) -> None:
    """Return None: no kind of call has occurred twice."""


def _plain_settings(own: dict[str, Any]) -> dict[str, object]:
    return {name: value for name, value in own.items() if isinstance(value, PLAIN)}


def _why_not_weights(weights: list[Tensor]) -> str | None:
    """Return why kernels cannot read the weights by address; None if they can."""
    for w in weights:
        if type(w) not in (Tensor, nn.Parameter) or w.layout != torch.strided:
            return "a weight is computed or is not a plain tensor"
        if w.dtype != weights[0].dtype or w.device != weights[0].device:
            return "the weights differ in type or device"
        if w.device.type not in ("cpu", "cuda") or not w.is_contiguous() or not is_readable(w):
            return "a weight cannot be read by address"
    return None if weights else "the layer has no weights of its own"


def _why_no_plan(layer: Recurrent, cells: list[Cell]) -> str | None:
    """Return why calls of this layer have no plan; None if they may have one."""
    from seqloom.layers.recurrent.layer import Recurrent

    noise, held = layer.dropouts, layer._parameters
    if type(layer).run_with is not Recurrent.run_with or "run_with" in vars(layer):
        return "the layer overrides run_with"
    if layer.check:
        return "check=True looks at the input"
    if (layer.residual or layer.stack_norm is not None) and layer.num_layers > 1:
        return "there are residuals or norms between layers"
    if noise.zoneout not in (0, (0, 0)):
        return "there is zoneout"
    if layer.training and (noise.recurrent or noise.weight):
        return "there is dropout inside the recurrence"
    for cell in cells:
        names, shapes = cell.__dict__.get("_names", {}), cell.__dict__.get("_shapes", {})
        if cell._parameters or any(True for _ in cell.buffers()):
            return "the cell has weights of its own"
        for mine, theirs in names.items():
            w = held.get(theirs)
            if w is None or mine in cell.__dict__ or w.shape != shapes.get(mine):
                return f"{theirs} is computed or has another shape than the cell expects"
    return None


def _list_inner_modules(cells: list[Cell]) -> list[tuple[dict[str, Any], str, nn.Module]]:
    """Return each module inside the cells, with the dictionary of its parent and its name there."""
    modules = [module for cell in cells for module in cell.modules()]
    return [(m._modules, name, child) for m in modules for name, child in m._modules.items() if child is not None]

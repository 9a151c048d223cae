"""Check a compiled cell once against the reference loop, before its results are used.

The compiler may have bugs that no test has found. A user's cell is therefore run on a few random rows when it is first
compiled for a kind of call: outputs, last states and, in training, all gradients must match those of the loop.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from seqloom.compiler.plan import Plan, UnfitError
from seqloom.compiler.storage import load_checks, save_check
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels import loop
from seqloom.kernels.cpu.engine import list_libraries

Run = Callable[[Cell, ScanJob], tuple[Tensor, State]]
Verdict = str | None  # the difference; None if there is none

B, T = 3, 4
# On a GPU, kernels are generated for a number of rows: the check uses those of the call, at most this many.
MOST_ROWS = 256
# The difference that rounding may cause, relative to the largest value of a result.
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# A larger difference is an error unless the loop's results change as much when all operators are rounded differently: a
# value may be close to a threshold of the step.
ROUNDING = {torch.float64: 1e-15, torch.float32: 3e-7, torch.float16: 2e-3, torch.bfloat16: 1e-2}
ROUNDED = frozenset(
    [
        *(
            "_softmax",
            "add",
            "addcmul",
            "addmm",
            "bmm",
            "cos",
            "div",
            "exp",
            "gelu",
            "lerp",
            "log",
            "mean",
            "mm",
            "mul",
        ),
        *("native_layer_norm", "pow", "sigmoid", "silu", "sin", "sqrt", "sub", "sum", "tanh"),
    ]
)
TRIES = 32  # maximum number of other roundings; a value near a threshold crosses it only in a few of them
LOOP_FAILS = "the loop fails"  # prefix of a verdict that does not concern the compiled cell


class CallKind(NamedTuple):
    """The kinds of call that are checked one by one.

    Attributes:
        train: Whether gradients are enabled: both forward programs and the reverse one are checked then.
        lengths: Whether the call has lengths; likewise `reset`, `dt`, `mask` and `keep`.
        device: "cpu" or "cuda".
        dtype: The type of the products.
    """

    train: bool
    lengths: bool
    reset: bool
    dt: bool
    mask: bool
    keep: bool
    device: str
    dtype: torch.dtype

    @classmethod
    def of(cls, job: ScanJob) -> CallKind:
        """Return the kind of a call."""
        device = job.x.device.type
        return cls(
            torch.is_grad_enabled(),
            job.lengths is not None,
            job.reset is not None,
            job.dt is not None,
            job.mask is not None,
            bool(job.keep),
            device,
            autocast_dtype(device) or job.x.dtype,
        )


@dataclass
class Verdicts:
    """Results of the checks of one compiled cell, by kind of call.

    Attributes:
        plan: The compiled cell. The results are stored beside it on disk.
        form: How it runs: "programs" or "gated".
        known: The verdicts of this process.
    """

    plan: Plan
    form: str = "programs"
    known: dict[CallKind, Verdict] = field(default_factory=dict)

    def find(self, cell: Cell, job: ScanJob, run: Run) -> Verdict:
        """Return why the compiled cell must not be used; None if it matches the loop.

        Args:
            cell: The cell.
            job: A call, for its kind.
            run: Runs the compiled cell.

        Raises:
            UnfitError: If the compiled cell was read from disk and does not match the loop.
        """
        if type(cell).__module__.startswith("seqloom.") and (job.x.is_cuda or not self.plan.is_loaded):
            return None  # checked by the project's own tests
        kind = CallKind.of(job)
        if kind not in self.known:
            if job.x.is_cuda and torch.cuda.is_current_stream_capturing():
                return "a CUDA graph is being recorded before the compiled cell was checked; call the layer once before"
            self.known[kind] = verdict = self._check(cell, job, run, kind)
            if verdict is not None and self.plan.is_loaded and not verdict.startswith(LOOP_FAILS):
                raise UnfitError(verdict)  # retracing the cell may help
            if verdict is not None:
                name = type(cell).__qualname__
                warnings.warn(
                    f"the compiled form of {name} is not used, because {verdict}; the slower loop runs it instead. "
                    f"Please report this cell: its equations are right, the compiler is not",
                    stacklevel=2,
                )
        return self.known[kind]

    def _check(self, cell: Cell, job: ScanJob, run: Run, kind: CallKind) -> Verdict:
        text = " ".join(map(str, (*kind, self.form, _digest_code(job.x.device))))
        if text in load_checks(self.plan):
            return None
        verdict = check_alone(cell, job, run, kind)
        if verdict is None:
            save_check(self.plan, text)
        return verdict


@cache
def _digest_code(device: torch.device) -> str:
    """Return a digest of the code that runs compiled cells: another version of it requires new checks."""
    kernels = Path(__file__).parents[1]
    files = [*sorted(kernels.glob("compiled/*.py")), *sorted(kernels.glob("cpu/*.py")), *list_libraries()]
    if device.type == "cuda":
        files += sorted(kernels.glob("cuda/**/*.cu*"))
    words = [file.read_bytes() for file in files]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return hashlib.sha256(b"".join((*words, name.encode()))).hexdigest()


def check_alone(cell: Cell, job: ScanJob, run: Run, kind: CallKind) -> Verdict:
    """Check a compiled cell in another thread, free of the caller's modes: hooks, autocast, inference mode."""

    def work() -> Verdict:
        with ExitStack() as stack:
            if job.x.is_cuda:
                stack.enter_context(torch.cuda.device(job.x.device))
                stack.enter_context(torch.cuda.stream(stream))
            stack.enter_context(torch.random.fork_rng())  # `project` may draw random numbers
            if autocast is not None:
                stack.enter_context(torch.autocast(job.x.device.type, dtype=autocast))
            stack.enter_context(torch.set_grad_enabled(kind.train))
            return check(cell, job, run, kind)

    autocast = autocast_dtype(job.x.device.type)
    stream = torch.cuda.current_stream(job.x.device) if job.x.is_cuda else None
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, work).result()


def check(cell: Cell, job: ScanJob, run: Run, kind: CallKind) -> Verdict:
    """Compare a compiled cell with the loop; return the difference, or None."""
    case = _Case(cell, job, kind)
    try:
        exact = case.compute(loop.run)
        if case.projects_randomly():
            case.skip_projection()
            exact = case.compute(loop.run)
    except Exception as error:
        return f"{LOOP_FAILS} on random numbers: {_describe(error)}"
    allowed, loops = ALLOWED[kind.dtype], [exact]
    for train in {False, kind.train}:
        try:
            with torch.set_grad_enabled(train):
                ours = case.compute(run)
        except Exception as error:
            return f"it fails: {_describe(error)}"
        name = _differs(ours, loops, allowed)
        for seed in range(len(loops) - 1, TRIES):
            if not name:
                break
            with OtherRounding(ROUNDING[kind.dtype], seed):
                loops.append(case.compute(loop.run))
            name = _differs(ours, loops, allowed)
        if name:
            return f"its {name} differs from the loop's"
    return None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


class OtherRounding(TorchDispatchMode):
    """Perturb the results of operators as much as a different rounding might.

    Args:
        share: The relative size of the perturbation.
        seed: Of the random numbers.
    """

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share, self.random = share, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        if func.overloadpacket.__name__ in ROUNDED and isinstance(first, Tensor) and first.is_floating_point():
            first.mul_(1 + self.share * torch.randn(first.shape, generator=self.random).to(first.device, first.dtype))
        return result


class _Case:
    """A random call of one kind.

    Args:
        cell: The cell.
        job: The call that it represents.
        kind: The kind.
    """

    def __init__(self, cell: Cell, job: ScanJob, kind: CallKind) -> None:
        self.cell, self.kind = cell, kind
        self.random = torch.Generator().manual_seed(0)
        rows = min(job.x.shape[0], MOST_ROWS) if job.x.is_cuda else B
        x = self._draw(job.x, rows, T, *job.x.shape[2:])
        state = tuple(s.detach() + self._draw(s, *s.shape) * 0.3 for s in _start(cell, x, job.state))
        lengths, reset = torch.arange(rows).neg().remainder(T + 1), self._draw_share(x, rows, T) < 0.3
        lengths[0] = T
        keep = tuple((self._draw_share(k, rows, T, *k.shape[2:]) < 0.4).to(k.dtype) for k in job.keep)
        mask = None if job.mask is None else (self._draw_share(x, rows, *job.mask.shape[1:]) < 0.7).to(job.mask.dtype)
        dt = None if job.dt is None else self._draw_share(job.dt, rows, T)
        self.job = ScanJob(
            x,
            state,
            lengths.to(x.device) if kind.lengths else None,
            reset if kind.reset else None,
            dt,
            mask,
            keep,
        )
        own = weights(cell)
        self.fixed = {n for n, w in own.items() if not (w.requires_grad or isinstance(w, nn.Parameter))}
        # weights that are initialised to 0, as in many residual branches, would hide a bug
        self.weights = {
            name: w.detach() + (0.1 * w.detach() + 0.02) * self._draw(w, *w.shape) if w.is_floating_point() else w
            for name, w in own.items()
        }
        self.projects = True

    def _draw(self, like: Tensor, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random).to(like.device, like.dtype)

    def _draw_share(self, like: Tensor, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.random).to(like.device, like.dtype)

    def projects_randomly(self) -> bool:
        """Return whether the cell's `project` draws random numbers."""
        if type(self.cell).project is Cell.project:
            return False
        results = []
        for seed in range(2):
            torch.manual_seed(seed)
            with torch.no_grad():
                results.append(self.cell.project(self.job.x))
        return not torch.equal(*results)

    def skip_projection(self) -> None:
        """Make the cell's input the result of `project`."""
        with torch.no_grad():
            self.job = replace(self.job, x=self.cell.project(self.job.x).detach())
        self.projects = False

    def compute(self, run: Run) -> dict[str, Tensor]:
        """Return outputs, last states and, if gradients are enabled, those of all inputs, by name.

        Args:
            run: The loop, or the compiled cell.
        """
        torch.manual_seed(0)

        def leaf(t: Tensor, is_fixed: bool = False) -> Tensor:
            if not t.is_floating_point():
                return t
            return t.detach().clone().requires_grad_(torch.is_grad_enabled() and not is_fixed)

        own = {name: leaf(w, name in self.fixed) for name, w in self.weights.items()}
        x, state = leaf(self.job.x), tuple(leaf(s) for s in self.job.state)
        view = bind_weights(self.cell, own)
        if not self.projects:
            view.project = lambda x: x  # type: ignore[method-assign]
        y, last = run(view, replace(self.job, x=x, state=state))
        results = {"output": y} | {f"last state {i}": s for i, s in enumerate(last)}
        if torch.is_grad_enabled():
            leaves = {"the input": x} | {f"state {i}": s for i, s in enumerate(state)} | own
            leaves = {name: t for name, t in leaves.items() if t.requires_grad}
            pull = torch.Generator().manual_seed(2)
            loss = sum((r * torch.randn(r.shape, generator=pull).to(r.device, r.dtype)).sum() for r in results.values())
            if isinstance(loss, Tensor) and loss.requires_grad:
                gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
                results |= {
                    f"gradient of {name}": torch.zeros_like(t) if g is None else g
                    for (name, t), g in zip(leaves.items(), gradients, strict=True)
                }
        return {name: r.detach().to(torch.float64) for name, r in results.items()}


def _start(cell: Cell, x: Tensor, like: State) -> State:
    with torch.no_grad():
        return tuple(s.to(t.dtype) for s, t in zip(cell.start(x), like, strict=True))


def _differs(ours: dict[str, Tensor], loops: Sequence[dict[str, Tensor]], allowed: float) -> str:
    """Return the name of the first result that differs by more than rounding errors; empty if none does.

    Args:
        ours: The results.
        loops: Those of the loop, and of the loop with results that are rounded in other ways.
        allowed: The allowed difference, relative to the largest value.
    """
    exact = loops[0]
    for name, mine in ours.items():
        theirs = exact[name]
        if mine.shape != theirs.shape:
            return name
        finite = theirs.isfinite()
        own = max(_distance(other[name], theirs, finite) for other in loops)
        largest = float(theirs[finite].abs().max()) if bool(finite.any()) else 0.0
        if not _distance(mine, theirs, finite) <= 4 * own + allowed * max(largest, 1e-3):
            return name
    return ""


def _distance(a: Tensor, b: Tensor, finite: Tensor) -> float:
    """Return the largest difference where b is finite."""
    return float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0

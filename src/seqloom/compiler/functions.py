"""Trace functions in a step that bring their own derivative: `torch.autograd.Function`, and some of the compiler's.

While a step is traced, the forward of a Function runs as ordinary operators. One node, `seqloom::own_derivative`, ties
its inputs, what it saved and its outputs together. When the derivative of the step is traced, the results of that node
get the backward of the user's class, called with what its forward had saved.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor, fx
from torch.autograd import Function
from torch.utils import _pytree as pytree

from seqloom.compiler.nodes import UnsupportedError

Maybe = Tensor | None


@torch.library.custom_op("seqloom::own_derivative", mutates_args=())
def own_derivative(inputs: list[Tensor], saved: list[Tensor], outputs: list[Tensor], name: str) -> list[Tensor]:
    """Copy the outputs of a function that has a derivative of its own; `name` says which one."""
    return [t.clone() for t in outputs]


@own_derivative.register_fake
def _(inputs: list[Tensor], saved: list[Tensor], outputs: list[Tensor], name: str) -> list[Tensor]:
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in outputs]


class Derivative(Protocol):
    """A backward pass of a function."""

    fixed: frozenset[int]  # the outputs without a derivative
    materializes: bool  # whether missing gradients of outputs are passed as zeros

    def __call__(self, saved: Sequence[Tensor], grads: Sequence[Maybe], needs: Sequence[bool]) -> Sequence[Maybe]:
        """Return the gradients of the inputs from those of the outputs; None for zeros."""
        ...


@dataclass
class DerivativeRule:
    """A derivative that is written as an expression.

    Attributes:
        express: Returns the gradients of the inputs from what was saved and the gradient of the only output.
    """

    express: Callable[..., Sequence[Tensor]]
    fixed: frozenset[int] = frozenset()
    materializes: bool = True

    def __call__(self, saved: Sequence[Tensor], grads: Sequence[Maybe], needs: Sequence[bool]) -> Sequence[Maybe]:
        return self.express(*saved, *grads)


class Context:
    """What the forward of a Function gets as `ctx`, and its backward with other tensors in it.

    Args:
        needs_input_grad: Whether each argument of `apply` needs a gradient.
    """

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        own = self.__dict__
        own["needs_input_grad"], own["_saved"], own["_fixed"] = tuple(needs_input_grad), (), ()
        own["_materializes"] = True

    def save_for_backward(self, *tensors: Maybe) -> None:
        self.__dict__["_saved"] = tensors

    def save_for_forward(self, *tensors: Maybe) -> None:
        """Ignore what forward-mode derivatives would need."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.__dict__["_fixed"] = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise UnsupportedError("step calls an autograd.Function that changes its argument in place (mark_dirty)")

    def set_materialize_grads(self, value: bool) -> None:
        self.__dict__["_materializes"] = value

    @property
    def saved_tensors(self) -> tuple[Maybe, ...]:
        return tuple(self.__dict__["_saved"])


class _Called:
    """One call of a user's Function in a step, which has run its forward.

    Args:
        kind: The class.
        context: Its `ctx`.
        places: Which arguments of `apply` are tensors.
        count: The number of arguments.
        results: What its forward returned.
        outputs: The tensors among them.
        watch: Returns a context in which lines of the backward are recorded.
    """

    def __init__(
        self,
        kind: type[Function],
        context: Context,
        places: Sequence[int],
        count: int,
        outputs: Sequence[Tensor],
        watch: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.kind, self.places, self.count, self.watch = kind, places, count, watch
        self.fixed = frozenset(
            i
            for i, o in enumerate(outputs)
            if any(o is t for t in context.__dict__["_fixed"]) or not o.is_floating_point()
        )
        self.materializes = bool(context.__dict__["_materializes"])
        flat, self.form = pytree.tree_flatten(context.__dict__)
        self.holders = [i for i, v in enumerate(flat) if isinstance(v, Tensor)]
        self.flat = [None if isinstance(v, Tensor) else v for v in flat]
        self.tensors = [flat[i] for i in self.holders]

    def __call__(self, saved: Sequence[Tensor], grads: Sequence[Maybe], needs: Sequence[bool]) -> Sequence[Maybe]:
        flat = list(self.flat)
        for i, t in zip(self.holders, saved, strict=True):
            flat[i] = t
        wanted = [False] * self.count
        for place, need in zip(self.places, needs, strict=True):
            wanted[place] = need
        context = Context(wanted)
        own = pytree.tree_unflatten(flat, self.form)
        context.__dict__.update({n: v for n, v in own.items() if n != "needs_input_grad"})
        kind: Any = self.kind
        is_vjp = kind.backward is Function.backward and kind.vjp is not Function.vjp
        with self.watch():
            found = (kind.vjp if is_vjp else kind.backward)(context, *grads)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) < self.count or any(g is not None for g in found[self.count :]):
            raise UnsupportedError(
                f"the backward of {kind.__qualname__} returns {len(found)} gradients for {self.count} arguments"
            )
        return [found[place] for place in self.places]


_patching = threading.RLock()  # one thread at a time traces a step whose functions are recorded


@dataclass
class FunctionRecorder:
    """Record the Functions that a traced step calls.

    Attributes:
        calls: What was called, by the name in the graph.
    """

    calls: dict[str, Derivative] = field(default_factory=dict)

    @contextmanager
    def record(self, lines: _Lines) -> Iterator[None]:
        """Run every `apply` of this thread here instead of in torch.

        Args:
            lines: What records the lines of the step.
        """
        thread, apply = threading.get_ident(), Function.apply.__func__  # type: ignore[attr-defined]

        def run(kind: type[Function], *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as in torch
            if threading.get_ident() != thread:
                return apply(kind, *args, **named)
            return self._run(lines, kind, args, named)

        with _patching, mock.patch.object(Function, "apply", classmethod(run)):
            yield

    def _run(self, lines: _Lines, kind: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:  # noqa: ANN401
        is_inner = lines.is_inside
        if not is_inner:
            lines.check_gradients(kind.__qualname__)
        has_setup = kind.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context
        if named or has_setup:
            bound = inspect.signature(kind.forward).bind(*(args if has_setup else (None, *args)), **named)
            bound.apply_defaults()
            if bound.kwargs:
                raise UnsupportedError(f"{kind.__qualname__} has arguments that only a name can give")
            args = bound.args if has_setup else bound.args[1:]
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        context = Context(
            [i in places and args[i].is_floating_point() and lines.has_gradients for i in range(len(args))]
        )
        with lines.enter_function():
            if has_setup:
                result = kind.forward(*args)
                kind.setup_context(context, tuple(args), result)
            else:
                result = kind.forward(context, *args)
        if is_inner:  # the outer Function has the derivative
            return result
        results = result if isinstance(result, tuple) else (result,)
        outputs = [r for r in results if isinstance(r, Tensor)]
        called = _Called(kind, context, places, len(args), outputs, lines.renew)
        name = f"{kind.__qualname__} {len(self.calls)}"
        self.calls[name] = called
        copies = iter(own_derivative([args[i] for i in places], called.tensors, outputs, name))
        after = tuple(next(copies) if isinstance(r, Tensor) else r for r in results)
        return after if isinstance(result, tuple) else after[0]


class _Lines(Protocol):
    """See `lines.Lines`."""

    has_gradients: bool
    is_inside: bool

    def check_gradients(self, name: str) -> None: ...
    def enter_function(self) -> AbstractContextManager[None]: ...
    def renew(self) -> AbstractContextManager[object]: ...


class Differentiated(fx.Interpreter):
    """Run a traced step with the derivatives of its functions attached.

    Args:
        plain: The step.
        calls: The derivatives by the names in the graph.
    """

    def __init__(self, plain: fx.GraphModule, calls: Mapping[str, Derivative]) -> None:
        super().__init__(plain)
        self.calls = calls

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401  # as in torch
        if not is_own(target):
            return super().call_function(target, args, kwargs)
        inputs, saved, outputs, name = args
        return attach(self.calls[name], inputs, saved, outputs)


def is_own(target: object) -> bool:
    """Return whether a node's target is `own_derivative`."""
    return target is torch.ops.seqloom.own_derivative.default


def attach(
    derivative: Derivative, inputs: Sequence[Tensor], saved: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Tensor]:
    """Return outputs whose derivative is the given one."""
    free = [o for i, o in enumerate(outputs) if i not in derivative.fixed]
    own = iter(_Attached.apply(derivative, len(inputs), outputs, *inputs, *saved, *free) if free else ())
    return [o.detach() if i in derivative.fixed else next(own) for i, o in enumerate(outputs)]


class _Attached(Function):
    """Inputs, saved tensors and outputs -> the outputs."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        derivative: Derivative,
        count: int,
        outputs: Sequence[Tensor],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.derivative, ctx.count, ctx.total = derivative, count, len(tensors)
        ctx.forms = [(o.shape, o.dtype, o.device) for o in outputs]
        free = len(outputs) - len(derivative.fixed)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors[count : len(tensors) - free])
        return tuple(t.clone() for t in tensors[len(tensors) - free :])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        *grads: Maybe,
    ) -> tuple[Maybe, ...]:
        derivative, given = ctx.derivative, iter(grads)
        pulls = [None if i in derivative.fixed else next(given) for i in range(len(ctx.forms))]
        if derivative.materializes:
            pulls = [
                torch.zeros(shape, dtype=dtype, device=device) if g is None else g
                for g, (shape, dtype, device) in zip(pulls, ctx.forms, strict=True)
            ]
        needs = ctx.needs_input_grad[3 : 3 + ctx.count]
        found = derivative(ctx.saved_tensors, pulls, needs)
        gradients = [g if need else None for g, need in zip(found, needs, strict=True)]
        return None, None, None, *gradients, *[None] * (ctx.total - ctx.count)

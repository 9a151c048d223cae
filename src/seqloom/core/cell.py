"""The contract of a cell: the equations of one time step."""

from __future__ import annotations

import inspect
import itertools
import math
import weakref
from abc import ABCMeta
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.types import Device

from seqloom.core.arguments import check_values
from seqloom.core.checks import check_placement, read_state
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.core.precision import parameter_defaults

State = tuple[Tensor, ...]
_numbers = itertools.count()
by_handle: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()


class _NoHome:
    """Placeholder for the layer of a cell that must not read weights from any layer."""

    def __init__(self) -> None:
        self._parameters: dict[str, nn.Parameter] = {}

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this cell has no weight {name!r}: it is part of a copy of a layer that was not called yet, such as a "
            "replica of torch.nn.DataParallel; call the layer instead of its cell"
        )


NO_HOME = _NoHome()


class _CellType(ABCMeta):
    """Metaclass that accepts torch's `device=` and `dtype=` for every cell, even if its `__init__` lacks them."""

    def __call__(
        cls,
        *args: object,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **settings: object,
    ) -> Any:  # noqa: ANN401  # lets type checkers take the signature of `__init__`
        check_values(cls, args, settings)
        if device is None and dtype is None:
            cell = super().__call__(*args, **settings)
        else:
            with parameter_defaults(device, dtype):
                cell = super().__call__(*args, **settings)
        cell.__dict__["_shapes"] = {name: p.shape for name, p in cell._parameters.items() if p is not None}
        cell.__dict__["_known"] = {}  # weights that were checked, see resolve_weights; views share it
        return cell

    @property
    def __signature__(cls) -> inspect.Signature:
        own = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]  # type: ignore[misc]
        more = inspect.signature(_CellType.__call__).parameters
        ours = [more[name] for name in ("device", "dtype") if name not in {p.name for p in own}]
        rest = [p for p in own if p.kind is p.VAR_KEYWORD]
        return inspect.Signature([*(p for p in own if p not in rest), *ours, *rest])


class Cell(nn.Module, metaclass=_CellType):
    """Base class of recurrent cells: the equations of one time step.

    A subclass passes a `name`, by which layers and the command line find it, and defines `step`; all other methods
    have defaults. `scan` runs a cell over a sequence, `Recurrent` stacks it into layers. Shapes below: B rows, T steps,
    D input features, P projected features, H units.

    `step` may declare two more parameters: `mask` (B, H), the recurrent dropout that multiplies h where it enters a
    product, and `dt` (B,), the time since the previous step. It must treat the rows of a batch independently.

    Every cell also takes `device=` and `dtype=`, as modules of torch do, without naming them in its `__init__`.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.

    Attributes:
        registry: Every named cell class by its name.
        output_size: Number of output features; `hidden_size` unless a subclass changes it.
        takes: Which of "mask" and "dt" the cell's `step` declares.
        year: Year of the cell's publication; 0 if unknown.
        idea: The group of cells that it belongs to in `seqloom list cells`, such as "one gate"; "" if none.
        parent: Name of the cell that it changes; "" if none.
        memory: Index of the state that carries the memory, for modules that set a first state, such as a decoder. It is
            0 unless the first state is only the output, which no step reads.

    Raises:
        UserError: If a size is not positive, or the name belongs to a cell of seqloom.
        UserTypeError: If a size is not an int.

    Example:
        >>> class Leaky(seqloom.Cell, name="leaky"):
        ...     def __init__(self, input_size, hidden_size):
        ...         super().__init__(input_size, hidden_size)
        ...         self.W = torch.nn.Linear(input_size, hidden_size)
        ...
        ...     def project(self, x):
        ...         return self.W(x)
        ...
        ...     def step(self, x, state):
        ...         (h,) = state
        ...         h = 0.9 * h + 0.1 * torch.tanh(x)
        ...         return h, (h,)
        >>> y, state = seqloom.Recurrent("leaky", 3, 8)(torch.randn(5, 2, 3))  # (T, B, D)
        >>> y.shape
        torch.Size([5, 2, 8])
    """

    registry: ClassVar[dict[str, type[Cell]]] = {}
    name: ClassVar[str] = ""
    takes: ClassVar[frozenset[str]] = frozenset()
    year: ClassVar[int] = 0
    idea: ClassVar[str] = ""
    parent: ClassVar[str] = ""
    memory: ClassVar[int] = 0

    def __init_subclass__(
        cls, name: str = "", year: int = 0, idea: str = "", parent: str = "", **kwargs: object
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.year, cls.idea, cls.parent = year, idea, parent
        cls.takes = frozenset(inspect.signature(cls.step).parameters) & {"mask", "dt"}
        cls.name = name  # not inherited: a subclass has other equations, so its parent's kernels do not apply
        if name:
            owner = Cell.registry.get(name)
            if owner is not None and owner.__module__.startswith("seqloom.cells."):
                raise UserError(
                    f"cell name {name!r} of {cls.__qualname__} belongs to {owner.__qualname__}; choose another name"
                )
            Cell.registry[name] = cls

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        for argument, value in (("input_size", input_size), ("hidden_size", hidden_size)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserTypeError(f"{argument} must be an int, got {value!r}")
            if value <= 0:
                raise UserError(f"{argument} must be greater than 0, got {value}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.output_size = hidden_size
        self._register_handle()

    def project(self, x: Tensor, /) -> Tensor:
        """Compute the part that needs no state, for all steps at once: (B, T, D) -> (B, T, P). By default x itself."""
        return x

    def initial_state(self, x: Tensor, /) -> State:
        """Return the state before the first step: a tuple of (B, ...) tensors, by default one of zeros (B, H).

        Args:
            x: (B, ..., D); determines batch size, device and dtype.
        """
        return (x.new_zeros(x.shape[0], self.hidden_size),)

    def step(self, x: Tensor, state: State, /) -> tuple[Tensor, State]:  # so that a cell may choose the names
        """Run one step.

        Args:
            x: (B, P), one step of what `project` returns.
            state: The state before the step.

        Returns:
            The output (B, H) and the state after the step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step(x, state)")

    def whole_step(self, x: Tensor, state: State) -> State:
        """Project an input (B, D), run one step and return the new state."""
        return self.step(self.project(x.unsqueeze(1)).squeeze(1), state)[1]

    def output(self, state: State) -> Tensor:
        """Return the output (B, H) of a state; called after zoneout has changed the state."""
        return state[0]

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """Return the values inside a step by the names of the equations, for `trace`."""
        return {}

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        """Set the bias of the gate that keeps the memory, so that the gate starts at sigmoid(bias).

        Args:
            bias: (H,).
            coupled: Also set the input gate, if the cell has a separate one, to start at sigmoid(-bias).

        Raises:
            UserError: If the cell has no such gate, or was constructed without biases.
        """
        raise UserError(f"cell {self.name or type(self).__name__!r} has no gate that keeps its memory")

    def start(self, x: Tensor) -> State:
        """Return the state that a sequence starts from: a learned one, or else `initial_state(x)`."""
        default = self.initial_state(x)
        if not self.__dict__.get("learned_states"):
            return default
        learned = (self.state_of(i, getattr(self, f"initial_{i}")) for i in range(len(default)))
        return tuple(p.to(d.dtype).expand(d.shape) for p, d in zip(learned, default, strict=True))

    def learn_initial_state(self) -> None:
        """Make the initial state a learned parameter, starting from its current value."""
        probe = next(self.parameters(), torch.empty(0)).new_zeros(1, self.input_size)
        states = self.initial_state(probe)
        for i, s in enumerate(states):
            self.register_parameter(f"initial_{i}", nn.Parameter(self.parameter_of(i, s[0].detach()).clone()))
        self.learned_states = len(states)

    def state_of(self, index: int, parameter: Tensor) -> Tensor:
        """Return the part of the initial state that a learned parameter represents; by default the parameter itself."""
        return parameter

    def parameter_of(self, index: int, state: Tensor) -> Tensor:
        """Return the parameter that represents a part of the initial state. This is the inverse of `state_of`."""
        return state

    @torch.no_grad()
    def restart(self) -> None:
        """Reinitialise every parameter, as in the constructor."""
        for module in (self, *self.children()):
            draw = getattr(module, "reset_parameters", None)
            if callable(draw):
                draw()
        for i in range(self.__dict__.get("learned_states", 0)):
            initial = getattr(self, f"initial_{i}")
            initial.copy_(self.parameter_of(i, self.initial_state(initial.new_zeros(1, self.input_size))[i][0]))

    def uniform_(self, bound: float | None = None) -> None:
        """Initialise as torch.nn's recurrent layers do: every parameter uniform in +-bound, 1/sqrt(H) by default."""
        bound = 1 / math.sqrt(self.hidden_size) if bound is None else bound
        for name, p in self.own_parameters().items():
            if not name.startswith("initial_"):
                nn.init.uniform_(p, -bound, bound)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Return the cell's direct parameters by name, including those that a layer holds (see `adopt`)."""
        own: dict[str, nn.Parameter] = {}
        names = self.__dict__.get("_names")
        if names:
            held = self.__dict__["_home"].__dict__["_parameters"]  # faster than an attribute of the layer
            for mine, theirs in names.items():
                p = None if mine in self.__dict__ else held.get(theirs)
                own[mine] = getattr(self, mine) if p is None else p
        return own | dict(self.named_parameters(recurse=False)) if self._parameters else own

    def forward(self, input: Tensor, hx: Tensor | State | None = None) -> Tensor | State:
        """Run one step with the interface of torch.nn.GRUCell and LSTMCell.

        Args:
            input: (B, D) or (D,).
            hx: The state before the step: a tensor, or a tuple if the cell has several; zeros (or the learned initial
                state) if omitted. Without the batch dimension if `input` has none.

        Returns:
            The state after the step, in the form of `hx`.

        Raises:
            InputError: If a shape or device does not fit.
            UserTypeError: If `input` or `hx` is not made of tensors.
        """
        D = self.input_size
        if not isinstance(input, Tensor):
            raise UserTypeError(f"input must be a Tensor (B, {D}) or ({D},), got a {type(input).__name__}")
        if input.dim() not in (1, 2) or input.shape[-1] != D:
            raise InputError(f"input must be (B, {D}) or ({D},), got {tuple(input.shape)}")
        self.check_type(input)
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        before = self.start(x)
        if hx is not None:
            before = read_state(hx, [tuple(s.shape if batched else s.shape[1:]) for s in before], x)
            before = before if batched else tuple(s.unsqueeze(0) for s in before)
        after = self.whole_step(x, before)
        after = after if batched else tuple(s.squeeze(0) for s in after)
        return after[0] if len(after) == 1 else after

    def check_type(self, x: Tensor) -> None:
        """Raise an InputError if the dtype or device of x differs from that of the weights."""
        weight = next((p for p in self._parameters.values() if p is not None), None)
        if weight is None:  # a layer or a submodule may hold the parameters
            weight = next(iter((self.own_parameters() | dict(self.named_parameters())).values()), None)
        if weight is not None:
            check_placement(x, weight)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    def adopt(self, home: nn.Module, names: Mapping[str, str]) -> None:
        """Move this cell's direct parameters to a layer, which holds them under flat names such as weight_ih_l0.

        Args:
            home: The layer. The cell's attributes read the parameters from there.
            names: The layer's name for each of the cell's parameters.
        """
        for mine, theirs in names.items():
            home.register_parameter(theirs, self._parameters.pop(mine))
        self.__dict__["_home"] = home
        self.__dict__["_names"] = dict(names)

    def _register_handle(self) -> None:
        """Assign the number by which a compiled graph refers to this cell."""
        self.handle = next(_numbers)
        by_handle[self.handle] = self

    def _replicate_for_data_parallel(self) -> Cell:
        """Return a replica that reads no weights until the replica of its layer takes it (see `take_cells`)."""
        replica: Cell = super()._replicate_for_data_parallel()
        if "_home" in replica.__dict__:
            replica.__dict__["_home"] = NO_HOME
        return replica

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register_handle()  # a copy is a different cell

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # parameters, modules and what a subclass holds
        names = self.__dict__.get("_names")
        if names is not None and name in names:
            return getattr(self.__dict__["_home"], names[name])
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401  # of any attribute
        names = self.__dict__.get("_names")
        if names is not None and name in names:  # an attribute of the cell would hide the layer's parameter
            setattr(self.__dict__["_home"], names[name], value)
        else:
            super().__setattr__(name, value)

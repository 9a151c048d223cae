"""The contract of a cell: the equations of one time step."""

from __future__ import annotations

import inspect
import itertools
import math
import weakref
from abc import ABCMeta
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seqloom.core.checks import check_placement, read_state
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.core.precision import parameter_defaults

State = tuple[Tensor, ...]
_numbers = itertools.count()
by_handle: weakref.WeakValueDictionary[int, Cell] = weakref.WeakValueDictionary()


class _Made(ABCMeta):
    """Every cell may be made with torch's device= and dtype=, whether or not it knows of them."""

    def __call__(cls, *args: Any, device: Any = None, dtype: torch.dtype | None = None, **settings: Any) -> Any:
        if device is None and dtype is None:
            made = super().__call__(*args, **settings)
        else:
            with parameter_defaults(device, dtype):
                made = super().__call__(*args, **settings)
        made.__dict__["_shapes"] = {name: p.shape for name, p in made._parameters.items() if p is not None}
        made.__dict__["_known"] = {}  # weights that were checked, see resolve_weights; views share it
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        own = [p for p in inspect.signature(cls.__init__).parameters.values() if p.name != "self"]  # type: ignore[misc]
        more = inspect.signature(_Made.__call__).parameters
        ours = [more[name] for name in ("device", "dtype") if name not in {p.name for p in own}]
        rest = [p for p in own if p.kind is p.VAR_KEYWORD]
        return inspect.Signature([*(p for p in own if p not in rest), *ours, *rest])


class Cell(nn.Module, metaclass=_Made):
    """One time step. A subclass names itself and writes `step`; the rest has defaults.

        class MyCell(Cell, name="my_cell"):
            def __init__(self, input_size, hidden_size): ...
            def step(self, x, state): ...            # (B, P), state -> (B, H), state

    `step` may ask for two more things by naming them: `mask`, the recurrent dropout that
    multiplies h where it enters a product, and `dt`, the time since the step before.
    Rows of a batch never mix: `step` treats each on its own.
    """

    registry: ClassVar[dict[str, type[Cell]]] = {}
    name: ClassVar[str] = ""
    takes: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.takes = frozenset(inspect.signature(cls.step).parameters) & {"mask", "dt"}
        cls.name = name  # a subclass without one is another cell: its parent's kernels are not its own
        if name:
            taken = Cell.registry.get(name)
            if taken is not None and taken.__module__.startswith("seqloom.cells."):
                raise UserError(
                    f"cell name {name!r} of {cls.__qualname__} belongs to {taken.__qualname__}; take another"
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
        self._sign_in()

    def project(self, x: Tensor) -> Tensor:
        """What needs no state, for all steps at once: (B, T, D) -> (B, T, P)."""
        return x

    def initial_state(self, x: Tensor) -> State:
        """The state before the first step; x is (B, ..., D) and gives batch, device, dtype."""
        return (x.new_zeros(x.shape[0], self.hidden_size),)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: (B, P), state -> output (B, H), new state."""
        raise NotImplementedError(f"{type(self).__name__} has no step(x, state)")

    def whole_step(self, x: Tensor, state: State) -> State:
        """One step of an input as it comes: (B, D), state -> new state."""
        return self.step(self.project(x.unsqueeze(1)).squeeze(1), state)[1]

    def output(self, state: State) -> Tensor:
        """The output that belongs to a state, for a state that zoneout has changed."""
        return state[0]

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """What happens inside a step, by the names of the equations; shown by `trace`."""
        return {}

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        """Set the gate that keeps the memory to start at sigmoid(bias), a value for each unit.

        `coupled` also shuts the gate that writes, where the cell has one of its own.
        """
        raise UserError(f"cell {self.name or type(self).__name__!r} has no gate that keeps its memory")

    def start(self, x: Tensor) -> State:
        """The state a sequence starts from: the learned one, if there is one."""
        default = self.initial_state(x)
        if not self.__dict__.get("learned_states"):
            return default
        learned = (self.state_of(i, getattr(self, f"initial_{i}")) for i in range(len(default)))
        return tuple(p.to(d.dtype).expand(d.shape) for p, d in zip(learned, default, strict=True))

    def learn_initial_state(self) -> None:
        """Make the initial state a parameter, starting from where it was."""
        probe = next(self.parameters()).new_zeros(1, self.input_size)
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
        """Draw every parameter anew, as when the cell was made."""
        for module in (self, *self.children()):
            draw = getattr(module, "reset_parameters", None)
            if callable(draw):
                draw()
        for i in range(self.__dict__.get("learned_states", 0)):
            initial = getattr(self, f"initial_{i}")
            initial.copy_(self.parameter_of(i, self.initial_state(initial.new_zeros(1, self.input_size))[i][0]))

    def uniform_(self, bound: float | None = None) -> None:
        """torch.nn's start for recurrent layers: every parameter uniform in +-1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size) if bound is None else bound
        for name, p in self.own_parameters().items():
            if not name.startswith("initial_"):
                nn.init.uniform_(p, -bound, bound)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """This cell's own parameters, wherever they are kept, without those of its modules."""
        kept = {name: getattr(self, name) for name in self.__dict__.get("_names", ())}
        return kept | dict(self.named_parameters(recurse=False))

    def forward(self, input: Tensor, hx: Tensor | State | None = None) -> Tensor | State:
        """One step as torch.nn.GRUCell and LSTMCell take it: (B, D) or (D,) -> the new state."""
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
            given = read_state(hx, [tuple(s.shape if batched else s.shape[1:]) for s in before], x)
            before = given if batched else tuple(s.unsqueeze(0) for s in given)
        after = self.whole_step(x, before)
        after = after if batched else tuple(s.squeeze(0) for s in after)
        return after[0] if len(after) == 1 else after

    def check_type(self, x: Tensor) -> None:
        """Refuse an input of another type or device than that of the weights."""
        weight = next((p for p in self._parameters.values() if p is not None), None)
        if weight is None:  # it may be kept by a layer, or by modules of the cell
            weight = next(iter((self.own_parameters() | dict(self.named_parameters())).values()), None)
        if weight is not None:
            check_placement(x, weight)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    # A layer keeps the parameters of its cells under its own flat names (weight_ih_l0); a cell
    # that has been adopted finds them there.

    def adopt(self, home: nn.Module, names: Mapping[str, str]) -> None:
        """Move this cell's own parameters to `home`, under the names given there."""
        for mine, theirs in names.items():
            home.register_parameter(theirs, self._parameters.pop(mine))
        self.__dict__["_home"] = home
        self.__dict__["_names"] = dict(names)

    def _sign_in(self) -> None:
        """Take a number by which a compiled graph can name this cell."""
        self.handle = next(_numbers)
        by_handle[self.handle] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._sign_in()  # a copy is a cell of its own

    def __getattr__(self, name: str) -> Any:
        names = self.__dict__.get("_names")
        if names is not None and name in names:
            return getattr(self.__dict__["_home"], names[name])
        return super().__getattr__(name)

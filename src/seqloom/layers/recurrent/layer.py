"""Any cell as a layer with torch.nn.GRU's arguments and results."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Self, TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell, State
from seqloom.core.checks import check_placement
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.core.init import Init
from seqloom.core.job import ScanJob, reverse_steps
from seqloom.core.precision import parameter_defaults
from seqloom.core.suggest import suggest
from seqloom.kernels.aten.cudnn import flatten_parameters
from seqloom.kernels.runner import run_job
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.formats import PaddedBatch, read
from seqloom.layers.recurrent.gpu.row_order import longest_first, pays
from seqloom.layers.recurrent.gpu.streams import Work, beside
from seqloom.layers.recurrent.gpu.wavefront import wave, worth
from seqloom.layers.recurrent.states import aside, states_in, states_out
from seqloom.layers.recurrent.streaming import Streaming


class Options(TypedDict, total=False):
    """The settings that every named layer takes beside torch's and its cell's; `Recurrent` explains them."""

    dropouts: Dropouts
    init: Init
    learn_initial_state: bool
    kernel: str
    check: bool


class Recurrent(Streaming):
    """A cell over time, in layers and directions: a drop-in for torch.nn.RNN, LSTM and GRU.

    Every argument up to `dtype` is torch's. Parameters are named as torch names them
    (`weight_ih_l0`, `weight_hh_l0_reverse`), so state_dicts go both ways. `settings` are those of
    the cell. Ours: `dropouts` and `init` (records), `learn_initial_state`, `kernel` ("auto", or
    one by name), and `check` (look for NaN in the input; costs a synchronisation on a GPU).
    """

    def __init__(
        self,
        cell: str | type[Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        dropouts: Dropouts = Dropouts(),
        init: Init = Init(),
        learn_initial_state: bool = False,
        kernel: str = "auto",
        check: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        flags = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise UserTypeError(f"{name} must be True or False, got {flag!r}")
        if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
            raise UserError(f"num_layers must be a whole number of at least 1, got {num_layers!r}")
        if isinstance(dropout, bool) or not (isinstance(cast(Any, dropout), Real) and 0 <= dropout <= 1):
            raise UserError(f"dropout must be a number between 0 and 1, got {dropout!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        self.dropouts, self.init, self.kernel, self.check = dropouts, init, kernel, check
        kind = find_cell(cell)
        if "bias" in inspect.signature(kind.__init__).parameters:
            settings["bias"] = bias
        elif not bias:
            raise UserError(f"bias=False, but cell {kind.name or kind.__name__!r} has no such setting")
        self.cells = nn.ModuleList()
        width = input_size
        with parameter_defaults(device, dtype):
            for layer in range(num_layers):
                for end in ("", "_reverse")[: 1 + bidirectional]:
                    made = _make(kind, width, hidden_size, settings)
                    init.apply(made)
                    if learn_initial_state:
                        made.learn_initial_state()
                    made.adopt(
                        self,
                        {
                            name: f"{name}_l{layer}{end}"
                            for name in list(made._parameters)
                            if made._parameters[name] is not None
                        },
                    )
                    self.cells.append(made)
                width = made.output_size * (1 + bidirectional)
        self.output_size, self.causal = width, not bidirectional
        self.proj_size = getattr(made, "proj_size", 0)
        dropouts.check(made)
        self.flatten_parameters()

    def cell_at(self, index: int) -> Cell:
        """The cell of layer index // ways, direction index % ways."""
        if index < 0:
            index += len(self.cells)
        return cast(Cell, self.__dict__["_modules"]["cells"]._modules[str(index)])  # faster than self.cells[index]

    def forward(  # type: ignore[override]  # torch's names come first
        self,
        input: Any,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        state: Tensor | State | None = None,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[Any, Any]:
        """(T, B, D), or (B, T, D) with batch_first, or (T, D), or packed, or nested -> y, last state.

        `state` is another name of `hx`, the one that all layers have.

        `lengths` (B,): the real steps of each row, 0 allowed. `reset` (as the input, without D):
        True where a new sequence starts inside a row. `timespans` (likewise): time since the step
        before, for cells that know time.
        """
        if state is not None:
            if hx is not None:
                raise InputError("hx and state are two names of one thing, and both were given; give one")
            hx = state
        if lengths is None and reset is None and timespans is None:
            done = self.only_step(input, hx)
            if done is not None:
                return done
        return self.run_with(run_job, input, hx, lengths, reset=reset, timespans=timespans)

    def run_with(
        self,
        run: Callable[..., tuple[Tensor, State]],
        input: Any,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[Any, Any]:
        """`forward`, with `run` in place of the scan of each layer and direction."""
        batch = read(input, lengths, self.batch_first, self.input_size, self.check)
        weight = self._weight()
        check_placement(batch.x, weight)
        if run is run_job and pays(batch, self.cell_at(0), self.kernel):
            batch = longest_first(batch)
        if batch.x.dtype != weight.dtype:  # under autocast
            batch = replace(batch, x=batch.x.to(weight.dtype))
        x = batch.x
        states = states_in(hx, batch, [self.cell_at(i) for i in range(len(self.cells))])
        flags, dt = self._aside("reset", reset, batch), self._aside("timespans", timespans, batch)
        given = {"lengths": batch.lengths, "reset": flags, "dt": dt}
        ends: list[State] = []
        ways = 1 + self.bidirectional
        if run is run_job and ways == 1 and worth(self.cell_at(0), x, self.num_layers):
            works = [self._work(i, x, states, given) for i in range(self.num_layers)]
            x, ends = wave(works, self.kernel, lambda y: F.dropout(y, self.dropout, self.training).to(weight.dtype))
            return batch.restore(x), states_out(ends, batch)
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = x.to(weight.dtype)
            outputs: list[Tensor] = []
            with beside([self._work(i, x, states, given) for i in range(layer * ways, (layer + 1) * ways)]) as placed:
                for place, work in placed:
                    with place:
                        y, end = self._one(run, work, bool(outputs))
                    outputs.append(y)
                    ends.append(end)
            x = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        return batch.restore(x), states_out(ends, batch)

    def _work(self, i: int, x: Tensor, states: list[State] | None, given: dict[str, Tensor | None]) -> Work:
        """One layer in one direction, with its noise: all that it needs is there before it begins."""
        cell = self.cell_at(i)
        state = cell.start(x) if states is None else states[i]
        mask = self.dropouts.mask(cell, x, self.training)
        keep = self.dropouts.keep(x, state, self.training)
        return Work(cell, ScanJob(x, state, mask=mask, keep=keep, **given), self.dropouts.dropped(cell, self.training))

    def _one(self, run: Callable[..., tuple[Tensor, State]], work: Work, backwards: bool) -> tuple[Tensor, State]:
        job = work.job.reverse() if backwards else work.job
        y, end = run(work.cell, job, self.kernel, work.values)
        return (reverse_steps(y, job.lengths) if backwards else y), end

    def _aside(self, name: str, given: Tensor | None, batch: PaddedBatch) -> Tensor | None:
        if given is not None and name == "timespans" and "dt" not in self.cell_at(0).takes:
            raise InputError(f"timespans were given, but cell {self.cell_at(0).name!r} knows no time; take 'ode_gru'")
        return None if given is None else aside(name, given, batch, self.batch_first)

    def _weight(self) -> Tensor:
        """Any of them: under autocast a layer still carries its state in the type of its weights."""
        own = next((p for p in self._parameters.values() if p is not None), None)
        return next(self.parameters()) if own is None else own  # a person's cell may have modules alone

    def flatten_parameters(self) -> None:
        """On a GPU, move the weights of torch's cells into one piece of memory each, as cuDNN wants them.

        Done whenever the layer is moved; torch.nn's layers have it, so code calls it too.
        """
        for i in range(len(self.cells)):
            flatten_parameters(self.cell_at(i))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.flatten_parameters()
        return self

    def reset_parameters(self) -> None:
        """Draw every cell's parameters anew."""
        for i in range(len(self.cells)):
            self.cell_at(i).restart()
            self.init.apply(self.cell_at(i))

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as torch.nn has it."""
        return [list(self.cell_at(i).own_parameters().values()) for i in range(len(self.cells))]

    # torch.ao.quantization sets `qconfig` on every module, and then quantises torch.nn's own classes only.
    @property
    def qconfig(self) -> Any:
        if "_qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["_qconfig"]

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        self.__dict__["_qconfig"] = value
        warnings.warn(
            f"torch.ao.quantization leaves this {type(self).__name__} in floating point: it quantises torch.nn's own "
            "layers only. To quantise an RNN, LSTM or GRU, convert it first: seqloom.convert(model, to='torch')",
            stacklevel=2,
        )

    @qconfig.deleter
    def qconfig(self) -> None:
        del self.__dict__["_qconfig"]

    def extra_repr(self) -> str:
        shown = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "kernel": "auto",
        }
        changed = [f"{name}={getattr(self, name)!r}" for name, usual in shown.items() if getattr(self, name) != usual]
        return ", ".join([str(self.input_size), str(self.hidden_size), *changed])


def _make(kind: type[Cell], input_size: int, hidden_size: int, settings: dict[str, Any]) -> Cell:
    known = [n for n in inspect.signature(kind.__init__).parameters if n not in ("self", "input_size", "hidden_size")]
    wrong = [n for n in settings if n not in known]
    if wrong:
        name, ours = kind.name or kind.__name__, inspect.signature(Recurrent.__init__).parameters
        hint = suggest(wrong[0], [*known, *ours]) or f"it has: {', '.join(known) or 'none'}"
        raise UserTypeError(f"cell {name!r} has no setting {wrong[0]!r}; {hint}")
    return kind(input_size, hidden_size, **settings)

"""Any cell as a layer with torch.nn.GRU's arguments and results."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.types import Device

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell, State
from seqloom.core.checks import check_placement, read_lengths
from seqloom.core.errors import InputError, UserError, UserTypeError
from seqloom.core.init import Init
from seqloom.core.job import ScanJob, reverse_steps
from seqloom.core.precision import parameter_defaults
from seqloom.core.weights import take_cells
from seqloom.kernels.aten.cudnn import flatten_parameters
from seqloom.kernels.parallel.experience import check_parallel, find_steps
from seqloom.kernels.runner import run_job
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.formats import SequencesT, read_input
from seqloom.layers.layer import Layer, StateT, map_state
from seqloom.layers.norms import make_norm
from seqloom.layers.recurrent.gpu.row_order import should_sort, sort_longest_first
from seqloom.layers.recurrent.gpu.streams import CellJob, assign_streams
from seqloom.layers.recurrent.gpu.wavefront import run_wavefront, should_use_wavefront
from seqloom.layers.recurrent.make import make_cell
from seqloom.layers.recurrent.plans import try_plan
from seqloom.layers.recurrent.streaming import is_compiling, try_engine_step

REPR_DEFAULTS: dict[str, Any] = {
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
}
REPR_DEFAULTS |= {"residual": False, "stack_norm": None, "kernel": "auto", "parallel": "auto"}


class Recurrent(Layer):
    """Run a cell over time, in stacked layers and one or two directions: a drop-in for torch.nn.RNN, LSTM and GRU.

    Parameters have torch's names (`weight_ih_l0`, `weight_hh_l0_reverse`), so a state_dict loads both ways.

    Args:
        cell: The name of a cell ("gru", "attn_rnn"), a subclass of `Cell`, or "path/to/file.py:MyCell".
        input_size: Features of the input, D.
        hidden_size: Units of each layer and direction, H.
        num_layers: Number of stacked layers.
        bias: Whether the cells have biases.
        batch_first: Whether batches are (B, T, D) instead of (T, B, D). States have the batch second either way.
        dropout: Share of the outputs of every layer but the last that is dropped in training.
        bidirectional: Whether each layer has a second cell that reads backwards; outputs are then 2 H wide.
        device: Device of the parameters.
        dtype: Type of the parameters.
        dropouts: Dropout inside the recurrence, see `Dropouts`.
        init: How the weights start, see `Init`.
        learn_initial_state: Whether the first state is a parameter.
        residual: Whether every layer after the first adds its input to its output, so that deep stacks train.
        stack_norm: What normalises the input of every layer after the first: "rms", "layer" or "batch" (over all real
            steps of the batch), or None.
        heads: Number of cells side by side that share the units; recurrent weights are then block-diagonal. For
            "attn_rnn" it sets the cell's attention heads instead.
        kernel: "auto" for the fastest kernel that fits, or a kernel's name; `seqloom.explain` shows which one runs.
        parallel: Whether a sequence may be divided into chunks that run in parallel: "auto" on a GPU, where it is long
            enough and the cell forgets its state; "never"; or the steps of a chunk. Results differ by rounding errors;
            a sequence whose chunks do not agree runs as a whole. `seqloom.explain` shows what happened.
        check: Whether to raise an error for NaN and infinity in the input; synchronises with a GPU.
        **settings: Settings of the cell, such as `slots` of "attn_rnn".

    Raises:
        ValueError: If an argument has a value that does not fit.
        TypeError: If the cell has no such setting.

    Example:
        >>> layer = seqloom.Recurrent("gru", 8, 16, num_layers=2, batch_first=True)
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D)
        >>> y.shape, state.shape
        (torch.Size([3, 5, 16]), torch.Size([2, 3, 16]))
    """

    prepared = ("_stack", "_plans")

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
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        dropouts: Dropouts = Dropouts(),
        init: Init = Init(),
        learn_initial_state: bool = False,
        residual: bool = False,
        stack_norm: str | None = None,
        heads: int | None = None,
        kernel: str = "auto",
        parallel: str | int = "auto",
        check: bool = False,
        **settings: Any,  # noqa: ANN401  # of any cell; object would refuse an unpacked dict
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.residual, self.stack_norm = bidirectional, residual, stack_norm
        self.dropouts, self.init, self.kernel, self.check = dropouts, init, kernel, check
        check_parallel(parallel)
        self.parallel = parallel
        kind = find_cell(cell)
        settings |= {} if heads is None else {"heads": heads}
        if "bias" in inspect.signature(kind.__init__).parameters:
            settings["bias"] = bias
        elif not bias:
            raise UserError(f"bias=False, but cell {kind.name or kind.__name__!r} has no such setting")
        self.cells = nn.ModuleList()
        layer_settings = inspect.signature(Recurrent.__init__).parameters
        width, common = input_size, [name for name in layer_settings if name not in ("self", "settings")]
        with parameter_defaults(device, dtype):
            for layer in range(num_layers):
                for suffix in ("", "_reverse")[: 1 + bidirectional]:
                    one = make_cell(kind, width, hidden_size, settings, common)
                    init.apply(one)
                    if learn_initial_state:
                        one.learn_initial_state()
                    names = [name for name, parameter in one._parameters.items() if parameter is not None]
                    one.adopt(self, {name: f"{name}_l{layer}{suffix}" for name in names})
                    self.cells.append(one)
                width = one.output_size * (1 + bidirectional)
            if stack_norm is not None:
                self.norms = nn.ModuleList(make_norm(stack_norm, width) for _ in range(num_layers - 1))
        self.output_size, self.causal = width, not bidirectional
        self.proj_size = getattr(one, "proj_size", 0)
        dropouts.check(one)
        self.flatten_parameters()

    def cell_at(self, index: int) -> Cell:
        """Return the cell of layer index // directions in direction index % directions."""
        if index < 0:
            index += len(self.cells)
        cell = cast(Cell, self.__dict__["_modules"]["cells"]._modules[str(index)])  # faster than self.cells[index]
        return cell if cell.__dict__.get("_home", self) is self else take_cells(self)[index]

    def forward(  # type: ignore[override]  # torch's names come first
        self,
        input: SequencesT,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        state: Tensor | State | None = None,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[SequencesT, Any]:
        """Run the layer over sequences.

        Args:
            input: (T, B, D), or (B, T, D) with batch_first; one sequence (T, D); a PackedSequence; or a nested tensor.
            hx: The first state as in torch.nn: (num_layers * directions, B, H), or a tuple of these for cells with
                several states, such as LSTM; None for the cell's initial state.
            lengths: (B,), the real steps of each row; 0 is allowed. Outputs past them are 0.
            state: The same as `hx`, under the name that all seqloom layers use.
            reset: Shape of the input without D; True where a new sequence starts inside a row.
            timespans: Shape of the input without D; the time since the previous step, for cells such as "ode_gru".

        Returns:
            The outputs in the format of the input, with directions * H features, and the last state of each row.

        Raises:
            RuntimeError: If a shape, device or value does not fit.
        """
        if state is not None:
            if hx is not None:
                raise InputError("hx and state are two names of one argument, and both were given; leave one out")
            hx = state
        if reset is None and timespans is None:
            own, result = self.__dict__, None
            if lengths is None and not is_compiling() and (stack := own.get("_stack")):
                bound = stack.bound_sequence  # for a sequence of one step, as decoders pass it
                result = None if bound is None else bound(own, input, hx)
            result = result or try_plan(self, own, input, hx, lengths)
            if result is not None:
                return result
        return self.run_with(run_job, input, hx, lengths, reset=reset, timespans=timespans)

    def run_with(
        self,
        run: Callable[..., tuple[Tensor, State]],
        input: SequencesT,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[SequencesT, Any]:
        """Do what `forward` does, with `run` in place of the scan of each layer and direction."""
        batch = read_input(input, lengths, self.batch_first, self.input_size, self.check)
        weight = self._any_weight(batch.x)
        check_placement(batch.x, weight)
        if run is run_job and should_sort(batch, self.cell_at(0), self.kernel):
            batch = sort_longest_first(batch)
        if batch.x.dtype != weight.dtype:  # under autocast
            batch = replace(batch, x=batch.x.to(weight.dtype))
        x = batch.x
        states = batch.read_states(hx, [self.cell_at(i) for i in range(len(self.cells))])
        if timespans is not None and "dt" not in self.cell_at(0).takes:
            raise InputError(f"timespans were given, but cell {self.cell_at(0).name!r} knows no time; take 'ode_gru'")
        flags = batch.read_per_step("reset", reset, self.batch_first)
        dt = batch.read_per_step("timespans", timespans, self.batch_first)
        shared = {"lengths": batch.lengths, "reset": flags, "dt": dt}
        ends: list[State] = []
        ways = 1 + self.bidirectional
        alone = ways == 1 and not self.residual and self.stack_norm is None
        is_usual, first = run is run_job, self.cell_at(0)
        is_pipeline = is_usual and alone and should_use_wavefront(first, x, self.num_layers)
        if is_pipeline and not find_steps(first, x, self.parallel):
            jobs = [self._make_job(i, x, states, shared) for i in range(self.num_layers)]
            x, ends = run_wavefront(
                jobs, self.kernel, lambda y: F.dropout(y, self.dropout, self.training).to(weight.dtype)
            )
            return batch.restore(x), batch.restore_states(ends)
        if is_usual:
            run = partial(run_job, parallel=self.parallel)
        for layer in range(self.num_layers):
            beside = x if layer and self.residual else None
            x = x.to(weight.dtype)  # autocast may have changed it
            if layer and self.stack_norm is not None:
                norm = self.norms[layer - 1]
                x = norm(x, batch.lengths) if self.stack_norm == "batch" else norm(x)
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs: list[Tensor] = []
            jobs = [self._make_job(i, x, states, shared) for i in range(layer * ways, (layer + 1) * ways)]
            with assign_streams(jobs) as assigned:
                for stream, job in assigned:
                    with stream:
                        y, end = self._run_direction(run, job, len(outputs) > 0)
                    outputs.append(y)
                    ends.append(end)
            x = outputs[0] if ways == 1 else torch.cat(outputs, -1)
            x = x if beside is None else x + beside
        return batch.restore(x), batch.restore_states(ends)

    def _make_job(self, i: int, x: Tensor, states: list[State] | None, shared: dict[str, Tensor | None]) -> CellJob:
        """Return the job of one layer in one direction, with its dropout drawn."""
        cell = self.cell_at(i)
        state = cell.start(x) if states is None else states[i]
        mask = self.dropouts.draw_mask(cell, x, self.training)
        keep = self.dropouts.draw_zoneout(x, state, self.training)
        values = self.dropouts.drop_weights(cell, self.training)
        is_stack = not (self.bidirectional or self.residual or self.stack_norm) and shared["lengths"] is None
        layers = self.num_layers if is_stack else 1
        return CellJob(cell, ScanJob(x, state, mask=mask, keep=keep, layers=layers, **shared), values)

    def _run_direction(
        self, run: Callable[..., tuple[Tensor, State]], job: CellJob, backwards: bool
    ) -> tuple[Tensor, State]:
        scan = job.job.reverse() if backwards else job.job
        y, end = run(job.cell, scan, self.kernel, job.values)
        return (reverse_steps(y, scan.lengths) if backwards else y), end

    def step(
        self, input: Tensor, hx: Tensor | State | None = None, *, timespans: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Run one time step of a stream; the results match running the whole sequence.

        Without gradients on a CPU this is one call of the engine.

        Args:
            input: (B, D), or (D,) for one sequence.
            hx: The state that the last step returned; None at the start.
            timespans: (B,) or (), the time since the last step, for cells that take it.

        Returns:
            The output (B, H) or (H,), and the state.
        """
        if timespans is None and not is_compiling():
            own, result = self.__dict__, None
            if (stack := own.get("_stack")) and (bound := stack.bound_step) is not None:
                result = bound(own, input, hx)
            if result := result or try_engine_step(self, own, input, hx):
                return result
        if self.bidirectional:
            raise UserError("step: a bidirectional layer needs the whole sequence")
        if not isinstance(input, Tensor):
            raise UserTypeError(f"step takes a Tensor (B, D) or (D,), got a {type(input).__name__}")
        if input.dim() not in (1, 2):
            raise InputError(f"step takes (B, D) or (D,), got shape {tuple(input.shape)}")
        time = 1 if self.batch_first and input.dim() == 2 else 0
        spans = None if timespans is None else timespans.unsqueeze(time)
        y, state = self(input.unsqueeze(time), hx, timespans=spans)
        return y.squeeze(time), state

    def select(self, state: StateT, rows: Tensor) -> StateT:
        return map_state(lambda s: s.index_select(1, rows), state)

    def chunks(
        self,
        input: Tensor,
        size: int,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        **per_step: Tensor,
    ) -> Iterator[tuple[Tensor, Any]]:
        """Run chunk by chunk for truncated back-propagation, and detach the state between chunks.

        Args:
            input: (T, B, D), (B, T, D) with batch_first, or (T, D).
            size: Steps in a chunk; the last one may be shorter.
            hx: The first state, as in `forward`.
            lengths: (B,), the real steps of each row.
            **per_step: `reset` and `timespans`, as in `forward`.

        Yields:
            The outputs and the state of each chunk.
        """
        if self.bidirectional:
            raise UserError("chunks: a bidirectional layer needs the whole sequence")
        if not isinstance(input, Tensor):
            raise UserTypeError(
                f"chunks: input must be a Tensor, with lengths= for padding, got a {type(input).__name__}"
            )
        if size < 1:
            raise UserError(f"size must be at least 1 step, got {size}")
        time = 1 if self.batch_first and input.dim() == 3 else 0
        if lengths is not None:
            rows = input.shape[1 - time] if input.dim() == 3 else 1
            lengths = read_lengths(lengths, rows, input.shape[time], input.device)
        for start in range(0, input.shape[time], size):
            length = min(size, input.shape[time] - start)
            left = None if lengths is None else (lengths - start).clamp(0, length)
            parts = {name: t.narrow(time, start, length) for name, t in per_step.items()}
            y, hx = self(input.narrow(time, start, length), hx, left, **parts)
            yield y, hx
            hx = self.detach(hx)

    def _any_weight(self, x: Tensor) -> Tensor:
        """Return a weight, which determines the type of the state even under autocast; x if there are no weights."""
        for own in self._parameters.values():  # a loop, since torch 2.8 does not compile next() with a default
            if own is not None:
                return own
        for weight in self.parameters():  # a custom cell may have its weights in modules
            return weight
        return x

    def flatten_parameters(self) -> None:
        """Move the weights of torch's cells into one block of GPU memory, as cuDNN needs them.

        This happens whenever the layer is moved. It is public because torch.nn's layers have it and code calls it.
        """
        flatten_parameters([self.cell_at(i) for i in range(len(self.cells))], 1 + self.bidirectional)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for kept in self.prepared:  # they hold addresses and a type
            self.__dict__.pop(kept, None)
        super()._apply(fn, recurse)
        self.flatten_parameters()
        return self

    def reset_parameters(self) -> None:
        """Draw new initial values for all parameters."""
        for i in range(len(self.cells)):
            self.cell_at(i).restart()
            self.init.apply(self.cell_at(i))

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as in torch.nn."""
        return [list(self.cell_at(i).own_parameters().values()) for i in range(len(self.cells))]

    # torch.ao.quantization sets `qconfig` on every module, and then quantises torch.nn's own classes only.
    @property
    def qconfig(self) -> object:
        if "_qconfig" not in self.__dict__:
            raise AttributeError("qconfig")
        return self.__dict__["_qconfig"]

    @qconfig.setter
    def qconfig(self, value: object) -> None:
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
        own = {name: getattr(self, name) for name in REPR_DEFAULTS}
        changed = [f"{name}={value!r}" for name, value in own.items() if value != REPR_DEFAULTS[name]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *changed])

"""Any cell as a layer with torch.nn.GRU's arguments and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cell import Cell, State, find
from seqloom.errors import InputError
from seqloom.init import Init
from seqloom.job import Job, turn
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.formats import Batch, read
from seqloom.scan import run_job


class Recurrent(nn.Module):
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
        if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
            raise ValueError(f"num_layers must be a whole number of at least 1, got {num_layers!r}")
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be a number between 0 and 1, got {dropout!r}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional = bidirectional
        self.dropouts, self.kernel, self.check = dropouts, kernel, check
        kind = find(cell)
        if "bias" in inspect.signature(kind).parameters:
            settings["bias"] = bias
        elif not bias:
            raise ValueError(f"bias=False, but cell {kind.name or kind.__name__!r} has no such setting")
        self.cells = nn.ModuleList()
        width = input_size
        with _made_on(device, dtype):
            for layer in range(num_layers):
                for end in ("", "_reverse")[: 1 + bidirectional]:
                    try:
                        made = kind(width, hidden_size, **settings)
                    except TypeError as error:
                        raise _unknown_setting(kind, settings, error) from None
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
        self.output_size = width
        self.proj_size = getattr(made, "proj_size", 0)
        dropouts.check(made)

    def forward(
        self,
        input: Any,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[Any, Any]:
        """(T, B, D), or (B, T, D) with batch_first, or (T, D), or packed, or nested -> y, last state.

        `lengths` (B,): the real steps of each row, 0 allowed. `reset` (as the input, without D):
        True where a new sequence starts inside a row. `timespans` (likewise): time since the step
        before, for cells that know time.
        """
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
        x = batch.x
        self._fits(x)
        states = self._states_in(hx, batch)
        extra = {"reset": self._aside("reset", reset, batch), "dt": self._aside("timespans", timespans, batch)}
        ends: list[State] = []
        ways = 1 + self.bidirectional
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for way in range(ways):
                cell = self.cells[layer * ways + way]
                state = cell.start(self._own_type(x)) if states is None else states[layer * ways + way]
                y, end = self._one(run, cell, Job(self._own_type(x), state, batch.lengths, **extra), bool(way))
                outputs.append(y)
                ends.append(end)
            x = outputs[0] if ways == 1 else torch.cat(outputs, -1)
        return batch.restore(x), self._states_out(ends, batch)

    def _one(
        self, run: Callable[..., tuple[Tensor, State]], cell: Cell, job: Job, backwards: bool
    ) -> tuple[Tensor, State]:
        """One layer in one direction, with its noise."""
        mask = self.dropouts.mask(cell, job.x, self.training)
        keep = self.dropouts.keep(job.x, job.state, self.training)
        job = replace(job, mask=mask, keep=keep)
        values = self.dropouts.dropped(cell, self.training)
        y, end = run(cell, job.reversed() if backwards else job, self.kernel, values)
        return (turn(y, job.lengths) if backwards else y), end

    def _own_type(self, x: Tensor) -> Tensor:
        """Under autocast a layer still carries its state in the type of its weights."""
        return x.to(next(self.parameters()).dtype)

    def step(self, input: Tensor, hx: Tensor | State | None = None) -> tuple[Tensor, Any]:
        """One time step for streaming: (B, D) or (D,) -> y, state; equals the whole at once."""
        if self.bidirectional:
            raise ValueError("step: a bidirectional layer needs the whole sequence")
        if input.dim() not in (1, 2):
            raise InputError(f"step takes (B, D) or (D,), got shape {tuple(input.shape)}")
        y, state = self(input.unsqueeze(-2) if input.dim() == 1 or self.batch_first else input.unsqueeze(0), hx)
        return y.squeeze(-2) if input.dim() == 1 or self.batch_first else y.squeeze(0), state

    def chunks(
        self, input: Tensor, size: int, hx: Tensor | State | None = None, lengths: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Any]]:
        """Truncated back-propagation: y and state chunk by chunk, the carried state detached."""
        time = 1 if self.batch_first and input.dim() == 3 else 0
        for start in range(0, input.shape[time], size):
            part = input.narrow(time, start, min(size, input.shape[time] - start))
            left = None if lengths is None else (torch.as_tensor(lengths) - start).clamp(0, part.shape[time])
            y, hx = self(part, hx, left)
            yield y, hx
            hx = hx.detach() if isinstance(hx, Tensor) else tuple(s.detach() for s in hx)

    def flatten_parameters(self) -> None:
        """Nothing to do; torch.nn's layers have it, so code calls it."""

    def reset_parameters(self) -> None:
        """Draw every cell's parameters anew."""
        for cell in self.cells:
            cell.reset_parameters()

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

    def _fits(self, x: Tensor) -> None:
        weight = next(self.parameters())
        if x.device != weight.device:
            raise InputError(f"input is on {x.device}, the layer's weights are on {weight.device}; move one with .to()")
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"input is {x.dtype}, the layer's weights are {weight.dtype}; convert one with .to()")

    def _states_in(self, hx: Tensor | State | None, batch: Batch) -> list[State] | None:
        """hx in torch's form, checked -> one state for each cell."""
        if hx is None:
            return None
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        expected = self.cells[0].initial_state(batch.x[:, 0])
        if len(given) != len(expected):
            raise InputError(f"hx must have {len(expected)} tensor(s), got {len(given)}")
        count, rows = len(self.cells), batch.x.shape[0]
        for i, (s, e) in enumerate(zip(given, expected, strict=True)):
            shape = (count, *e.shape[1:]) if batch.unbatched else (count, rows, *e.shape[1:])
            if tuple(s.shape) != shape:
                raise InputError(f"hx[{i}] has shape {tuple(s.shape)}, expected {shape}")
            if s.device != batch.x.device:
                raise InputError(f"hx[{i}] is on {s.device}, the input on {batch.x.device}; move one with .to()")
            if s.dtype != e.dtype and not torch.is_autocast_enabled(s.device.type):
                raise TypeError(f"hx[{i}] is {s.dtype}, the input {e.dtype}; convert one with .to()")
        whole = [batch.state_in(s) for s in given]
        return [tuple(s[i] for s in whole) for i in range(count)]

    def _states_out(self, ends: list[State], batch: Batch) -> Tensor | State:
        whole = tuple(batch.state_out(torch.stack(parts)) for parts in zip(*ends, strict=True))
        return whole[0] if len(whole) == 1 else whole

    def _aside(self, name: str, given: Tensor | None, batch: Batch) -> Tensor | None:
        """reset or timespans as (B, T)."""
        if given is None:
            return None
        if name == "timespans" and "dt" not in self.cells[0].takes:
            raise InputError(f"timespans were given, but cell {self.cells[0].name!r} knows no time; take 'ode_gru'")
        given = given.unsqueeze(0) if batch.unbatched else given if batch.batch_first else given.transpose(0, 1)
        if tuple(given.shape) != tuple(batch.x.shape[:2]):
            raise InputError(
                f"{name} must match the input's batch and time {tuple(batch.x.shape[:2])}, got {tuple(given.shape)}"
            )
        return given.bool() if name == "reset" else given.to(batch.x.dtype)


@contextmanager
def _made_on(device: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Parameters made inside are on this device, of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device if device is not None else torch.get_default_device()):
            yield
    finally:
        torch.set_default_dtype(before)


def _unknown_setting(kind: type[Cell], settings: dict[str, Any], error: TypeError) -> TypeError:
    known = [n for n in inspect.signature(kind).parameters if n not in ("input_size", "hidden_size")]
    wrong = [n for n in settings if n not in known]
    if not wrong:
        return error
    return TypeError(
        f"cell {kind.name or kind.__name__!r} has no setting {wrong[0]!r}; it has: {', '.join(known) or 'none'}"
    )

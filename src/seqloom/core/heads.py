"""Several small cells side by side: block-diagonal recurrent weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.cell import NO_HOME, Cell, State
from seqloom.core.checks import check_heads
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights


class HeadsCell(Cell):
    """Run `heads` cells of H / heads units side by side.

        h = [h_1, .., h_n],  h_k' = cell_k(x, h_k)

    Every head reads the whole input and its own part of the state, so the recurrent weights of a gated cell are
    block-diagonal: n times fewer, and n independent recurrences of a size that is fast everywhere. Parameters have the
    cell's names and one more dimension: weight_hh is (heads, gates * H / heads, H / heads). A cell that normalises its
    gates does so within a head. DreamerV3's recurrent model (Hafner et al. 2023, arXiv 2301.04104) and xLSTM's sLSTM
    (Beck et al. 2024, arXiv 2405.04517) have such heads.

    Args:
        kind: The cell's class.
        input_size: Number of input features, D.
        hidden_size: Units of all heads together, H.
        heads: Number of heads; divides H.
        **settings: Settings of the cell.

    Raises:
        UserError: If H is not a multiple of the number of heads, or the cell cannot be divided.
    """

    def __init__(
        self,
        kind: type[Cell],
        input_size: int,
        hidden_size: int,
        heads: int,
        **settings: Any,  # noqa: ANN401  # of any cell
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_heads(heads, hidden_size, "hidden_size")
        cells = [kind(input_size, hidden_size // heads, **settings) for _ in range(heads)]
        one = cells[0]
        named, name = one._parameters, kind.name or kind.__name__
        if one._modules or one._buffers or not named:
            raise UserError(f"cell {name!r} cannot have heads: its weights are not all its direct parameters")
        if any(s.dim() != 2 for s in one.initial_state(torch.zeros(1, input_size))):
            raise UserError(f"cell {name!r} cannot have heads: its state is more than one vector for each row")
        self.heads = heads
        self.__dict__["takes"] = kind.takes
        self.output_size = heads * one.output_size
        for key, p in named.items():
            stacked = None if p is None else nn.Parameter(torch.stack([getattr(c, key) for c in cells]).detach())
            self.register_parameter(key, stacked)
        self._hold(one, [key for key, p in named.items() if p is not None])

    def _hold(self, one: Cell, names: list[str]) -> None:
        """Hold a cell without weights, whose equations all heads share."""
        for name in names:
            del one._parameters[name]
        one.__dict__["_home"], one.__dict__["_names"] = NO_HOME, {name: name for name in names}
        self.__dict__["one"] = one  # not a submodule

    def list_cells(self) -> list[Cell]:
        """Return each head as a cell whose weights are slices of this one's."""
        one: Cell = self.__dict__["one"]
        parts = {name: getattr(self, name).unbind(0) for name in one.__dict__["_names"]}
        return [bind_weights(one, {name: each[k] for name, each in parts.items()}) for k in range(self.heads)]

    def first_cell(self) -> Cell:
        """Return the first head as a cell; kernels that fit it fit all."""
        one: Cell = self.__dict__["one"]
        return bind_weights(one, {name: getattr(self, name)[0] for name in one.__dict__["_names"]})

    def list_jobs(self, job: ScanJob) -> list[ScanJob]:
        """Return the job of each head: the same input, and the head's slice of everything per unit."""
        parts = [[t.chunk(self.heads, -1) for t in many] for many in (job.state, job.keep)]
        masks = [None] * self.heads if job.mask is None else job.mask.chunk(self.heads, -1)
        return [
            replace(job, state=tuple(s[k] for s in parts[0]), keep=tuple(s[k] for s in parts[1]), mask=masks[k])
            for k in range(self.heads)
        ]

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([cell.project(x) for cell in self.list_cells()], -1)

    def initial_state(self, x: Tensor) -> State:
        first: State = self.__dict__["one"].initial_state(x)  # reads no weights
        return tuple(torch.cat([s] * self.heads, -1) for s in first)

    def step(
        self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        results = []
        for cell, x_k, s_k, mask_k in self._divide(x, state, mask):
            extra = {"mask": mask_k, "dt": dt}
            results.append(cell.step(x_k, s_k, **{name: t for name, t in extra.items() if t is not None}))
        return torch.cat([y for y, _ in results], -1), _join([s for _, s in results])

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        each = [
            cell.gates(x_k, s_k, **({} if mask_k is None else {"mask": mask_k}))
            for cell, x_k, s_k, mask_k in self._divide(x, state, mask)
        ]
        return {name: torch.cat([gates[name] for gates in each], -1) for name in each[0]}

    def output(self, state: State) -> Tensor:
        parts = zip(self.list_cells(), *(s.chunk(self.heads, -1) for s in state), strict=True)
        return torch.cat([cell.output(s) for cell, *s in parts], -1)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        with torch.no_grad():
            for cell, part in zip(self.list_cells(), bias.chunk(self.heads), strict=True):
                cell.remember(part, coupled)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for cell in self.list_cells():
                cell.restart()

    def _divide(self, x: Tensor, state: State, mask: Tensor | None) -> list[tuple[Cell, Tensor, State, Tensor | None]]:
        """Return each head's cell, projected input, state and mask."""
        states = zip(*(s.chunk(self.heads, -1) for s in state), strict=True)
        masks = [None] * self.heads if mask is None else mask.chunk(self.heads, -1)
        return list(zip(self.list_cells(), x.chunk(self.heads, -1), states, masks, strict=True))

    def extra_repr(self) -> str:
        return f"{self.__dict__['one'].name}, {self.input_size}, {self.hidden_size}, heads={self.heads}"


HeadsCell.name = "heads"  # kernels find it by this name; it is not a registered cell, since it needs another cell


def _join(states: list[State]) -> State:
    """Return the states of all heads as one."""
    return tuple(torch.cat(parts, -1) for parts in zip(*states, strict=True))

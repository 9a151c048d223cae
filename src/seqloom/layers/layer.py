"""The contract of a layer: a sequence in, a sequence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.checks import check_placement
from seqloom.core.errors import InputError, UserError
from seqloom.core.job import zero_padding
from seqloom.core.suggest import Checked
from seqloom.layers.formats import read_input


class Layer(nn.Module, metaclass=Checked):
    """A subclass sets `input_size` and `output_size` and writes `run`; the rest follows.

    run(x, state, lengths) -> (y, state) takes (B, T, D) with zeros past each row's length. What it
    returns there does not matter, but its state is that of each row's last real step: a flat tuple
    of tensors, the batch first. A layer that is not `causal` looks ahead, and has no state.
    """

    batch_first: bool = True
    bidirectional: bool = False
    input_size: int
    output_size: int
    causal: bool = True

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, State | None]:
        """(B, T, D) -> (B, T, output_size), 0 past a row's length, and the state where the layer is causal.

        Also one sequence (T, D), packed and nested ones; y comes in the form of x.
        """
        if state is not None and not self.causal:
            raise InputError(f"a state was given, but this {type(self).__name__} reads both ways; it takes none")
        return self.in_format(self.run, x, state, lengths)

    def in_format(
        self, run: Callable[..., tuple[Tensor, Any]], x: Any, state: Any, lengths: Tensor | Sequence[int] | None
    ) -> tuple[Any, Any]:
        """Convert x to (B, T, D), call `run` on it, and return y in the format of x.

        Args:
            run: A function of x (B, T, D), the state and the lengths (B,) that returns y (B, T, H) and a state.
            x: (B, T, D), (T, B, D) if `batch_first` is False, (T, D), packed or nested.
            state: What an earlier call returned, or None.
            lengths: (B,), the real steps of each row, or None.
        """
        batch = read_input(x, lengths, self.batch_first, self.input_size)
        check_placement(batch.x, next(self.parameters()))
        order = batch.source if batch.is_packed else None  # whose rows stand longest first
        if state is not None and order is not None and order.sorted_indices is not None:
            state = self.select(state, order.sorted_indices)
        y, state = run(batch.x, state, batch.lengths)
        if state is not None and order is not None and order.unsorted_indices is not None:
            state = self.select(state, order.unsorted_indices)
        return batch.restore(zero_padding(y, batch.lengths)), state

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step for streaming: (B, D) -> (B, output_size); equals the whole at once."""
        if not self.causal:
            raise UserError(f"step: a {type(self).__name__} that reads both ways needs the whole sequence")
        if x.dim() != 2:  # (B,) would be read as one sequence
            raise InputError(f"step takes (B, {self.input_size}), got shape {tuple(x.shape)}")
        y, state = self(x.unsqueeze(1), state)
        assert state is not None
        return y.squeeze(1), state

    def select(self, state: Any, rows: Tensor) -> Any:
        """Return the state of these rows of the batch, in their order; a row may come twice.

        Args:
            state: What a call returned.
            rows: (N,), row numbers.
        """
        return tuple(s.index_select(0, rows) for s in state)

    def detach(self, state: Any) -> Any:
        """Return the state without its history, for truncated back-propagation; None stays None."""
        if state is None or isinstance(state, Tensor):
            return state if state is None else state.detach()
        return tuple(s.detach() for s in state)


def select_rows(layer: nn.Module, state: Any, rows: Tensor) -> Any:
    """The state of these rows of the batch; `rows` (N,) are row numbers, which may repeat.

    A layer with a `select(state, rows)` of its own is asked, as all of seqloom are; states of torch's layers are
    (layers, B, ...), one tensor or a tuple of them. None, the state before the first step, stays None.
    """
    if state is None:
        return None
    own = getattr(layer, "select", None)
    if callable(own):
        return own(state, rows)
    if isinstance(state, Tensor):
        return state.index_select(1, rows)
    return tuple(s.index_select(1, rows) for s in state)

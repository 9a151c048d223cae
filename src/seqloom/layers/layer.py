"""The contract that every layer follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from seqloom.core.arguments import Checked
from seqloom.core.cell import State
from seqloom.core.checks import check_placement
from seqloom.core.errors import InputError, UserError
from seqloom.core.job import zero_padding
from seqloom.core.weights import restore_parameters
from seqloom.layers.formats import SequencesT, read_input

StateT = TypeVar("StateT", bound=Tensor | State | None)


class Layer(nn.Module, metaclass=Checked):
    """Base class of all layers. A subclass sets `input_size` and `output_size` and defines `run`.

    `run(x, state, lengths) -> (y, state)` receives x (B, T, D) with zeros past each row's length. Its outputs there are
    ignored. The state is that of each row's last real step: a flat tuple of tensors, batch first. A layer with `causal
    = False` looks ahead and has no state.
    """

    batch_first: bool = True
    bidirectional: bool = False
    input_size: int
    output_size: int
    causal: bool = True
    prepared: ClassVar[tuple[str, ...]] = ()  # attributes made for calls, which a copy of the layer makes again
    keyword_hints: ClassVar = {"proj_size": "only LSTM takes it, as in torch.nn"}

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State | None]:
        raise NotImplementedError

    def __prepare_scriptable__(self) -> nn.Module:
        raise UserError(
            f"torch.jit.script cannot compile a {type(self).__name__} of seqloom; use torch.export, torch.compile or "
            "seqloom.export_onnx, or for an RNN, LSTM or GRU seqloom.convert(model, to='torch') first"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.prepared}

    def _replicate_for_data_parallel(self) -> Self:
        replica: Self = super()._replicate_for_data_parallel()
        replica.__dict__ = Layer.__getstate__(replica)  # parametrize replaces that of the class
        return replica

    def forward(
        self, x: SequencesT, state: State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[SequencesT, State | None]:
        """Run the layer over sequences.

        Args:
            x: (B, T, D), or (T, B, D) if `batch_first` is False; one sequence (T, D); packed or nested sequences.
            state: What an earlier call returned, to continue from there; None at the start.
            lengths: (B,), the real steps of each row.

        Returns:
            y: (B, T, output_size) in the format of x, 0 past each row's length.
            state: The state after each row's last real step; None if the layer is not causal.

        Raises:
            RuntimeError: If a shape, type or device does not fit.
        """
        if state is not None and not self.causal:
            raise InputError(f"a state was given, but this {type(self).__name__} reads both ways and takes none")
        return self.in_format(self.run, x, state, lengths)

    def in_format(
        self,
        run: Callable[..., tuple[Tensor, StateT]],
        x: SequencesT,
        state: State | None,
        lengths: Tensor | Sequence[int] | None,
    ) -> tuple[SequencesT, StateT]:
        """Convert x to (B, T, D), call `run` on it, and convert y to the format of x.

        Args:
            run: A function of x (B, T, D), the state and the lengths (B,) that returns y (B, T, H) and a state.
            x: (B, T, D), (T, B, D) if `batch_first` is False, (T, D), packed or nested.
            state: What an earlier call returned, or None.
            lengths: (B,), the real steps of each row, or None.
        """
        restore_parameters(self)
        batch = read_input(x, lengths, self.batch_first, self.input_size)
        check_placement(batch.x, next(p for p in self.parameters() if p.is_floating_point()))  # others: int8 weights
        order = batch.source if isinstance(batch.source, PackedSequence) else None  # its rows are sorted, longest first
        if state is not None and order is not None and order.sorted_indices is not None:
            state = self.select(state, order.sorted_indices)
        y, end = run(batch.x, state, batch.lengths)
        if end is not None and order is not None and order.unsorted_indices is not None:
            end = self.select(end, order.unsorted_indices)
        return batch.restore(zero_padding(y, batch.lengths)), end

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one time step of a stream; the results match running the whole sequence.

        Args:
            x: (B, D).
            state: The state that the last step returned; None at the start.

        Returns:
            y: (B, output_size).
            state: The new state.
        """
        if not self.causal:
            raise UserError(f"step: a {type(self).__name__} that reads both ways needs the whole sequence")
        if x.dim() != 2:  # (B,) would be read as one sequence
            raise InputError(f"step takes (B, {self.input_size}), got shape {tuple(x.shape)}")
        y, state = self(x.unsqueeze(1), state)
        assert state is not None
        return y.squeeze(1), state

    def select(self, state: StateT, rows: Tensor) -> StateT:
        """Return the state of some rows of the batch.

        Args:
            state: What a call returned.
            rows: (N,), row indices in any order; a row may occur more than once.
        """
        return map_state(lambda s: s.index_select(0, rows), state)

    def detach(self, state: StateT) -> StateT:
        """Detach the state from its graph, for truncated back-propagation; None stays None."""
        return map_state(Tensor.detach, state)


def select_rows(layer: nn.Module, state: StateT, rows: Tensor) -> StateT:
    """Return the state of some rows of the batch, for any layer.

    Args:
        layer: A layer with `select(state, rows)`, or a recurrent layer of torch.nn.
        state: A returned state; None, the state before the first step, stays None.
        rows: (N,), row indices in any order; a row may occur more than once.
    """
    if state is None:
        return state
    own: Callable[[StateT, Tensor], StateT] | None = getattr(layer, "select", None)
    if callable(own):
        return own(state, rows)
    return map_state(lambda s: s.index_select(1, rows), state)


def map_state(change: Callable[[Tensor], Tensor], state: StateT) -> StateT:
    """Apply a function to every tensor of a state; None stays None."""
    if state is None:
        return state
    changed: Any = change(state) if isinstance(state, Tensor) else tuple(map(change, state))
    return changed

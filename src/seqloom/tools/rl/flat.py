"""A recurrent layer whose state is one tensor, as buffers of rollouts store it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from seqloom.core.cell import State
from seqloom.core.errors import InputError, UserError
from seqloom.layers.recurrent.layer import Recurrent


class FlatRecurrent(nn.Module):
    """Run a recurrent layer over rollouts and return its state as one tensor (B, S), whatever the cell.

    Args:
        layer: A recurrent layer that reads forwards.

    Attributes:
        state_size: Size of the state of one row, S; 2 H for one layer of LSTM, H for one of GRU.

    Raises:
        ValueError: If the layer is bidirectional.

    Example:
        >>> from seqloom.tools.rl.flat import FlatRecurrent
        >>> layer = FlatRecurrent(seqloom.LSTM(3, 8, batch_first=True))
        >>> starts = torch.tensor([[True, False, False, True, False]] * 2)  # a second episode begins at step 3
        >>> y, state = layer(torch.randn(2, 5, 3), torch.zeros(2, layer.state_size), starts)
        >>> y.shape, state.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 16]))
    """

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        if layer.bidirectional:
            raise UserError("bidirectional=True, but an agent cannot read the steps to come; leave it out")
        self.layer = layer
        training = layer.training
        with torch.no_grad():
            weight = next(layer.parameters())
            _, state = layer.eval()(weight.new_zeros(1, 1, layer.input_size))
        layer.train(training)
        self.single = isinstance(state, Tensor)
        parts = (state,) if isinstance(state, Tensor) else state
        self.shapes = [(part.shape[0], *part.shape[2:]) for part in parts]  # without the batch
        self.types = [part.dtype for part in parts]
        self.sizes = [part.numel() for part in parts]
        self.state_size = sum(self.sizes)
        with torch.enable_grad():
            first = self._start(weight.detach())
        learned = any(layer.cell_at(i).__dict__.get("learned_states") for i in range(layer.num_layers))
        self.starts_at_zero = not learned and not first.requires_grad and not bool(first.any())

    def forward(self, x: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run whole rollouts in one call.

        Args:
            x: (B, T, D).
            state: (B, S), the state before the first step; ignored in rows that start an episode there.
            starts: (B, T), nonzero or True where a step is the first of an episode; None for nowhere.

        Returns:
            The outputs (B, T, H) and the state (B, S) after the last step.
        """
        if tuple(state.shape) != (x.shape[0], self.state_size):
            raise InputError(
                f"the state has shape {tuple(state.shape)}, expected {(x.shape[0], self.state_size)}: "
                "a row for each row of x, as an earlier call returned it"
            )
        reset = None if starts is None else starts.bool()
        if reset is not None and starts_first_only(reset):
            state, reset = self.restart(state, reset[:, 0]), None  # faster: kernels need not look for starts
        time = 1 if self.layer.batch_first else 0
        y, end = self.layer(
            x if time else x.transpose(0, 1),
            self.unpack(state),
            reset=reset if reset is None or time else reset.transpose(0, 1),
        )
        return y if time else y.transpose(0, 1), self.pack(end)

    def restart(self, state: Tensor, starts: Tensor) -> Tensor:
        """Return the state with the layer's initial state in the rows that start an episode.

        Args:
            state: (B, S).
            starts: (B,), boolean.

        Returns:
            The new state (B, S).
        """
        if self.starts_at_zero:
            return state.masked_fill(starts.unsqueeze(-1), 0)
        return torch.where(starts.unsqueeze(-1), self._start(state), state)

    def _start(self, like: Tensor) -> Tensor:
        """Return the initial state (1, S)."""
        probe = like.new_zeros(1, self.layer.input_size)
        starts = [self.layer.cell_at(i).start(probe) for i in range(self.layer.num_layers)]
        return self.pack(tuple(torch.stack(parts) for parts in zip(*starts, strict=True)))

    def pack(self, state: Tensor | State) -> Tensor:
        """Return the layer's state, (layers, B, ...) or a tuple of these, as (B, S)."""
        parts = (state,) if isinstance(state, Tensor) else state
        kind = next(self.layer.parameters()).dtype
        flat = [part.transpose(0, 1).flatten(1).to(kind) for part in parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def unpack(self, state: Tensor) -> Tensor | State:
        """Return a state (B, S) in the layer's format."""
        parts = tuple(
            part.unflatten(-1, shape).transpose(0, 1).to(kind)
            for part, shape, kind in zip(state.split(self.sizes, -1), self.shapes, self.types, strict=True)
        )
        return parts[0] if self.single else parts


def starts_first_only(starts: Tensor) -> bool:
    """Return whether no episode starts after the first step, as far as that is known without waiting for a GPU."""
    if starts.shape[1] == 1:
        return True
    return starts.device.type == "cpu" and not is_compiling() and not bool(starts[:, 1:].any())

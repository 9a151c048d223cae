"""Layouts of the rows, steps and units of a gated pass, in the layer's tensors and in those of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 16  # rows of the largest group of blocks, all of one head

Maybe = Tensor | None


@dataclass(frozen=True)
class Layout:
    """The order of rows, steps and units.

    Kernels keep the layer's order of rows and steps. The rows of several heads are concatenated, each padded to full
    groups, and units are padded to full tiles.

    Attributes:
        shape: Shape of the input: (T, B, D), (B, T, D) with `batch_first`, or (T, D).
        batch_first: Whether the rows come before the steps.
        heads: Number of heads.
        units: Units of a head.
        hidden: Units of a head in the kernels.
        is_backwards: Whether the cell reads the steps from the last to the first.
    """

    shape: torch.Size
    batch_first: bool
    heads: int
    units: int
    hidden: int
    is_backwards: bool = False

    @cached_property
    def is_time_first(self) -> bool:
        """Whether the layer's input is (T, B, D)."""
        return len(self.shape) == 3 and not self.batch_first

    @cached_property
    def T(self) -> int:
        return self.shape[self.batch_first and len(self.shape) == 3]

    @cached_property
    def B(self) -> int:
        return 1 if len(self.shape) == 2 else self.shape[not self.batch_first]

    @cached_property
    def head_rows(self) -> int:
        """Rows of a head in the kernels."""
        return self.B + -self.B % GROUP if self.heads > 1 else self.B

    @cached_property
    def rows(self) -> int:
        """Rows of all heads in the kernels."""
        return self.heads * self.head_rows

    @cached_property
    def time_first(self) -> bool:
        """Whether the kernels' tensors are (T, B, ..)."""
        return self.is_time_first and self.heads == 1

    @cached_property
    def order(self) -> tuple[int, int]:
        """The leading sizes of the projected input and its gradient, all heads side by side."""
        return (self.T, self.B) if self.time_first else (self.B, self.T)

    @cached_property
    def lead(self) -> tuple[int, int]:
        """The leading sizes of the kernels' inputs and outputs of every step."""
        return self.order if self.heads == 1 else (self.rows, self.T)

    @cached_property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of a layer's state: (1, B, units of all heads), or (1, units) for a single sequence."""
        wide = self.heads * self.units
        return (1, wide) if len(self.shape) == 2 else (1, self.B, wide)

    def take(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Map an input of the layer to (*order, D); its memory may have another order.

        The first real step of a cell that reads backwards is the last of the input, and padding becomes 0.
        """
        x = x.transpose(0, 1) if self.is_time_first != self.time_first else x.reshape(*self.order, -1)
        return self._reverse(x if padding is None else padding.clear(x), padding)

    def restore(self, t: Tensor, padding: Padding | None) -> Tensor:
        """Map B * T rows in the kernels' order to (.., n) in the order of the layer's input."""
        if self.is_backwards:
            t = self._reverse(t.reshape(*self.order, -1), padding)
        if self.is_time_first != self.time_first:
            t = t.reshape(self.B, self.T, -1).transpose(0, 1)
        return t.reshape(*self.shape[:-1], -1)

    def _reverse(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Reverse the real steps of (*order, n) if the cell reads backwards."""
        if not self.is_backwards:
            return x
        return x.flip(1 - self.time_first) if padding is None else padding.reverse(x)

    def divide(self, t: Tensor) -> Tensor:
        """Concatenate the rows of all heads: (B * T, heads * n) to (*lead, n)."""
        if self.heads == 1:
            return t.reshape(*self.order, -1)
        t = t.reshape(self.B, self.T, self.heads, -1).permute(2, 0, 1, 3)
        return self._pad_rows(t).reshape(self.rows, self.T, -1)

    def join(self, t: Tensor) -> Tensor:
        """Undo `divide`: map (*lead, n) to (B * T, heads * n)."""
        if self.heads == 1:
            return t.reshape(self.B * self.T, -1)
        t = t.view(self.heads, self.head_rows, self.T, -1)[:, : self.B]
        return t.permute(1, 2, 0, 3).reshape(self.B * self.T, -1)

    def pad_units(self, t: Tensor) -> Tensor:
        """Append zeros for the units that only the kernels have: (.., units) to (.., hidden); heads have none."""
        more = self.hidden - self.units
        return F.pad(t, (0, more)) if more else t

    def divide_state(self, t: Tensor) -> Tensor:
        """Map a state, or a mask of its units, to (rows, hidden)."""
        if self.heads == 1:
            return self.pad_units(t.reshape(self.B, self.units))
        t = t.reshape(self.B, 1, self.heads, self.units).permute(2, 0, 1, 3)
        return self._pad_rows(t).reshape(self.rows, self.units)

    def join_state(self, t: Tensor) -> Tensor:
        """Map (rows, hidden) to a state of the layer."""
        t = t.view(self.heads, self.head_rows, self.hidden)[:, : self.B, : self.units]
        return t.transpose(0, 1).reshape(self.state_shape)

    def repeat(self, t: Tensor) -> Tensor:
        """Map (B, ..) to the rows of all heads; padding rows are 0."""
        if self.heads == 1:
            return t
        padded = F.pad(t, (*[0] * (2 * t.dim() - 2), 0, self.head_rows - self.B))
        return padded.repeat(self.heads, *[1] * (t.dim() - 1))

    def _pad_rows(self, t: Tensor) -> Tensor:
        """Append rows of zeros to each head: (heads, B, .., n) to (heads, head_rows, .., n)."""
        more = self.head_rows - self.B
        return F.pad(t, (0, 0, 0, 0, 0, more)) if more else t


class Padding:
    """Where the padding of a call is.

    Args:
        lengths: (B,), the real steps of each row.
        layout: Of the pass.
    """

    def __init__(self, lengths: Tensor, layout: Layout) -> None:
        own, first = lengths.clamp(0, layout.T), int(layout.time_first)  # kernels write only up to the lengths
        self.lengths = layout.repeat(own)
        self.t = torch.arange(layout.T, device=own.device).unsqueeze(first)
        self.last = own.unsqueeze(1 - first) - 1
        self.time = 1 - first

    def clear(self, x: Tensor) -> Tensor:
        """Set padding to 0."""
        return x.masked_fill((self.t > self.last).unsqueeze(-1), 0)

    def reverse(self, x: Tensor) -> Tensor:
        """Reverse the real steps of each row; padding stays in place."""
        index = torch.where(self.t <= self.last, self.last - self.t, self.t)
        return x.gather(self.time, index.unsqueeze(-1).expand(x.shape))

"""Convolutions over the past, wider at every block: a temporal convolutional network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import InputError, UserError
from seqloom.core.job import clone_part
from seqloom.core.precision import autocast_dtype
from seqloom.layers.layer import Layer


class TCN(Layer):
    """Dilated causal convolutions in residual blocks, the dilation doubled from block to block.

        c1 = dropout(relu(W1 * x + b1))
        c2 = dropout(relu(W2 * c1 + b2))
        y  = relu(c2 + V x)                  V is the identity where the widths agree

    `*` is the convolution with steps t, t-d, ..., t-(k-1)d, d = 2^block; W1 and W2 are weight-normalised.
    The last output sees 1 + 2 (k-1) (2^layers - 1) steps (`reach`). The state holds, for each convolution,
    the (k-1)d inputs before the next step: (B, C, (k-1)d).

    Bai, Kolter & Koltun 2018, arXiv 1803.01271.
    """

    def __init__(
        self, input_size: int, hidden_size: int, layers: int = 4, kernel: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if layers < 1 or kernel < 2:
            raise UserError(f"TCN needs layers >= 1 and kernel >= 2, got layers={layers} and kernel={kernel}")
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, hidden_size
        self.reach = 1 + 2 * (kernel - 1) * (2**layers - 1)
        self.blocks = nn.ModuleList(
            ConvBlock(hidden_size if i else input_size, hidden_size, kernel, 2**i, dropout) for i in range(layers)
        )

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        if state is not None and len(state) != 2 * len(self.blocks):
            raise InputError(f"the state must have {2 * len(self.blocks)} tensors, got {len(state)}")
        y, after = x.transpose(1, 2), []  # (B, C, T): convolutions want time last
        for i, block in enumerate(self.blocks):
            y, pair = block(y, None if state is None else state[2 * i : 2 * i + 2], lengths)
            after += pair
        return y.transpose(1, 2), tuple(after)


class ConvBlock(nn.Module):
    """Two causal convolutions and a way around them."""

    def __init__(self, width: int, hidden: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConv(width, hidden, kernel, dilation, normalised=True)
        self.second = CausalConv(hidden, hidden, kernel, dilation, normalised=True)
        self.around = nn.Conv1d(width, hidden, 1) if width != hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        p1, p2 = (None, None) if state is None else state
        c1, p1 = self.first(x, p1, lengths)
        c1 = self.dropout(torch.relu(c1))
        c2, p2 = self.second(c1, p2, lengths)
        c2 = self.dropout(torch.relu(c2))
        return torch.relu(c2 + self.around(x)), [p1, p2]


class CausalConv(nn.Module):
    """A convolution that sees the past alone, and hands on what the next call needs of it."""

    def __init__(self, width: int, hidden: int, kernel: int, dilation: int = 1, normalised: bool = False) -> None:
        super().__init__()
        conv = nn.Conv1d(width, hidden, kernel, dilation=dilation)
        self.conv = WeightNormed(conv) if normalised else conv
        self.width, self.past = width, (kernel - 1) * dilation

    def forward(self, x: Tensor, past: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, C, T), the inputs before them (B, C, P) -> (B, H, T), the last P inputs of each row."""
        shape = (x.shape[0], self.width, self.past)
        if past is None:
            past = x.new_zeros(shape)
        elif tuple(past.shape) != shape:
            raise InputError(f"a state has shape {tuple(past.shape)}, expected {shape}")
        if autocast_dtype(x.device.type):
            past = past.to(x.dtype)
        x = torch.cat([past, x], 2)  # (B, C, P + T)
        y = self.conv(x)
        if lengths is None:
            return y, clone_part(x[:, :, x.shape[2] - self.past :])
        last = lengths.unsqueeze(1) + torch.arange(self.past, device=x.device)  # (B, P)
        return y, x.gather(2, last.unsqueeze(1).expand(shape))


class WeightNormed(nn.Module):
    """A convolution whose weight is g v / |v|, a length and a direction for each output.

    As torch's parametrization has it, which cannot be pickled.
    """

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        self.v, self.bias, self.dilation = conv.weight, conv.bias, conv.dilation
        self.g = nn.Parameter(torch.norm_except_dim(conv.weight.detach(), 2, 0))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, torch._weight_norm(self.v, self.g, 0), self.bias, dilation=self.dilation)

"""A temporal convolutional network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import InputError, UserError
from seqloom.core.job import clone_part
from seqloom.core.precision import autocast_dtype
from seqloom.layers.layer import Layer

RENAMED = {"layers": "num_layers", "kernel": "kernel_size"}  # old names of arguments, and their new ones
HINTS = Layer.keyword_hints | {
    "kernel": "it has no back ends to choose from; kernel_size is the width of its convolutions"
}
MAX_LAYERS = 30  # the last one looks back 2^30 steps


class TCN(Layer):
    """Temporal convolutional network: residual blocks of causal convolutions with doubling dilation.

        c1 = dropout(relu(W1 * x + b1))
        c2 = dropout(relu(W2 * c1 + b2))
        y  = relu(c2 + V x)                  V is the identity if the widths are equal

    `*` is the convolution with steps t, t-d, ..., t-(k-1)d, d = 2^block; W1 and W2 are weight-normalised.
    An output sees 1 + 2 (k-1) (2^num_layers - 1) steps, the attribute `reach`. The state holds the last (k-1)d inputs
    of each convolution: (B, C, (k-1)d). Bai, Kolter & Koltun 2018, arXiv 1803.01271.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        input_size: Features of the input, D.
        hidden_size: Width of the convolutions and of the output, H.
        num_layers: Number of blocks.
        kernel_size: Steps that a convolution sees, k; at least 2.
        dropout: Dropout after each convolution, in training.

    Example:
        >>> layer = seqloom.TCN(8, 16, num_layers=3)
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, H)
        >>> y.shape, layer.reach
        (torch.Size([3, 5, 16]), 29)
    """

    renamed = RENAMED
    keyword_hints = HINTS

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 4, kernel_size: int = 3, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if kernel_size < 2:
            raise UserError(f"TCN: kernel_size must be at least 2, got {kernel_size}")
        if num_layers > MAX_LAYERS:
            raise UserError(f"TCN: num_layers must be at most {MAX_LAYERS}, got {num_layers}")
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, hidden_size
        self.reach = 1 + 2 * (kernel_size - 1) * (2**num_layers - 1)
        self.blocks = nn.ModuleList(
            ConvBlock(hidden_size if i else input_size, hidden_size, kernel_size, 2**i, dropout)
            for i in range(num_layers)
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
    """Two causal convolutions and a residual connection."""

    def __init__(self, width: int, hidden: int, kernel_size: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConv(width, hidden, kernel_size, dilation, normalised=True)
        self.second = CausalConv(hidden, hidden, kernel_size, dilation, normalised=True)
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
    """A convolution over past steps, which returns the inputs that the next call needs."""

    def __init__(self, width: int, hidden: int, kernel_size: int, dilation: int = 1, normalised: bool = False) -> None:
        super().__init__()
        if kernel_size < 1:
            raise UserError(f"kernel_size must be at least 1, got {kernel_size}")
        conv = nn.Conv1d(width, hidden, kernel_size, dilation=dilation)
        self.conv = WeightNormed(conv) if normalised else conv
        self.width, self.past = width, (kernel_size - 1) * dilation

    def forward(self, x: Tensor, past: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve x (B, C, T) after the past (B, C, P): outputs (B, H, T), and the last P inputs of each row."""
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
    """A convolution with the weight g v / |v|, a length and a direction for each output.

    Torch's parametrization computes the same, but cannot be pickled.
    """

    def __init__(self, conv: nn.Conv1d) -> None:
        super().__init__()
        self.v, self.bias, self.dilation = conv.weight, conv.bias, conv.dilation
        self.g = nn.Parameter(torch.norm_except_dim(conv.weight.detach(), 2, 0))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x, torch._weight_norm(self.v, self.g, 0), self.bias, dilation=self.dilation)

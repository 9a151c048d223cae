"""Layers of other packages that research/speed/speed_table.py times beside ours, with `--others`.

A loop over a step compiled by torch.compile, FlashRNN (its Triton kernel, which needs no compiler for CUDA) and
torchrecurrent (MGU: it has no GRU).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOOP_STEPS = 64  # of layers that launch every step by itself: their time per step does not depend on the length
torch._dynamo.config.recompile_limit = 1000  # every size and type is compiled by itself


class CompiledLoop(nn.Module):
    """A GRU as a Python loop over a compiled step."""

    def __init__(self, size: int, **how: Any) -> None:
        super().__init__()
        self.weights = nn.GRUCell(size, size, **how)
        self.step = torch.compile(compute_gru_step, fullgraph=True, dynamic=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        own = self.weights
        projected, h, outputs = F.linear(x, own.weight_ih, own.bias_ih), x.new_zeros(x.shape[1:]), []
        for t in range(len(x)):
            h = self.step(projected[t], h, own.weight_hh, own.bias_hh)
            outputs.append(h)
        return torch.stack(outputs), h


def compute_gru_step(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    (x_r, x_z, x_n), (u_r, u_z, u_n) = x.chunk(3, -1), F.linear(h, weight, bias).chunk(3, -1)
    z = torch.sigmoid(x_z + u_z)
    n = torch.tanh(x_n + torch.sigmoid(x_r + u_r) * u_n)
    return n + z * (h - n)


class FlashLSTM(nn.Module):
    """FlashRNN's fused LSTM with one head, and its input projection."""

    def __init__(self, size: int, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.dtype = str(dtype).removeprefix("torch.")
        self.project = nn.Linear(size, 4 * size, bias=False, dtype=dtype, device=device)
        self.R = nn.Parameter(torch.randn(4, 1, size, size, dtype=dtype, device=device) / size**0.5)
        self.b = nn.Parameter(torch.zeros(4, 1, size, dtype=dtype, device=device))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from flashrnn import flashrnn

        wx = self.project(x).transpose(0, 1).unflatten(-1, (4, 1, -1))
        states, last = flashrnn(wx, self.R, self.b, function="lstm", backend="triton_fused", dtype=self.dtype)
        return states[0].flatten(-2).transpose(0, 1), last


class MinimalGatedUnit(nn.Module):
    """torchrecurrent's MGU."""

    def __init__(self, size: int, **how: Any) -> None:
        super().__init__()
        import torchrecurrent

        self.layer = torchrecurrent.MGU(size, size).to(**how)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        y, state = self.layer(x)
        return y, state


OTHERS: dict[str, type[nn.Module]] = {
    "GRU, compiled loop": CompiledLoop,
    "FlashRNN LSTM": FlashLSTM,
    "torchrecurrent MGU": MinimalGatedUnit,
}
LOOPS = ("GRU, compiled loop", "torchrecurrent MGU")  # they take LOOP_STEPS

"""Other libraries' recurrent layers: torch's own, and of others one each, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn


@cache
def rivals() -> dict[str, Callable[..., nn.Module]]:
    """By name: input_size, hidden_size, batch_first -> a layer from (B, T, D) to (B, T, H) and a state."""
    found: dict[str, Callable[..., nn.Module]] = {f"torch.nn.{k.__name__}": k for k in (nn.RNN, nn.GRU, nn.LSTM)}
    if find_spec("torchrecurrent"):
        found["torchrecurrent.MGU"] = import_module("torchrecurrent").MGU  # one gate: the quickest of its gated ones
    if find_spec("flashrnn"):
        found["flashrnn.LSTM"] = FlashLSTM
    return found


class FlashLSTM(nn.Module):
    """FlashRNN's LSTM (Poeppel et al. 2024, arXiv 2412.07752), which is a function, as a layer with one head."""

    def __init__(self, input_size: int, hidden_size: int, batch_first: bool) -> None:
        super().__init__()
        self.project = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.R = nn.Parameter(torch.randn(4, 1, hidden_size, hidden_size) / hidden_size**0.5)
        self.b = nn.Parameter(torch.zeros(4, 1, hidden_size))

    @property
    def kernel(self) -> str:
        return "cuda_fused" if self.b.is_cuda else "vanilla"

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flashrnn = import_module("flashrnn").flashrnn
        Wx = self.project(x).unflatten(-1, self.b.shape)  # (B, T, 4, 1, H)
        dtype = str(x.dtype).removeprefix("torch.")
        states, last = flashrnn(Wx, self.R, self.b, function="lstm", backend=self.kernel, dtype=dtype)
        return states[0].squeeze(-2), last

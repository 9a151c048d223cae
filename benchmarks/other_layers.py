"""Time GRU and LSTM against layers of other packages: python benchmarks/other_layers.py [--json FILE].

Microseconds per step on a GPU, forward and both passes: seqloom, torch.nn, a loop over a step compiled by
torch.compile, FlashRNN (its Triton kernel, which needs no compiler for CUDA) and torchrecurrent (MGU: it has no GRU).
Packages that are not installed, or fail, are named with their error. Layers are timed in turns, three calls in a row
each.
"""

import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from record import build_parser, print_row, write_record
from speed_table import SEED, run_both, run_forward, time_calls
from torch import Tensor, nn

import seqloom


class CompiledLoop(nn.Module):
    """A GRU as a Python loop over a compiled step."""

    def __init__(self, size: int, **how: Any) -> None:
        super().__init__()
        self.weights = nn.GRUCell(size, size, **how)
        self.step = torch.compile(compute_gru_step, fullgraph=True)

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


def build_torchrecurrent(size: int, **how: Any) -> nn.Module:
    import torchrecurrent

    return torchrecurrent.MGU(size, size).to(**how)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "torch.nn.GRU": lambda size, **how: nn.GRU(size, size, **how),
    "torch.nn.LSTM": lambda size, **how: nn.LSTM(size, size, **how),
    "seqloom.GRU": lambda size, **how: seqloom.GRU(size, size, **how),
    "seqloom.LSTM": lambda size, **how: seqloom.LSTM(size, size, **how),
    "GRU, compiled loop": CompiledLoop,
    "FlashRNN LSTM": FlashLSTM,
    "torchrecurrent MGU": build_torchrecurrent,
}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--types", default="bfloat16,float32")
    parser.add_argument("--hidden", default="64,256")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    rows = []
    for name, hidden in itertools.product(args.types.split(","), map(int, args.hidden.split(","))):
        how = {"dtype": getattr(torch, name), "device": args.device}
        x = torch.randn(args.length, args.batch, hidden, requires_grad=True, **how)
        for pass_, run in (("forward", run_forward), ("both", run_both)):
            calls, times = {}, {}
            for layer, build in LAYERS.items():
                row = {"type": name, "hidden": hidden, "batch": args.batch, "pass": pass_, "layer": layer}
                try:
                    calls[layer] = partial(run, build(hidden, **how), x, torch.ones_like(x))
                    time_calls(calls[layer], args.device)  # compiles
                    times[layer] = (row, [])
                except Exception as error:  # the record names what a package cannot do
                    rows.append(row | {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
                    print_row(rows[-1])
            for _ in range(args.rounds):
                for layer, (_, spent) in times.items():
                    spent.append(time_calls(calls[layer], args.device))
            for row, spent in times.values():
                rows.append(row | {"us_per_step": round(1e6 * statistics.median(spent) / args.length, 3)})
                print_row(rows[-1])
        write_record(args.json, length=args.length, seed=SEED, rows=rows)


if __name__ == "__main__":
    main()

"""Time sixteen seeds of one training on one GPU against a single one: python -m research seeds_gpu [--json FILE].

The adding problem at H=128, B=64, T=512 in bfloat16, each training a CUDA graph on its own stream
(`seqloom.lab.training.many`). Milliseconds are for one step of all trainings together.
"""

from itertools import product

import torch
from torch import nn

import seqloom
from research.record import build_parser, print_row, write_record
from seqloom.lab.training.many import train_many
from seqloom.lab.training.recipe import Recipe, SmallTraining

H, T, B, STEPS = 128, 512, 64, 200
LAYERS = {"seqloom.AttnRNN": seqloom.AttnRNN, "torch.nn.GRU": nn.GRU}


class Adder(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.layer, self.head = nn.Linear(2, H), kind(H, H, batch_first=True), nn.Linear(H, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.first(x))[0][:, -1]).squeeze(1)


def batch(noise: torch.Generator, device: torch.device) -> tuple[torch.Tensor, ...]:
    x = torch.rand(B, T, 2, generator=noise, device=device)
    return x.bfloat16(), x[..., 0].mean(1)


def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x).float(), y)


def main() -> None:
    parser = build_parser(__doc__)
    args = parser.parse_args()
    rows = []
    for name, seeds in product(LAYERS, (1, 4, 16, 1, 16)):  # the ends twice: the spread
        several = [
            SmallTraining(
                str(seed), lambda kind=LAYERS[name]: Adder(kind), batch, loss, Recipe(STEPS, 1e-3), seed, torch.bfloat16
            )
            for seed in range(seeds)
        ]
        ends = train_many(several, "cuda")
        failed = [end.failed for end in ends if end.failed]
        rows.append({"layer": name, "seeds": seeds, "ms_per_step": 1e3 * ends[0].seconds_per_step, "failed": failed})
        print_row(rows[-1])
    setting = {"hidden": H, "length": T, "batch": B, "steps": STEPS}
    write_record(args.json, setting=setting, rows=rows)

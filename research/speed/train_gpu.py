"""Time a whole training on a GPU, AttnRNN and torch.nn.GRU: python -m research train_gpu [--json FILE].

The adding problem (two marked numbers of T, one in each half), Adam with clipping: the same data, steps and
sizes for both; times include everything from the data to the optimiser. Twice: with the layer in bfloat16, and
with its weights in float32 under autocast.
"""

from itertools import product

import torch
from torch import nn

import seqloom
from research.record import Stopwatch, build_parser, print_row, take_plain_step, write_record

H, T, B, STEPS, WARM = 128, 512, 64, 300, 20


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.rand(B, T, generator=generator, device="cuda")
    marks = torch.zeros_like(values)
    for half in range(2):
        where = torch.randint(half * T // 2, (half + 1) * T // 2, (B, 1), generator=generator, device="cuda")
        marks.scatter_(1, where, 1.0)
    return torch.stack([values, marks], -1), (values * marks).sum(1)


def train(name: str, layer: nn.Module, precision: str) -> dict[str, float | str]:
    """Train and return the milliseconds per step after warming up, and the mean loss of the last fifty steps."""
    first, head = nn.Linear(2, H).cuda(), nn.Linear(H, 1).cuda()
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = nn.ModuleList([first, layer.to("cuda", kind), head])
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    noise, losses = torch.Generator("cuda").manual_seed(0), []
    for step in range(STEPS):
        if step == WARM:
            torch.cuda.synchronize()
            start = Stopwatch()
        x, y = batch(noise)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"):
            prediction = head(layer(first(x).to(kind))[0][:, -1].to(x.dtype))
        loss = nn.functional.mse_loss(prediction.float().squeeze(1), y)
        take_plain_step(loss, optimiser, 1.0)
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = start.seconds / (STEPS - WARM)
    return {
        "layer": name,
        "precision": precision,
        "ms_per_step": 1e3 * seconds,
        "loss": torch.stack(losses[-50:]).mean().item(),
    }


def main() -> None:
    parser = build_parser(__doc__)
    args = parser.parse_args()
    rows = []
    layers = (("seqloom.AttnRNN", seqloom.AttnRNN), ("torch.nn.GRU", nn.GRU))
    for precision, (name, kind) in product(("bfloat16", "autocast"), layers * 2):  # twice: the spread
        torch.manual_seed(0)
        rows.append(train(name, kind(H, H, batch_first=True), precision))
        print_row(rows[-1])
    setting = {"hidden": H, "length": T, "batch": B, "steps": STEPS}
    write_record(args.json, setting=setting, rows=rows)

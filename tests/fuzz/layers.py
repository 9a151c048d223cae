"""Random settings of recurrent layers: the chosen kernel matches the reference loop."""

from __future__ import annotations

import random
from pathlib import Path

import torch

import seqloom
from seqloom.core.cell import Cell

CELLS = ("rnn", "gru", "lstm", "attn_rnn", "ln_gru", "ln_lstm", "indrnn", "min_gru", "min_lstm")


def check(draw: random.Random, work: Path) -> str:
    """Compare one layer in float64, forwards and backwards; return the kernel that ran."""
    assert set(CELLS) <= set(Cell.registry)
    name = draw.choice(CELLS)
    D, H, B, T = draw.randrange(1, 20), 4 * draw.randrange(1, 12), draw.randrange(0, 6), draw.randrange(1, 12)
    settings = {
        "num_layers": draw.randrange(1, 3),
        "bidirectional": draw.random() < 0.3,
        "batch_first": draw.random() < 0.5,
        "bias": draw.random() < 0.8 or name.startswith(("attn", "ln", "ind", "min")),
        "learn_initial_state": draw.random() < 0.3,
        "dropouts": seqloom.Dropouts(
            recurrent=draw.choice((0.0, 0.0, 0.3)) if "mask" in Cell.registry[name].takes else 0.0,
            zoneout=draw.choice((0.0, 0.0, 0.2)),
        ),
    }
    torch.manual_seed(draw.randrange(2**31))
    layer = seqloom.Recurrent(name, D, H, dtype=torch.float64, **settings)
    x = torch.randn((B, T, D) if settings["batch_first"] else (T, B, D), dtype=torch.float64)
    lengths = [draw.randrange(T + 1) for _ in range(B)] if draw.random() < 0.5 else None
    seed, actual = draw.randrange(2**31), {}
    layer.train(draw.random() < 0.7)
    for kernel in ("auto", "loop"):
        layer.kernel = kernel
        torch.manual_seed(seed)
        given = x.clone().requires_grad_()
        y, _ = layer(given, lengths=lengths)
        weights = [p for p in layer.parameters() if p.requires_grad]
        actual[kernel] = [y, *torch.autograd.grad(y.square().sum(), [given, *weights], allow_unused=True)]
    for ours, loop in zip(actual["auto"], actual["loop"], strict=True):
        if ours is None or loop is None:
            assert all(t is None or not t.any() for t in (ours, loop))
        else:
            torch.testing.assert_close(ours, loop, rtol=1e-9, atol=1e-9)
    return name

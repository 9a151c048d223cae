"""Layers with attention learn to remember ten symbols over thirty steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seqloom.layers.hybrid import Hybrid
from seqloom.layers.transformer.layer import Transformer

SYMBOLS, WORDS, DELAY = 8, 10, 30
BLANK, RECALL = SYMBOLS, SYMBOLS + 1


def copy_memory(rows):
    """Return ten symbols, a delay, then ten marks at which the symbols are expected."""
    words = torch.randint(SYMBOLS, (rows, WORDS))
    blanks = torch.full((rows, DELAY), BLANK)
    return torch.cat([words, blanks, torch.full((rows, WORDS), RECALL)], 1), words


def remembered(layer, steps, lr):
    """Return the share of correct symbols after this many training steps."""
    embed, head = nn.Embedding(SYMBOLS + 2, 64), nn.Linear(64, SYMBOLS)
    model = nn.ModuleList([embed, layer, head])
    optimiser = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, steps, pct_start=0.1)
    for _ in range(steps):
        x, words = copy_memory(16)
        loss = F.cross_entropy(head(layer(embed(x))[0][:, -WORDS:]).flatten(0, 1), words.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        x, words = copy_memory(500)
        actual = head(layer(embed(x))[0][:, -WORDS:]).argmax(-1)
    return (actual == words).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "steps"), [("rotary", 100), pytest.param("sinusoidal", 250, marks=pytest.mark.long)]
)
def test_a_transformer_remembers_ten_symbols_over_thirty_steps(position, steps):
    layer = Transformer(64, 4, 2, causal=True, position=position)
    assert remembered(layer, steps, 3e-3) > 0.999


@pytest.mark.long
def test_a_hybrid_remembers_ten_symbols_over_thirty_steps():
    """There is no position encoding: the recurrence provides the position."""
    assert remembered(Hybrid(64, 64, num_layers=2), 350, 6e-3) > 0.999

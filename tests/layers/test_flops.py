"""FlopCounterMode of torch counts what fused kernels would compute."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import seqloom


def count(layer, x):
    with FlopCounterMode(display=False) as counter:
        layer(x)[0].sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn", "attn_rnn", "mgu", "min_gru"])
def test_a_layer_counts_what_its_loop_does(kind):
    x, counts = torch.randn(5, 2, 8), []
    for kernel in ("auto", "loop"):
        layer = seqloom.Recurrent(kind, 8, 16, num_layers=2, kernel=kernel)
        for _ in range(3):  # later calls are prepared
            layer(x)
        counts.append(count(layer, x))
    assert counts[0] == counts[1] > 0


def test_a_gru_counts_as_torchs_does():
    x = torch.randn(5, 2, 8)
    assert count(seqloom.GRU(8, 16), x) == count(torch.nn.GRU(8, 16), x)


def test_heads_count_as_their_loops_do():
    x = torch.randn(5, 2, 8)
    assert count(seqloom.GRU(8, 16, heads=2), x) == count(seqloom.GRU(8, 16, heads=2, kernel="each"), x) > 0


def test_a_linear_recurrence_counts_its_products():
    x = torch.randn(2, 6, 8)
    assert count(seqloom.GatedDeltaNet(8, 2), x) == count(seqloom.GatedDeltaNet(8, 2, kernel="chunk"), x) > 0

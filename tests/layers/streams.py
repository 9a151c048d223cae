"""What the tests of streams share: a layer, and what a step of it must give."""

import copy

import torch

import seqloom


def make(cell="attn_rnn", *args, dtype=torch.float64, **kwargs):
    return seqloom.Recurrent(cell, *args or (3, 8), dtype=dtype, **kwargs).eval()


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def close(mine, theirs):
    for a, b in zip(tensors(mine[0]) + tensors(mine[1]), tensors(theirs[0]) + tensors(theirs[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def whole(layer, x, hx=None):
    """What one step must give: `forward` with one step of time, here with the reference loop."""
    layer = copy.deepcopy(layer)
    layer.kernel = "loop"
    with torch.no_grad():
        y, state = layer(x.unsqueeze(0), hx)
    return y.squeeze(0), state

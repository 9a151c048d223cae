"""Shared by the tests of streams: a layer, and the expected result of a step."""

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
    """Return the expected result of a step: `forward` with one time step in the reference loop."""
    layer = copy.deepcopy(layer)
    layer.kernel = "loop"
    with torch.no_grad():
        y, state = layer(x.unsqueeze(0), hx)
    return y.squeeze(0), state

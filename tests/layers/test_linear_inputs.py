"""Difficult input for every linear recurrence: odd lengths, one step, sizes that differ, decays of 0, other types."""

import inspect

import pytest
import torch

from seqloom.core.errors import DtypeError
from seqloom.layers.linear.layer import LinearMixer, Mixer

D, HEADS = 8, 2
NAMES = list(Mixer.registry)


def make(name, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    return Mixer.registry[name](D, HEADS, **settings).to(dtype).eval()


def run_steps(layer, x):
    state, outputs = None, []
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def assert_same(actual, expected, **close):
    torch.testing.assert_close(actual[0], expected[0], **close)
    for a, b in zip(actual[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("T", [1, 7, 67])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_any_length_gives_what_steps_give(name, T):
    layer, x = make(name), torch.randn(2, T, D, dtype=torch.float64)
    expected = run_steps(layer, x)
    assert_same(layer(x), expected)
    with torch.enable_grad():  # chunks of torch's products, or the scan
        assert_same(layer(x), expected)


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(Mixer.registry[n], LinearMixer)])
@torch.no_grad()
def test_keys_and_values_may_differ_in_size(name):
    options = inspect.signature(Mixer.registry[name]).parameters
    settings = (
        {"key_size": 6} if "key_size" in options else {"state_channels": 5} if "state_channels" in options else {}
    )
    layer = make(name, **settings)
    if not settings:
        assert name in ("hgrn2", "rwkv7")  # K = V by definition
    else:
        assert layer.key_size != layer.value_size
    x = torch.randn(2, 11, D, dtype=torch.float64)
    y, state = layer(x)
    assert y.shape == x.shape
    assert_same((y, state), run_steps(layer, x))


def make_forgetful(name):
    """Return a layer in bfloat16, and an input, with decays whose exponentials are 0."""
    layer, x = make(name, torch.bfloat16), torch.randn(2, 19, D, dtype=torch.bfloat16)
    with torch.no_grad():
        if name == "lru":
            layer.nu.fill_(10)
        elif name == "s5":
            layer.L_real.fill_(10)
            layer.dt.fill_(5)
        else:
            x[:, ::3] *= 3e4  # gates read the input
    return layer, x


@pytest.mark.parametrize("name", NAMES)
def test_decays_of_0_in_bfloat16_give_no_nan(name):
    layer, x = make_forgetful(name)
    leaf = x.clone().requires_grad_()
    y, state = layer(leaf)
    (y.float() / y.detach().float().abs().max()).square().sum().backward()
    with torch.no_grad():
        engine, _ = layer(x)
    steps, last = run_steps(layer, x)
    for part in (y, engine, steps, *state, *last, leaf.grad, *(p.grad for p in layer.parameters())):
        assert torch.isfinite(part).all()
    scale, y = float(y.detach().abs().max()), y.detach()
    for other in (engine, steps):
        torch.testing.assert_close(other / scale, y / scale, rtol=0, atol=0.03)  # 8 bits


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_state_of_another_type_is_converted_or_named(name):
    layer, x = make(name), torch.randn(2, 5, D, dtype=torch.float64)
    _, state = layer(x)
    y, end = layer(x, state)
    single = tuple(s.float() if s.is_floating_point() else s for s in state)
    actual, last = layer(x, single)
    assert actual.dtype == torch.float64
    assert [s.dtype for s in last] == [s.dtype for s in end]
    torch.testing.assert_close(actual, y, rtol=1e-4, atol=1e-5)
    stepped, _ = layer.step(x[:, 0], single)
    torch.testing.assert_close(stepped, y[:, 0], rtol=1e-4, atol=1e-5)
    at = max(i for i, s in enumerate(state) if s.is_floating_point() and (s.dim() > 2 or name == "rg_lru"))
    whole = tuple(s.long() if i == at else s for i, s in enumerate(state))
    for call in (lambda: layer(x, whole), lambda: layer.step(x[:, 0], whole)):
        with pytest.raises(DtypeError, match=r"floating-point tensor, got torch\.int64"):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_made_on_the_meta_device(name):
    with torch.device("meta"):
        layer = Mixer.registry[name](D, HEADS)
    assert all(p.is_meta for p in layer.parameters())
    layer.to_empty(device="cpu").load_state_dict(make(name).state_dict())

"""Tensors that kernels read by address have the right shape and plain memory, or are refused by name."""

import pytest
import torch
from torch import nn

import seqloom

LAYERS = {
    "gru": lambda: seqloom.GRU(4, 8),
    "lstm": lambda: seqloom.LSTM(4, 512),
    "rnn": lambda: seqloom.RNN(4, 8),
    "attn_rnn": lambda: seqloom.AttnRNN(4, 8),
    "ln_gru": lambda: seqloom.LNGRU(4, 8),
    "ln_lstm": lambda: seqloom.LNLSTM(4, 8),
}
WAYS = ("parameter", "data", "functional_call")


def call(layer, way, name, value, x):
    """Call a layer after one weight was replaced."""
    if way == "functional_call":
        return torch.func.functional_call(layer, {name: value}, (x,))
    if way == "parameter":
        setattr(layer, name, nn.Parameter(value))
    else:
        getattr(layer, name).data = value
    return layer(x)


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gradients", [True, False])
def test_a_weight_of_another_shape_is_refused_by_name(cell, way, gradients):
    names = [name for name, _ in LAYERS[cell]().named_parameters()]
    for name in names:
        layer = LAYERS[cell]()
        shape = tuple(getattr(layer, name).shape)
        for other in ((1,), tuple(n + 1 for n in shape), tuple(reversed(shape)) if len(set(shape)) > 1 else (3, 3)):
            layer = LAYERS[cell]()
            with torch.set_grad_enabled(gradients), pytest.raises(RuntimeError, match=rf"{name} must have shape"):
                call(layer, way, name, torch.zeros(other), torch.randn(3, 2, 4))


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("way", ["parameter", "data"])
def test_a_step_refuses_a_weight_of_another_shape(cell, way):
    for name, _ in LAYERS[cell]().named_parameters():
        for started in (False, True):  # before or after the engine has taken the addresses
            layer = LAYERS[cell]()
            x = torch.randn(2, 4)
            with torch.no_grad():
                state = layer.step(x)[1] if started else None
                if way == "parameter":
                    setattr(layer, name, nn.Parameter(torch.zeros(1)))
                else:
                    getattr(layer, name).data = torch.zeros(1)
                with pytest.raises(RuntimeError, match=f"{name} must have shape"):
                    layer.step(x, state)


@pytest.mark.parametrize("cell", LAYERS)
def test_tied_weights_of_another_shape_are_refused(cell):
    first, second = LAYERS[cell](), seqloom.Recurrent(cell, 4, 12)
    name = next(name for name, w in first.named_parameters() if w.dim() == 2 and w.shape[0] != w.shape[1])
    setattr(first, name, getattr(second, name))
    with pytest.raises(RuntimeError, match=f"{name} must have shape"):
        first(torch.randn(3, 2, 4))


@pytest.mark.parametrize("cell", LAYERS)
def test_a_negated_view_keeps_its_sign(cell):
    """`imag` of a conjugate is the negative of what lies in memory."""
    layer = LAYERS[cell]()
    x = torch.randn(3, 2, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(layer(x)[0], layer(x.resolve_neg().clone())[0])
    with torch.no_grad():
        torch.testing.assert_close(layer.step(x[0])[0], layer.step(x[0].resolve_neg().clone())[0])
    h = torch.randn(1, 2, layer.hidden_size, dtype=torch.complex64).conj().imag
    given = (h, h) if "lstm" in cell else h
    plain = (h.resolve_neg(), h.resolve_neg()) if "lstm" in cell else h.resolve_neg()
    torch.testing.assert_close(layer(x, given)[0], layer(x, plain)[0])
    with torch.no_grad():
        torch.testing.assert_close(layer.step(x[0], given)[0], layer.step(x[0], plain)[0])


@pytest.mark.parametrize("cell", LAYERS)
def test_a_negated_weight_keeps_its_sign(cell):
    layer = LAYERS[cell]()
    values = {name: torch.complex(p, p).conj().imag.detach() for name, p in layer.named_parameters()}
    assert all(v.is_neg() for v in values.values())
    plain = {name: v.resolve_neg() for name, v in values.items()}
    x = torch.randn(3, 2, 4)
    torch.testing.assert_close(
        torch.func.functional_call(layer, values, (x,))[0], torch.func.functional_call(layer, plain, (x,))[0]
    )


@pytest.mark.parametrize("cell", LAYERS)
def test_a_symbolic_zero_is_zeros(cell):
    layer = LAYERS[cell]()
    zero = torch._efficientzerotensor(3, 2, 4)
    torch.testing.assert_close(layer(zero)[0], layer(torch.zeros(3, 2, 4))[0])
    with torch.no_grad():
        torch.testing.assert_close(layer.step(torch._efficientzerotensor(2, 4))[0], layer.step(torch.zeros(2, 4))[0])


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("step", [False, True])
def test_memory_that_was_freed_is_refused(cell, step):
    layer = LAYERS[cell]()
    x = torch.randn(2, 4) if step else torch.randn(3, 2, 4)
    call_ = layer.step if step else layer
    x.untyped_storage().resize_(0)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"memory was freed|out of bounds for storage"):
        call_(x)
    with torch.no_grad():
        good = torch.randn(2, 4) if step else torch.randn(3, 2, 4)
        call_(good)  # the engine has taken the addresses
        name, weight = next(iter(layer.named_parameters()))
        weight.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"{name} .*memory was freed"):
            call_(good)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_a_gpu_refuse_a_weight_of_another_shape(cell, dtype):
    def build():
        return seqloom.Recurrent(cell, 64, 128).to("cuda", dtype)

    x = torch.randn(5, 3, 64, device="cuda", dtype=dtype)
    for name, _ in build().named_parameters():
        for started in (False, True):  # before or after a kernel has taken the addresses
            layer = build()
            if started:
                layer(x)[0].sum().backward()
            with pytest.raises(RuntimeError, match=f"{name} must have shape"):
                call(layer, "data", name, torch.zeros(1, device="cuda", dtype=dtype), x)
            with torch.no_grad(), pytest.raises(RuntimeError, match=f"{name} must have shape"):
                layer(x)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_on_a_gpu_read_plain_memory(cell, dtype):
    layer = seqloom.Recurrent(cell, 64, 128).to("cuda", dtype)
    x = torch.randn(5, 3, 64, device="cuda", dtype=torch.complex64).conj().imag
    if dtype is torch.float32:
        assert x.is_neg()
        torch.testing.assert_close(layer(x)[0], layer(x.resolve_neg().clone())[0])
    zero = torch._efficientzerotensor(5, 3, 64, device="cuda", dtype=dtype)
    torch.testing.assert_close(layer(zero)[0], layer(torch.zeros(5, 3, 64, device="cuda", dtype=dtype))[0])
    freed = torch.randn(5, 3, 64, device="cuda", dtype=dtype)
    freed.untyped_storage().resize_(0)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"memory was freed|out of bounds for storage"):
        layer(freed)


@pytest.mark.parametrize("cell", LAYERS)
def test_an_output_changed_in_place_keeps_its_gradient(cell):
    layer = seqloom.Recurrent(cell, 4, 8, kernel=f"{cell}_cpu")
    x = torch.randn(3, 2, 4)
    wanted = torch.autograd.grad(layer(x)[0].relu().sum(), list(layer.parameters()))
    torch.testing.assert_close(torch.autograd.grad(layer(x)[0].relu_().sum(), list(layer.parameters())), wanted)


@pytest.mark.parametrize("cell", LAYERS)
def test_an_output_that_backward_needs_says_what_to_do_when_it_was_changed(cell):
    layer = seqloom.Recurrent(cell, 4, 8, kernel=f"{cell}_cpu", batch_first=True)
    y = layer(torch.randn(3, 2, 4))[0].relu_()
    with pytest.raises(RuntimeError, match=r"inplace operation.*write y = y\.relu\(\) instead of y\.relu_\(\)"):
        y.sum().backward()

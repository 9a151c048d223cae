"""Derivatives that torch.nn's recurrent layers refuse, somewhere or always."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, jvp, vmap

import seqloom
import seqloom.cells  # the registry, for the parametrisation

each_cell = pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it
some_cells = pytest.mark.parametrize("cell", ["rnn", "lstm", "gru", "attn_rnn"])


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 4), batch_first=True, dtype=torch.float64, **kwargs)


def some(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "stacked"])
@some_cells
def test_second_derivatives_of_input_and_weights_are_right(cell, options):
    layer = make(cell, **options)
    names = [n for n, _ in layer.named_parameters()]

    def run(x, *weights):
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x,))[0]

    inputs = [some(1, 3, 3).requires_grad_(), *(p.detach().requires_grad_() for p in layer.parameters())]
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("lengths", [None, [3, 0, 2]], ids=["whole", "lengths"])
@some_cells
def test_a_gradient_penalty_is_the_same_by_every_kernel(cell, lengths):
    actual = []
    for kernel in ("auto", "loop"):
        layer = make(cell, bidirectional=True, kernel=kernel)
        x = some(3, 3, 3).requires_grad_()
        (dx,) = torch.autograd.grad(layer(x, lengths=lengths)[0].square().sum(), x, create_graph=True)
        actual.append(torch.autograd.grad(dx.square().sum(), [x, *layer.parameters()], allow_unused=True))
    for auto, loop in zip(*actual, strict=True):
        assert (auto is None) == (loop is None)
        if auto is not None:
            close(auto, loop)


@each_cell
def test_gradients_of_each_sample_by_vmap(cell):
    layer = make(cell, bidirectional=True)
    weights = {n: p.detach() for n, p in layer.named_parameters()}

    def loss(weights, x):
        return functional_call(layer, weights, (x,))[0].square().sum()

    x = some(3, 4, 3)
    together = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for row in range(3):
        alone = torch.autograd.grad(layer(x[row])[0].square().sum(), list(layer.parameters()), allow_unused=True)
        for name, expected in zip(weights, alone, strict=True):
            close(together[name][row], torch.zeros_like(weights[name]) if expected is None else expected)


def test_vmap_takes_lengths_along():
    layer = make("gru", bidirectional=True)
    x, lengths = some(3, 4, 3), torch.tensor([4, 0, 2])
    y = vmap(lambda row, length: layer(row, lengths=length.unsqueeze(0))[0])(x, lengths)
    close(y, layer(x, lengths=lengths)[0])


def test_vmap_runs_an_ensemble():
    layers = [make("lstm"), make("lstm").requires_grad_(False)]
    torch.nn.init.zeros_(layers[1].weight_hh_l0)
    weights = {n: torch.stack([layer.get_parameter(n).detach() for layer in layers]) for n in layers[0].state_dict()}
    x = some(2, 4, 3)
    y = vmap(lambda w: functional_call(layers[0], w, (x,))[0])(weights)
    for mine, layer in zip(y, layers, strict=True):
        close(mine, layer(x)[0])


@forward_mode
@each_cell
def test_forward_mode_is_the_slope(cell):
    layer = make(cell, bidirectional=True).requires_grad_(False)
    x, v = some(2, 4, 3), some(2, 4, 3).flip(0)
    y, slope = jvp(lambda x: layer(x)[0], (x,), (v,))
    step = 1e-5
    close(y, layer(x)[0])
    expected = (layer(x + step * v)[0] - layer(x - step * v)[0]) / (2 * step)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)  # of the difference, not of ours


@forward_mode
@some_cells
def test_dual_numbers_go_through(cell):
    layer = make(cell)
    x, v = some(2, 4, 3), some(2, 4, 3).flip(0)
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, v))[0]).tangent
    close(slope, jvp(lambda x: layer(x)[0], (x,), (v,))[1])


def test_a_jacobian_by_vmap_over_backwards():
    layer = make("gru").requires_grad_(False)
    x = some(3, 3)
    expected = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)
    close(jacrev(lambda x: layer(x)[0])(x), expected)
    for step in range(3):
        assert not expected[step, :, step + 1 :].any()  # nothing looks ahead


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_gradients_in_eval_mode_are_those_of_training(cell):
    layer = make(cell, 3, 4, 2, bidirectional=True)
    actual = []
    for training in (True, False):
        actual.append(torch.autograd.grad(layer.train(training)(some(2, 4, 3))[0].sum(), list(layer.parameters())))
    for train, evaluation in zip(*actual, strict=True):
        assert torch.equal(train, evaluation)


@some_cells
def test_a_backward_frees_what_was_saved_unless_the_graph_is_kept(cell):
    layer = make(cell)
    y, _ = layer(some(2, 5, 3))
    y.sum().backward(retain_graph=True)
    once = [p.grad.clone() for p in layer.parameters()]
    y.sum().backward()
    for p, g in zip(layer.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()

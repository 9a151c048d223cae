import pytest
import torch
import torch.nn.functional as F

from seqloom.layers.tcn import TCN
from seqloom.models.classify import Classify


def tcn(*args, **settings):
    return TCN(*args, **settings).double().eval()


def test_a_block_is_two_causal_weight_normed_convolutions_and_a_residual_connection():
    layer, x = tcn(3, 5, num_layers=1, kernel_size=3), torch.randn(2, 7, 3, dtype=torch.float64)
    block = layer.blocks[0]

    def conv(part, x):
        g, v = part.conv.g, part.conv.v
        W = g * v / v.flatten(1).norm(dim=1)[:, None, None]
        return torch.relu(F.conv1d(F.pad(x, (2, 0)), W, part.conv.bias))

    u = x.transpose(1, 2)
    y = torch.relu(conv(block.second, conv(block.first, u)) + F.conv1d(u, block.around.weight, block.around.bias))
    torch.testing.assert_close(layer(x)[0], y.transpose(1, 2))


@pytest.mark.parametrize(("layers", "kernel"), [(1, 2), (2, 3), (3, 4)])
def test_an_output_depends_on_its_receptive_field_only(layers, kernel):
    layer = tcn(1, 4, num_layers=layers, kernel_size=kernel)
    for p in layer.parameters():
        p.data.abs_()  # no path is cut by a relu
    x = torch.rand(1, layer.reach + 5, 1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0][0, -1].sum(), x)
    seen = gradient[0, :, 0] != 0
    assert seen[-layer.reach :].any() and seen[-layer.reach] and not seen[: -layer.reach].any()


def test_it_continues_from_a_state_in_chunks_of_any_size():
    layer, x = tcn(3, 4, num_layers=3), torch.randn(2, 20, 3, dtype=torch.float64)
    whole, _ = layer(x)
    state, parts = None, []
    for piece in x.split([1, 7, 2, 10], 1):
        y, state = layer(piece, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_packed_and_single_sequences_match_padded_ones():
    layer, x = tcn(3, 4), torch.randn(2, 6, 3, dtype=torch.float64)
    lengths = torch.tensor([2, 6])
    y, state = layer(x, lengths=lengths)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    again, after = layer(packed)
    torch.testing.assert_close(torch.nn.utils.rnn.pad_packed_sequence(again, batch_first=True)[0], y)
    torch.testing.assert_close(after, state)
    torch.testing.assert_close(layer(packed, state)[1], layer(x, state, lengths)[1])
    torch.testing.assert_close(layer(x[1])[0], y[1])


def test_gradients_of_input_state_and_weights_are_right():
    layer = tcn(2, 3, num_layers=2)
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    _, state = layer(torch.randn(2, 5, 2, dtype=torch.float64))
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in layer.named_parameters()), strict=True)

    def run(x, *rest):
        weights = dict(zip(names, rest[len(state) :], strict=True))
        y, after = torch.func.functional_call(layer, weights, (x, rest[: len(state)], torch.tensor([4, 2])))
        return y, *after

    torch.autograd.gradcheck(run, (x, *(s.detach().requires_grad_() for s in state), *values), fast_mode=True)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="kernel_size must be at least 2, got 1"):
        TCN(3, 4, kernel_size=1)
    layer = TCN(3, 4)
    with pytest.raises(ValueError, match="2 features, expected input_size=3"):
        layer(torch.randn(1, 5, 2))
    _, state = layer(torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match=r"shape \(2, 3, 2\), expected \(1, 3, 2\)"):
        layer(torch.randn(1, 5, 3), state)
    with pytest.raises(ValueError, match="8 tensors, got 3"):
        layer(torch.randn(2, 5, 3), state[:3])


def adding(rows, steps):
    """Draw numbers of which two are marked, one in each half; the answer is their sum."""
    x = torch.zeros(rows, steps, 2)
    x[:, :, 0] = torch.rand(rows, steps)
    for low, high in ((0, steps // 2), (steps // 2, steps)):
        x[torch.arange(rows), torch.randint(low, high, (rows,)), 1] = 1
    return x, (x[:, :, 0] * x[:, :, 1]).sum(1, keepdim=True)


def learned(model, steps, length, device="cpu"):
    """Return the mean squared error after at most this many steps; the mean of all answers has 1/6."""
    model, recent = model.to(device), 1.0
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1.0, 3 * (1 - i / steps)))  # or chance decides
    for i in range(steps):
        loss = model.loss(*(t.to(device) for t in adding(64, length)))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        falling.step()
        recent = 0.95 * recent + 0.05 * loss.detach()
        if i % 100 == 99 and recent < 0.003:
            break
    with torch.no_grad():
        return float(model.loss(*(t.to(device) for t in adding(1000, length))))


@pytest.mark.long
def test_it_learns_to_add_two_marked_numbers():
    assert learned(Classify(TCN(2, 16, num_layers=3, kernel_size=4), outputs=1), 400, 24) < 0.01


@pytest.mark.gpu
def test_it_learns_to_add_two_of_four_hundred_numbers():
    """Training stays at the mean of all answers for a random time, so it gets many steps."""
    torch.manual_seed(0)
    assert learned(Classify(TCN(2, 24, num_layers=7, kernel_size=4), outputs=1), 6_000, 400, "cuda") < 0.01


def test_a_step_of_rows_without_features_is_no_sequence():
    with pytest.raises(ValueError, match=r"step takes \(B, 1\), got shape \(3,\)"):
        TCN(1, 4).step(torch.randn(3))

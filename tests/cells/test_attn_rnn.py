import math

import pytest
import torch
import torch.nn.functional as F

import seqloom
from seqloom import measure

COLUMN = {16: 3.26e-2, 64: 1.65e-2, 128: 1.52e-3, 256: 2.83e-4, 512: 2.28e-6, 1024: 5.10e-10}


def test_the_published_gradient_norms_are_reproduced_to_three_digits():
    torch.manual_seed(54)
    layer = seqloom.AttnRNN(64, 64)
    for steps, published in COLUMN.items():
        norm = measure.initial_gradient_norm(layer, torch.ones(steps, 64), torch.zeros(1, 64))
        assert float(f"{norm:.2e}") == pytest.approx(published, rel=1e-9), steps


@pytest.mark.parametrize("parts", [("h", "x", "h+x", "h*x"), ("h", "x"), ("x",), ("h*x", "h")])
@pytest.mark.parametrize("norm", [True, False])
def test_a_step_is_multi_head_attention_over_the_context_rows(parts, norm):
    cell = seqloom.AttnRNNCell(8, 8, heads=2, context=parts, norm=norm)
    x, h = torch.randn(3, 8), torch.randn(3, 8)
    rows = {"h": h, "x": x, "h+x": h + x, "h*x": h * x}
    context = torch.stack([rows[p] for p in parts], 1).view(3, len(parts), 2, 4).transpose(1, 2)
    q = F.linear(h, cell.weight_q, cell.bias_q).view(3, 2, 1, 4)
    read = F.scaled_dot_product_attention(q, context, context).reshape(3, 8)
    o = F.gelu(F.linear(read, cell.weight_o, cell.bias_o))
    n = F.layer_norm(o + h, (8,), cell.scale_n, cell.bias_n) if norm else o
    g = torch.sigmoid(F.linear(torch.cat([h, o], -1), cell.weight_g, cell.bias_g))
    torch.testing.assert_close(cell(x, h), g * n + (1 - g) * h)


def test_slots_attend_over_three_rows_each_and_one_for_the_input():
    cell = seqloom.AttnRNNCell(5, 8, slots=3)
    x = torch.randn(2, 5)
    state = cell.initial_state(x)
    assert state[0].shape == (2, 3, 8)
    gates = cell.gates(cell.project(x.unsqueeze(1)).squeeze(1), state)
    assert gates["a"].shape == (2, 3, 3 * 3 + 1, 4)
    torch.testing.assert_close(gates["a"].sum(2), torch.ones(2, 3, 4))
    y, (after,) = cell.step(cell.project(x.unsqueeze(1)).squeeze(1), state)
    torch.testing.assert_close(y, after.sum(1))


def test_slots_start_apart_and_one_slot_starts_at_the_constant():
    assert torch.equal(seqloom.AttnRNNCell(4, 8).initial_state(torch.zeros(1, 4))[0], torch.full((1, 8), 1e-3))
    (many,) = seqloom.AttnRNNCell(4, 8, slots=4).initial_state(torch.zeros(1, 4))
    assert torch.linalg.matrix_rank(many[0] * 1e3) == 4


def test_one_slot_is_the_plain_cell_when_written_as_slots():
    """Two slots with the same start and input stay equal, so the second one adds nothing."""
    cell = seqloom.AttnRNNCell(8, 8, slots=2)
    h = torch.randn(3, 1, 8).expand(3, 2, 8)
    _, (after,) = cell.step(torch.randn(3, 8), (h,))
    torch.testing.assert_close(after[:, 0], after[:, 1])


def test_the_gate_starts_at_its_bias():
    layer = seqloom.AttnRNN(5, 8, 2, bidirectional=True, gate_bias=-3.0)
    for end in ("l0", "l0_reverse", "l1", "l1_reverse"):
        assert torch.equal(getattr(layer, f"bias_g_{end}"), torch.full((8,), -3.0))


def test_there_is_no_input_projection_if_the_sizes_agree():
    assert "weight_u_l0" not in seqloom.AttnRNN(8, 8).state_dict()
    assert "weight_u_l0" in seqloom.AttnRNN(6, 8).state_dict()


def test_a_low_gate_bias_carries_the_gradient_far():
    torch.manual_seed(0)
    norms = {}
    for bias in (None, -3.0):
        layer = seqloom.AttnRNN(32, 32, gate_bias=bias, dtype=torch.float64)
        x, hx = torch.randn(200, 32).double(), torch.zeros(1, 32).double()
        norms[bias] = math.log10(measure.initial_gradient_norm(layer, x, hx))
    assert norms[-3.0] > norms[None] + 1


@pytest.mark.parametrize("width", [5, 8])
def test_a_normalised_input_does_not_depend_on_the_scale_of_the_input(width):
    torch.manual_seed(0)
    layer = seqloom.AttnRNN(width, 8, heads=2, input_norm=True, batch_first=True)
    if width != 8:
        torch.nn.init.zeros_(layer.bias_u_l0)
    x = torch.randn(2, 6, width)
    torch.testing.assert_close(layer(100 * x)[0], layer(x)[0], atol=1e-4, rtol=1e-4)
    plain = seqloom.AttnRNN(width, 8, heads=2, batch_first=True)
    assert (plain(100 * x)[0] - plain(x)[0]).abs().max() > 0.1


def test_a_normalised_input_has_a_root_mean_square_of_the_learned_scale():
    cell = seqloom.AttnRNNCell(5, 8, input_norm=True)
    torch.nn.init.constant_(cell.scale_u, 3.0)
    u = cell.project(100 * torch.randn(4, 7, 5))  # large beside the epsilon
    torch.testing.assert_close(u.square().mean(-1).sqrt(), torch.full((4, 7), 3.0))
    assert torch.isfinite(cell.project(torch.zeros(1, 1, 5))).all()


def test_streaming_a_layer_with_a_normalised_input_matches_the_whole_sequence():
    layer = seqloom.AttnRNN(5, 8, input_norm=True, batch_first=True).eval()
    x, state, outputs = torch.randn(2, 6, 5), None, []
    with torch.no_grad():
        for t in range(6):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
        torch.testing.assert_close(torch.stack(outputs, 1), layer(x)[0], atol=1e-5, rtol=1e-5)

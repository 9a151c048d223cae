import pytest
import torch

from research.studies.ablation import BESIDE, STEP_BY_STEP, VARIANTS, Ablation, adds, copies
from research.studies.support.contenders import count_trained, find_hidden_size
from research.studies.support.outcome import Trial

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", [*VARIANTS, *BESIDE])
def test_every_variant_learns_on_both_problems_at_nearly_the_same_size(model):
    torch.manual_seed(0)
    study = Ablation(device="cuda")  # whose sizes are the coarser ones
    for condition in (adds(5, 1), copies(3, 1, count=2)):
        start = study.grid(model)[0][1]
        reader = study.build(model, 16, start, condition)
        batch = study.draw(condition)(torch.Generator().manual_seed(0), CPU)
        study.loss(reader, batch).backward()
        assert all(p.grad is not None for p in reader.parameters() if p.requires_grad)
        assert study.measure(reader, *batch)["error"] > 0
    hidden = find_hidden_size(lambda h: study.build(model, h, start, adds(50, 1)), 50_000, study.multiple(model))
    near = 0.36 if model == "lstm" else 0.08  # cuDNN's come in steps of 64
    assert count_trained(study.build(model, hidden, start, adds(50, 1))) == pytest.approx(50_000, rel=near)


def inside(model):
    """Return the layer, its gates, and the states after and before its first step."""
    torch.manual_seed(0)
    layer = Ablation().layer(model, 3, 8, VARIANTS[model].start, 20)
    cell, x, h = layer.cell_at(0), torch.randn(4, 3), torch.randn(4, 8)
    u = cell.project(x)
    return layer, cell.gates(u, (h,)), cell.step(u, (h,))[0], h


def test_an_ablated_part_has_no_effect():
    _, gates, after, h = inside("no gate")
    assert torch.equal(gates["g"], torch.ones(4, 8))
    torch.testing.assert_close(after, torch.nn.functional.layer_norm(gates["o"] + h, (8,)))
    _, gates, _, _ = inside("uniform weights")
    torch.testing.assert_close(gates["a"], torch.full_like(gates["a"], 0.25))
    _, gates, after, h = inside("residual, no LayerNorm")
    torch.testing.assert_close(after, gates["g"] * (gates["o"] + h) + (1 - gates["g"]) * h)
    _, gates, after, h = inside("no residual, no LayerNorm")
    torch.testing.assert_close(after, gates["g"] * gates["o"] + (1 - gates["g"]) * h)


def test_fixed_parts_are_not_trained():
    layer, *_ = inside("uniform weights")
    assert not layer.weight_q_l0.requires_grad and layer.weight_o_l0.requires_grad
    assert count_trained(layer) == 3 * 8 + 3 * 64 + 5 * 8  # u, o and g with their biases, and LayerNorm


def test_variants_without_a_fused_kernel_run_on_short_sequences_only():
    long = [c for c in Ablation.full.conditions if c.task["steps"] > 50]
    assert long and all(not set(c.models) & set(STEP_BY_STEP) for c in long)
    assert set(STEP_BY_STEP) < set(Ablation.full.models)


def test_a_variant_whose_name_has_a_comma_stays_one_in_the_verdict():
    condition = Ablation.full.conditions[0].name
    rows = [
        Trial(condition, model, 1e-3, "default", seed, "test", 4, 9, {"error": at + seed**2 / 100}, [], None)
        for model, at in (("attn_rnn", 0.1), ("no residual, no LayerNorm", 0.9), ("gru", 0.8))
        for seed in range(4)
    ]
    assert f"{condition}: better than 'no residual, no LayerNorm', gru." in Ablation().verdict(rows)
    assert Ablation().verdict(rows[::4]).startswith("One seed is not enough")

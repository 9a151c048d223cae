"""Everything people do with a torch layer besides calling it works with ours."""

import copy
import io
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import seqloom
import seqloom.cells  # the registry, for the parametrisation
from seqloom.core import precision
from seqloom.layers import named, whole

KINDS = ["RNN", "LSTM", "GRU"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, *args, **kwargs):
    torch.manual_seed(0)
    return getattr(seqloom, kind)(*args or (3, 4), **kwargs)


def pair(kind, *args, **kwargs):
    theirs = getattr(nn, kind)(*args or (3, 4), **kwargs)
    ours = make(kind, *args, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3))


@each_kind
def test_flatten_parameters_can_be_called(kind):
    layer = make(kind)
    before = layer(X)[0]
    assert layer.flatten_parameters() is None
    assert torch.equal(layer(X)[0], before)


@each_kind
@pytest.mark.parametrize("kernel", ["auto", "aten"])
def test_writing_to_the_outputs_leaves_the_last_state_alone(kind, kernel):
    y, state = make(kind, kernel=kernel)(X)
    before = [s.clone() for s in tensors(state)]
    with torch.no_grad():
        y.zero_()
    assert all(torch.equal(s, b) and s.is_contiguous() for s, b in zip(tensors(state), before, strict=True))


@each_kind
def test_all_weights_lists_the_parameters_by_layer_and_direction(kind):
    theirs, ours = pair(kind, 3, 4, 2, bidirectional=True)
    assert [[w.shape for w in part] for part in ours.all_weights] == [
        [w.shape for w in part] for part in theirs.all_weights
    ]
    assert ours.all_weights[1][1] is ours.weight_hh_l0_reverse


@each_kind
def test_a_deep_copy_computes_the_same_and_shares_nothing(kind):
    layer = make(kind, 3, 4, 2)
    other = copy.deepcopy(layer)
    before = layer(X)[0]
    assert torch.equal(other(X)[0], before)
    with torch.no_grad():
        other.weight_hh_l0.zero_()
    assert torch.equal(layer(X)[0], before)
    assert not torch.equal(other(X)[0], before)


@pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))
def test_a_saved_layer_computes_the_same_after_loading(cell):
    layer = seqloom.Recurrent(cell, 3, 8, 2, learn_initial_state=True)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert torch.equal(other(X)[0], layer(X)[0])
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert not torch.equal(other(X)[0], layer(X)[0])


@pytest.mark.parametrize(
    ("method", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16), ("double", torch.float64)]
)
@each_kind
def test_the_type_follows_the_weights(kind, method, dtype):
    theirs, ours = (getattr(layer, method)() for layer in pair(kind, 3, 4, 2, bidirectional=True))
    y, state = ours(X.to(dtype))
    expected, expected_state = theirs(X.to(dtype))
    coarse = 0.0 if dtype == torch.float64 else torch.finfo(dtype).eps * 4
    for mine, torchs in zip((y, *tensors(state)), (expected, *tensors(expected_state)), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, torchs, rtol=0, atol=max(coarse, 1e-12))


@each_kind
def test_a_layer_moves_to_the_meta_device_and_runs_there(kind):
    layer = make(kind, 3, 4, 2, bidirectional=True).to(device="meta")
    y, state = layer(X.to("meta"))
    assert y.is_meta and y.shape == (5, 2, 8)
    assert all(s.is_meta and s.shape == (4, 2, 4) for s in tensors(state))


@pytest.mark.parametrize("assign", [False, True])
@each_kind
def test_a_layer_made_on_meta_takes_loaded_weights(kind, assign):
    source = make(kind, 3, 4, 2)
    layer = make(kind, 3, 4, 2, device="meta")
    assert all(p.is_meta for p in layer.parameters())
    if not assign:
        layer.to_empty(device="cpu")
    layer.load_state_dict(source.state_dict(), assign=assign)
    assert torch.equal(layer(X)[0], source(X)[0])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))
def test_autocast_gives_low_outputs_and_carries_full_states(cell, fast, monkeypatch):
    monkeypatch.setattr(precision, "has_fast_products", lambda _: fast)
    torch.manual_seed(0)
    layer = seqloom.Recurrent(cell, 3, 8, 2, bidirectional=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(X)
    assert y.dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in tensors(state))
    torch.testing.assert_close(y.float(), layer(X)[0], rtol=0, atol=0.05)
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


def test_autocast_stays_in_float32_on_a_processor_that_would_emulate_it(monkeypatch):
    layer = make("GRU")
    expected = layer(X)[0].to(torch.bfloat16)
    monkeypatch.setattr(precision, "has_fast_products", lambda _: False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        text = str(seqloom.explain(layer, X))
        assert torch.equal(layer(X)[0], expected)
        low = X.to(torch.bfloat16)
        assert torch.equal(seqloom.scan(layer.cell_at(0), low.transpose(0, 1))[0].transpose(0, 1), layer(low)[0])
    assert text.splitlines()[-1] == (
        "autocast: stays in the type of the weights: this processor has no instructions for bfloat16 products"
    )
    assert seqloom.explain(layer, X).autocast == ""
    monkeypatch.setattr(precision, "has_fast_products", lambda _: True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert seqloom.explain(layer, X).autocast == ""


def test_the_processor_answers_for_both_16_bit_types():
    assert {precision.has_fast_products(dtype) for dtype in (torch.bfloat16, torch.float16)} <= {True, False}


def test_a_whole_layer_loads_with_weights_only(tmp_path, warm_python):
    for kind in named.NAMED:
        torch.save(kind(3, 4, bidirectional=True), tmp_path / f"{kind.__name__}.pt")
    code = (
        "import sys, torch, seqloom; [torch.load(file) for file in sys.argv[1:]]"  # no name of seqloom is used before
    )
    done = warm_python.run(code, *map(str, tmp_path.iterdir()), cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert [kind.__name__ for kind in named.NAMED] == [*whole.NAMES]
    layer = make("GRU")
    torch.save(layer, tmp_path / "layer.pt")
    assert torch.equal(torch.load(tmp_path / "layer.pt", weights_only=True)(X)[0], layer(X)[0])


def test_dynamic_quantisation_says_that_it_leaves_a_layer_as_it_is():
    quantise = pytest.importorskip("torch.ao.quantization").quantize_dynamic
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            quantise(nn.Sequential(nn.Linear(4, 2)))
        except RuntimeError as error:
            pytest.skip(f"torch cannot quantise its own layers on this processor: {error}")
        quantised = quantise(nn.ModuleDict({"rnn": make("LSTM"), "head": nn.Linear(4, 2)}))
    assert any("leaves this LSTM in floating point" in str(w.message) for w in seen)
    assert isinstance(quantised["rnn"], seqloom.LSTM) and not hasattr(quantised["rnn"], "qconfig")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        again = quantise(seqloom.convert(nn.ModuleDict({"rnn": make("LSTM")}), to="torch"))
        assert "Quantized" in type(again["rnn"]).__name__ or "quantized" in type(again["rnn"]).__module__
        torch.testing.assert_close(again["rnn"](X)[0], make("LSTM")(X)[0], rtol=0, atol=0.05)


def test_weight_norm_by_parametrization_takes_effect():
    theirs, ours = pair("GRU")
    for layer in (theirs, ours):
        parametrizations.weight_norm(layer, "weight_hh_l0")
    _halve_and_compare(theirs, ours, "parametrizations.weight_hh_l0.original0")


def test_weight_norm_by_hook_takes_effect():
    theirs, ours = pair("GRU")
    for layer in (theirs, ours):
        with pytest.warns(FutureWarning, match="weight_norm"):
            nn.utils.weight_norm(layer, "weight_hh_l0")
    _halve_and_compare(theirs, ours, "weight_hh_l0_g")


def _halve_and_compare(theirs, ours, gain):
    before = ours(X)[0].detach()
    for layer in (theirs, ours):
        with torch.no_grad():
            layer.get_parameter(gain).mul_(0.5)
        layer(X)[0].sum().backward()
    assert not torch.allclose(ours(X)[0], before)
    close(ours(X)[0], theirs(X)[0])
    torch.testing.assert_close(ours.get_parameter(gain).grad, theirs.get_parameter(gain).grad, rtol=0, atol=1e-5)


@each_kind
def test_functional_call_runs_on_the_weights_given(kind):
    layer, other = make(kind, 3, 4, 2), getattr(seqloom, kind)(3, 4, 2)
    y, _ = functional_call(layer, dict(other.named_parameters()), (X,))
    assert torch.equal(y, other(X)[0])
    assert not torch.equal(layer(X)[0], y)


@each_kind
def test_an_input_need_not_be_contiguous(kind):
    layer = make(kind, 3, 4, 2, bidirectional=True)
    strange = torch.randn(3, 5, 2, 2).permute(1, 2, 0, 3)[..., 0]
    assert not strange.is_contiguous()
    assert torch.equal(layer(strange)[0], layer(strange.contiguous())[0])


@each_kind
def test_an_assigned_parameter_takes_effect(kind):
    theirs, ours = pair(kind)
    for layer in (theirs, ours):
        layer.weight_hh_l0 = nn.Parameter(torch.zeros_like(layer.weight_hh_l0))
    close(ours(X)[0], theirs(X)[0])
    ours(X)[0].sum().backward()
    assert ours.weight_hh_l0.grad is not None


@each_kind
def test_a_frozen_weight_gets_no_gradient_and_the_others_theirs(kind):
    theirs, ours = pair(kind)
    for layer in (theirs, ours):
        layer.weight_hh_l0.requires_grad_(False)
        layer(X)[0].sum().backward()
    assert ours.weight_hh_l0.grad is None
    for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(theirs, name).grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@each_kind
def test_checkpointing_gives_the_same_gradients(kind, reentrant):
    layer = make(kind, 3, 4, 2, dropout=0.5)
    x = X.clone().requires_grad_()

    def gradients(y):
        for leaf in (x, *layer.parameters()):
            leaf.grad = None
        y.square().sum().backward()
        return [leaf.grad for leaf in (x, *layer.parameters())]

    torch.manual_seed(5)
    expected = gradients(layer(x)[0])
    torch.manual_seed(5)
    actual = gradients(checkpoint(lambda x: layer(x)[0], x, use_reentrant=reentrant))
    for mine, plain in zip(actual, expected, strict=True):
        close(mine, plain)


@pytest.mark.parametrize("grad", [True, False])
@each_kind
def test_a_trace_can_be_saved_and_runs_at_other_sizes(kind, grad):
    layer, file = make(kind, 3, 4, 2, bidirectional=True).eval(), io.BytesIO()
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and checks of shapes warn
        torch.jit.save(torch.jit.trace(layer, X), file)
        file.seek(0)
        loaded = torch.jit.load(file)
    x = torch.randn(7, 1, 3)
    close(loaded(x)[0], layer(x)[0])
    loaded(x)[0].sum().backward()
    assert all(p.grad is not None for p in loaded.parameters())


@pytest.mark.filterwarnings("ignore")
def test_a_trace_of_a_linear_recurrence_reads_its_input():
    layer = seqloom.Mamba2(8).eval()
    with torch.no_grad():
        traced, x = torch.jit.trace(layer, torch.randn(2, 5, 8)), torch.randn(3, 9, 8)
        close(traced(x)[0], layer(x)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["dense", "local", "linformer"])
def test_a_trace_of_a_transformer_that_is_not_causal_has_no_state(attention):
    layer, x = seqloom.Transformer(8, heads=2, attention=attention).eval(), torch.randn(2, 5, 8)
    y, state = torch.jit.trace(layer, x)(2 * x)
    close(y, layer(2 * x)[0])
    assert state == () and layer(x)[1] is None


def test_fx_takes_a_layer_as_a_leaf_and_says_so():
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m, name):
            return isinstance(m, seqloom.GRU) or super().is_leaf_module(m, name)

    model = nn.Sequential(make("GRU"))
    with pytest.raises(TypeError, match="got Proxy; give symbolic_trace's Tracer an is_leaf_module that returns True"):
        torch.fx.symbolic_trace(model)
    close(torch.fx.GraphModule(model, Tracer().trace(model))(X)[0], model(X)[0])


@pytest.mark.filterwarnings("ignore")
def test_scripting_is_refused_with_what_to_use_instead():
    with pytest.raises(ValueError, match=r"torch.jit.script cannot compile a GRU of seqloom; use torch.export"):
        torch.jit.script(nn.Sequential(make("GRU")))


def test_a_first_training_call_does_not_import_sympy():
    code = (
        "import sys, torch, seqloom\n"
        "for cell in ('gru', 'lstm', 'ln_gru', 'attn_rnn'):\n"
        "    seqloom.Recurrent(cell, 4, 16)(torch.randn(3, 2, 4))[0].sum().backward()\n"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

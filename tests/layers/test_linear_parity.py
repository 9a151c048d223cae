"""Linear recurrences against other packages: flash-linear-attention, transformers, mlstm_kernels and rwkv.

Each test skips by name if its package is not installed (the extra `parity`). Their references compute in float32.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import seqloom
from seqloom.kernels.linear.dispatch import run_linear
from seqloom.kernels.linear.job import make_job

B, T, H, K, V = 2, 37, 3, 8, 6
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def load_naive(name):
    """Return the module of flash-linear-attention's naive form; importing the package itself needs Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or importlib.util.find_spec("einops") is None:
        pytest.skip("fla-core and einops are not installed")
    file = Path(spec.submodule_search_locations[0]) / "ops" / name / "naive.py"
    module = importlib.util.module_from_spec(naive := importlib.util.spec_from_file_location(file.stem, file))
    naive.loader.exec_module(module)
    return module


@pytest.fixture
def parts():
    torch.manual_seed(0)
    q, k, v = torch.randn(B, T, H, K), F.normalize(torch.randn(B, T, H, K), dim=-1), torch.randn(B, T, H, V)
    return [t.requires_grad_() for t in (q, k, v, -torch.rand(B, T, H), torch.rand(B, T, H), torch.randn(B, H, K, V))]


def assert_same(mine, theirs, leaves):
    """Compare outputs, last states and gradients."""
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    grads = [torch.autograd.grad(y.square().sum() + S.sum(), leaves) for y, S in (mine, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a / b.abs().max(), b / b.abs().max(), **CLOSE)


def test_the_gated_delta_rule_is_that_of_fla(parts):
    naive, (q, k, v, g, beta, S) = load_naive("gated_delta_rule"), parts
    theirs = naive.naive_recurrent_gated_delta_rule(q, k, v, beta, g, 1.0, S, True)
    assert_same(run_linear(make_job(q, k, v, g, None, S, beta=beta)), theirs, parts)
    with torch.no_grad():
        torch.testing.assert_close(run_linear(make_job(q, k, v, g, None, S, beta=beta), "cpu"), theirs, **CLOSE)


def test_the_delta_rule_is_that_of_fla(parts):
    naive, (q, k, v, _, beta, S) = load_naive("delta_rule"), parts
    rows = [t.transpose(1, 2) for t in (q, k, v, beta)]
    y, end = naive.delta_rule_recurrence(*rows, S)
    mine = run_linear(make_job(q * K**-0.5, k, v, None, None, S, beta=beta))
    assert_same(mine, (y.transpose(1, 2), end), [q, k, v, beta, S])


def test_gated_linear_attention_is_that_of_fla(parts):
    naive, (q, k, v, _, _, S) = load_naive("gla"), parts
    g = (-torch.rand(B, T, H, K)).requires_grad_()
    theirs = naive.naive_recurrent_gla(q, k, v, g, S, True)
    assert_same(run_linear(make_job(q * K**-0.5, k, v, g, None, S)), theirs, [q, k, v, g, S])


def test_simple_gated_linear_attention_is_that_of_fla(parts):
    naive, (q, k, v, g, _, S) = load_naive("simple_gla"), parts
    theirs = naive.naive_recurrent_simple_gla(q, k, v, g, 1.0, S, True)
    assert_same(run_linear(make_job(q, k, v, g, None, S)), theirs, [q, k, v, g, S])


def test_retention_is_that_of_fla(parts):
    naive, (q, k, v, *_) = load_naive("retention"), parts
    layer = seqloom.RetNet(6 * H, H, key_size=K, value_size=V)
    decay = layer.decays(q).expand(B, T, H)
    theirs = naive.naive_retention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(run_linear(make_job(q * K**-0.5, k, v, decay))[0], theirs, **CLOSE)


def test_the_delta_product_is_that_of_fla(parts):
    naive, (q, k, v, g, beta, S) = load_naive("gated_delta_product"), parts
    n, T2 = 2, T // 2
    q, g = q[:, :T2], g[:, :T2]
    k, v, beta = (t[:, : n * T2] for t in (k, v, beta))
    theirs = naive.naive_recurrent_gated_delta_product(q, k, v, g, beta, 1.0, None, S, True, n)
    decay = torch.stack([g, torch.zeros_like(g)], 2).flatten(1, 2)
    mine = run_linear(make_job(q, k, v, decay, None, S, beta=beta, writes=n))
    assert_same(mine, theirs, parts)


def test_a_diagonal_and_low_rank_transition_is_that_of_fla(parts):
    naive, (q, k, v, _, _, S) = load_naive("generalized_delta_rule/dplr"), parts
    torch.manual_seed(1)
    g, a = -torch.rand(B, T, H, K), 0.3 * torch.randn(B, T, H, K)
    y, end = naive.dplr_recurrence(*(t.transpose(1, 2) for t in (q, k, v, a, k, g)), S)
    mine = run_linear(make_job(q * K**-0.5, k, v, g, -a, S))
    assert_same(mine, (y.transpose(1, 2), end), [q, k, v, S])


def test_mamba2_is_that_of_transformers():
    mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason="transformers is not installed")
    from transformers import Mamba2Config

    torch.manual_seed(0)
    settings = {"head_dim": 8, "state_size": 5, "expand": 2, "n_groups": 1, "chunk_size": 16}
    theirs = mamba.Mamba2Mixer(Mamba2Config(hidden_size=8, num_heads=2, **settings), layer_idx=0)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
    mine = seqloom.Mamba2(8, 2, state_channels=5)
    seqloom.load_published(mine, theirs.state_dict())
    x = torch.randn(2, 37, 8)
    torch.testing.assert_close(mine(x)[0], theirs(x), **CLOSE)


def test_rg_lru_is_that_of_recurrentgemma_in_transformers():
    name = "transformers.models.recurrent_gemma.modeling_recurrent_gemma"
    gemma = pytest.importorskip(name, reason="transformers is not installed")
    from transformers import RecurrentGemmaConfig

    torch.manual_seed(0)
    theirs = gemma.RecurrentGemmaRglru(RecurrentGemmaConfig(lru_width=8, num_attention_heads=2))
    mine = seqloom.RGLRU(8, 2)
    pairs = {"L": "recurrent_param", "W_i": "input_gate_weight", "b_i": "input_gate_bias"}
    pairs |= {"W_r": "recurrent_gate_weight", "b_r": "recurrent_gate_bias"}
    theirs.load_state_dict({other: mine.get_parameter(own) for own, other in pairs.items()})
    u = torch.randn(2, 21, 8)
    log_a, write = mine.gates(u)
    scale = torch.sqrt(-torch.expm1(2 * log_a))
    scale[:, 0] = 1
    from seqloom.kernels.linear.diagonal import scan_diagonal

    h, _ = scan_diagonal(log_a.exp(), scale * write, torch.zeros(2, 8))
    torch.testing.assert_close(h, theirs(u, torch.arange(21).expand(2, 21)), **CLOSE)


def test_the_block_around_rg_lru_is_that_of_recurrentgemma_in_transformers():
    name = "transformers.models.recurrent_gemma.modeling_recurrent_gemma"
    gemma = pytest.importorskip(name, reason="transformers is not installed")
    from transformers import RecurrentGemmaConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "lru_width": 8, "num_attention_heads": 2}
    theirs = gemma.RecurrentGemmaRecurrentBlock(RecurrentGemmaConfig(**sizes), layer_idx=0)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.3)
    mine, x = seqloom.RGLRU(8, 2), torch.randn(2, 21, 8)
    seqloom.load_published(mine, theirs.state_dict())
    expected = theirs(x, torch.arange(21).expand(2, 21), None, use_cache=False)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(mine(x)[0], expected, **CLOSE)


def test_capped_mlstm_is_that_of_xlstm_in_transformers():
    xlstm = pytest.importorskip("transformers.models.xlstm.modeling_xlstm", reason="transformers is not installed")
    if not hasattr(xlstm, "xLSTMLayer"):
        pytest.skip("transformers takes the layer from the package xlstm, which is installed")
    from transformers import xLSTMConfig

    torch.manual_seed(0)
    native = {"chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native"}
    config = xLSTMConfig(hidden_size=16, num_heads=2, weight_mode="single", return_last_states=True, **native)
    theirs = xlstm.xLSTMLayer(config)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.5)
    mine, x = seqloom.MLSTM(16, 2, key_size=theirs.qk_dim // 2, capped=True), torch.randn(2, 64, 16)
    seqloom.load_published(mine, theirs.state_dict())
    torch.testing.assert_close(mine(x)[0], theirs(x)[0], **CLOSE)


def test_mlstm_is_that_of_mlstm_kernels(parts):
    name = "mlstm_kernels.torch.recurrent.native_sequence"
    native = pytest.importorskip(name, reason="mlstm_kernels is not installed")
    torch.manual_seed(0)
    layer, x = seqloom.MLSTM(18, 3, key_size=4).eval(), torch.randn(2, 25, 18)
    with torch.no_grad():
        layer.W_if.weight.normal_(std=1.0)
        q, k = (layer.split(t) for t in layer.W_qk(layer.conv(x, None, None, None)[0]).chunk(2, -1))
        i, f = layer.W_if(x).chunk(2, -1)
        rows = (t.transpose(1, 2) for t in (q, k, layer.split(layer.W_v(x)), i, f))
        h = native.mlstm_recurrent_sequence__native_fw(*rows, eps=0.0).transpose(1, 2)
        expected = layer.W_o(layer.norm(h, layer.split(layer.W_g(x))).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected, **CLOSE)


def test_rwkv7_is_that_of_rwkv(monkeypatch):
    pytest.importorskip("rwkv", reason="rwkv is not installed")
    for flag, value in (("RWKV_V7_ON", "1"), ("RWKV_JIT_ON", "0"), ("RWKV_CUDA_ON", "0")):
        monkeypatch.setitem(os.environ, flag, value)
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    import rwkv.model

    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = flags
    torch.manual_seed(0)
    ranks = {"w": 8, "a": 4, "g": 16}
    w = {f"x_{letter}": torch.rand(128) for letter in "rwkvag"}
    w |= {f"{letter}1": 0.1 * torch.randn(128, rank) for letter, rank in ranks.items()}
    w |= {f"{letter}2": 0.1 * torch.randn(rank, 128) for letter, rank in ranks.items()}
    w |= {name: torch.randn(128) for name in ("w0", "a0", "k_k", "k_a", "ln_x.weight", "ln_x.bias")}
    w |= {f"{name}.weight": 0.1 * torch.randn(128, 128) for name in ("receptance", "key", "value", "output")}
    w["r_k"] = 0.1 * torch.randn(2, 64)
    layer, x = seqloom.RWKV7(128, 2, rank=16).eval(), torch.randn(1, 19, 128)
    seqloom.load_published(layer, {f"blocks.0.att.{name}": t for name, t in w.items()}, "blocks.0.att.")
    with torch.no_grad():
        y, *_ = rwkv.model.RWKV_x070_TMix_seq(
            *(0, 2, 64, x[0], torch.zeros(128), torch.zeros(128), torch.zeros(2, 64, 64)),
            *(w[f"x_{letter}"] for letter in "rwkvag"),
            *(w[name] for name in ("w0", "w1", "w2", "a0", "a1", "a2")),
            *(torch.zeros(1),) * 3,
            *(w[name] for name in ("g1", "g2", "k_k", "k_a")),
            w["r_k"].flatten(),
            *(w[f"{name}.weight"].T for name in ("receptance", "key", "value", "output")),
            *(w["ln_x.weight"], w["ln_x.bias"]),
        )
    torch.testing.assert_close(layer(x)[0][0], y, rtol=1e-4, atol=1e-5)

"""The kernels of linear recurrences against their definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import seqloom
from seqloom.core.errors import DtypeError, InputError, UserError
from seqloom.kernels.linear import bound, chunk, engine, recurrent
from seqloom.kernels.linear.choice import record_choices
from seqloom.kernels.linear.diagonal import scan_diagonal
from seqloom.kernels.linear.dispatch import choose_linear, run_linear
from seqloom.kernels.linear.job import make_job

SIZES = {  # B, T, heads, K, V, writes
    "a length that is no multiple of a chunk": (2, 37, 3, 8, 8, 1),
    "K and V differ": (1, 70, 2, 5, 11, 1),
    "one step": (2, 1, 2, 6, 9, 1),
    "two writes in one step": (1, 1, 2, 4, 33, 2),
    "three writes a step": (2, 11, 2, 8, 4, 3),
}
DECAYS = ("none", "scalar", "channel")
ERASES = ("none", "beta", "erase")


def make(size, decay, erase, dtype=torch.float64, flags=False, seed=0):
    B, T, H, K, V, n = size
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    steps = T * n
    q, v, state = normal(B, T, H, K), normal(B, steps, H, V), normal(B, H, K, V)
    k = F.normalize(normal(B, steps, H, K), dim=-1)
    g = None if decay == "none" else -normal(B, steps, H, K if decay == "channel" else 1).abs()
    beta = 2 * torch.rand(B, steps, H, generator=draw, dtype=torch.float64) if erase == "beta" else None
    e = 0.5 * k + 0.1 * normal(B, steps, H, K) if erase == "erase" else None
    more = {}
    if flags:
        more = {
            "lengths": torch.randint(0, T + 1, (B,), generator=draw),
            "reset": torch.rand(B, T, generator=draw) < 0.2,
        }
    parts = [None if t is None else t.to(dtype) for t in (q, k, v, g, e, state)]
    return make_job(*parts, beta=None if beta is None else beta.to(dtype), writes=n, **more)


@pytest.fixture(params=[chunk, engine], ids=["chunk", "cpu"])
def kernel(request):
    if request.param is engine and isinstance(engine._load(), str):
        pytest.skip("the engine is not built")
    return request.param


@pytest.mark.parametrize("flags", [False, True], ids=["", "lengths and resets"])
@pytest.mark.parametrize("erase", ERASES)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_gives_what_the_definition_gives(kernel, size, decay, erase, flags):
    job = make(SIZES[size], decay, erase, flags=flags)
    assert kernel.why_not(job) is None
    for actual, expected in zip(kernel.run(job), recurrent.run(job), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("decay", "erase"), [("scalar", "beta"), ("channel", "erase"), ("channel", "none")])
def test_a_kernel_is_at_most_twice_as_far_from_float64_as_the_definition(kernel, decay, erase):
    size = (2, 200, 2, 16, 16, 1)
    exact = recurrent.run(make(size, decay, erase))[0]
    job = make(size, decay, erase, torch.float32)
    mine, theirs = (float((run(job)[0] - exact).abs().max()) for run in (kernel.run, recurrent.run))
    assert mine <= 2 * theirs + 1e-7


@pytest.mark.parametrize("K", [8, 12])
def test_a_kernel_takes_lengths_and_resets_in_float32(kernel, K):
    size = (3, 70, 2, K, 9, 1)
    expected = recurrent.run(make(size, "scalar", "beta", flags=True))
    for actual, exact in zip(
        kernel.run(make(size, "scalar", "beta", torch.float32, flags=True)), expected, strict=True
    ):
        torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("erase", ERASES)
@pytest.mark.parametrize("decay", DECAYS)
def test_chunks_have_the_gradients_of_the_definition(decay, erase):
    job = make((2, 21, 2, 4, 5, 1), decay, erase, flags=True)
    leaves = [t.requires_grad_() for t in job.tensors if t.is_leaf]
    grads = []
    for run in (chunk.run, recurrent.run):
        y, state = run(job)
        grads.append(torch.autograd.grad(y.square().sum() + state.sum(), leaves))
    for a, b in zip(*grads, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_decay_that_underflows_empties_the_state(kernel):
    q, k, v = (torch.randn(1, 40, 2, 8, dtype=torch.bfloat16) for _ in range(3))
    decay = torch.full((1, 40, 2, 8), -1e-3, dtype=torch.bfloat16)
    decay[:, 5:9], decay[:, 30] = -3e38, -1000  # exp is 0 in every type
    job = make_job(q, k, v, decay)
    y, state = kernel.run(job)
    alone = make_job(q[:, 30:], k[:, 30:], v[:, 30:], decay[:, 30:])
    assert job.state.dtype == torch.float32 and torch.isfinite(y).all()
    torch.testing.assert_close(y[:, 30:], kernel.run(alone)[0])
    torch.testing.assert_close(state, recurrent.run(alone)[1])


def test_equal_keys_do_not_blow_up_the_triangular_system(kernel):
    k = torch.ones(1, 300, 1, 4) / 2
    v = torch.randn(1, 300, 1, 4)
    job = make_job(k, k, v, beta=torch.ones(1, 300, 1))
    torch.testing.assert_close(kernel.run(job)[0], v, rtol=1e-4, atol=1e-4)  # the delta rule replaces a value


def test_the_engine_runs_without_gradients_and_chunks_with_them():
    job = make((1, 9, 2, 4, 4, 1), "scalar", "beta")
    assert choose_linear(job)[0].name == "cpu"
    job.q.requires_grad_()
    chosen, choice = choose_linear(job)
    assert chosen.name == "chunk"
    assert ("cpu", "the CPU engine computes no gradients of linear recurrences") in choice.rejected
    assert "runs on GPUs" in dict(choice.rejected)["fla"]
    with torch.no_grad():
        assert choose_linear(job)[0].name == "cpu"


def test_threads_change_no_result():
    job = make((3, 300, 2, 32, 40, 1), "scalar", "beta", torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run_linear(job, "cpu")[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_an_empty_batch_has_no_outputs(kernel):
    q = torch.randn(0, 9, 2, 4)
    y, state = kernel.run(make_job(q, q, q, beta=q[..., 0]))
    assert y.shape == (0, 9, 2, 4) and state.shape == (0, 2, 4, 4)


def test_mistakes_are_named():
    q = torch.randn(2, 3, 1, 4)
    with pytest.raises(InputError, match=r"v must be \(2, 3, 1, 5\), got shape \(2, 2, 1, 5\)"):
        make_job(q, q, torch.randn(2, 2, 1, 5))
    with pytest.raises(InputError, match=r"the state must be \(2, 1, 4, 4\), got shape \(2, 4, 4\)"):
        make_job(q, q, q, state=torch.zeros(2, 4, 4))
    with pytest.raises(DtypeError, match=r"real floating-point tensors, got torch\.int64"):
        make_job(q, q, q, state=torch.zeros(2, 1, 4, 4, dtype=torch.int64))
    with pytest.raises(InputError, match="beta or erase, not both"):
        make_job(q, q, q, None, q, beta=q[..., 0])
    with pytest.raises(UserError, match="kernel must be one of auto, fla, cpu"):
        run_linear(make_job(q, q, q), "triton")
    with pytest.raises(UserError, match=r"kernel 'fla' cannot run this: .* runs on GPUs"):
        run_linear(make_job(q, q, q), "fla")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_diagonal_scan_matches_the_loop_with_gradients(dtype):
    torch.manual_seed(0)
    a = (0.9 * torch.rand(2, 13, 5, dtype=torch.float64)).to(dtype) * (1j if dtype.is_complex else 1)
    b, h = torch.randn(2, 13, 5, dtype=dtype), torch.randn(2, 5, dtype=dtype)
    leaves = [t.requires_grad_() for t in (a, b, h)]
    lengths, reset = torch.tensor([13, 6]), torch.rand(2, 13) < 0.2

    def loop():
        state, outputs = h, []
        for t in range(13):
            state_t = torch.where(reset[:, t, None], 0, a[:, t]) * state + b[:, t]
            state = torch.where((t < lengths)[:, None], state_t, state)
            outputs.append(state)
        return torch.stack(outputs, 1), state

    results = [scan_diagonal(a, b, h, lengths=lengths, reset=reset), loop()]
    grads = [torch.autograd.grad((y * y.conj()).real.sum() + end.real.sum(), leaves) for y, end in results]
    for x, y in zip((*results[0], *grads[0]), (*results[1], *grads[1]), strict=True):
        torch.testing.assert_close(x, y)
    torch.autograd.gradgradcheck(lambda *t: scan_diagonal(*t)[0][:, -1].abs(), [t[:1, :3].detach().requires_grad_()
        if t.dim() == 3 else t[:1].detach().requires_grad_() for t in (a, b, h)])  # fmt: skip


def test_a_recorder_sees_every_choice():
    with record_choices() as choices:
        run_linear(make((1, 3, 1, 2, 2, 1), "none", "none"))
        scan_diagonal(*(torch.rand(1, 3, 2) for _ in range(2)), torch.zeros(1, 2))
    assert [c.name for c in choices] == ["cpu", "cpu"]


@pytest.mark.parametrize("kind", [seqloom.MinGRU, seqloom.MinLSTM])
def test_positive_candidates_match_the_scan_in_log_space(kind):
    torch.manual_seed(0)
    layer = kind(4, 6, batch_first=True, positive=True).double()
    x, cell = torch.randn(2, 30, 4, dtype=torch.float64), layer.cell_at(0)
    a, b = cell.coefficients(cell.project(x))
    assert (b > 0).all()
    sums = a.log().cumsum(1)
    expected = (sums + torch.logcumsumexp(b.log() - sums, 1)).exp()  # Heinsen 2023, arXiv 2311.06281
    y, last = layer(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last[0], expected[:, -1])
    layer.kernel = "loop"
    torch.testing.assert_close(layer(x)[0], expected)


@pytest.mark.parametrize("writes", [1, 2])
@pytest.mark.parametrize(("decay", "erase"), [("none", "none"), ("scalar", "beta"), ("channel", "erase")])
def test_a_bound_step_gives_what_the_definition_gives(decay, erase, writes):
    if bound.load_step() is None:
        pytest.skip("this Python or torch has no interface for bound steps")
    job = make((2, 1, 3, 5, 7, writes), decay, erase)
    parts = (job.q, job.k, job.v, job.decay, job.erase, job.beta, job.state)
    with torch.no_grad():
        result = bound.run_step(*parts, writes)
        strided = bound.run_step(job.q.mT.contiguous().mT, *parts[1:], writes)
    assert result is not None and strided is not None
    for actual, expected in zip((*result, *strided), recurrent.run(job) * 2, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_a_bound_step_leaves_the_rest_to_the_kernels():
    if bound.load_step() is None:
        pytest.skip("this Python or torch has no interface for bound steps")
    q, S = torch.randn(2, 1, 2, 4), torch.randn(2, 2, 4, 4)
    with torch.no_grad():
        assert bound.run_step(q, q, q, None, None, None, S) is not None
        assert bound.run_step(q, q, q, None, None, None, S.double()) is None
        assert bound.run_step(q, q[:, :, :1], q, None, None, None, S) is None
        assert bound.run_step(q, q, q, q[..., :3], None, None, S) is None
        assert bound.run_step(q, q, q, None, None, None, S[:1]) is None
        assert bound.run_step(q, q, q, None, None, None, S, 2) is None
        assert bound.run_step(q, q, q, None, None, None, nn.Parameter(S)) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert bound.run_step(q, q, q, None, None, None, S) is None
        assert torch.vmap(lambda s: run_linear(make_job(q, q, q, state=s))[0])(S.unsqueeze(0)).shape == (1, 2, 1, 2, 4)
    assert bound.run_step(q, q, q, None, None, None, S) is None  # autograd may record

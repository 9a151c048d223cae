"""GRU and LSTM, the CUDA kernels' own text on the CPU: outputs and gradients against float64, and planted faults."""

import copy
import math
from dataclasses import replace
from itertools import product

import emulator
import pytest
import torch

from seqloom.cells.lookup import find_cell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.kernels import loop as any_loop
from seqloom.kernels.cuda.gated import code as _gated_code
from seqloom.kernels.cuda.gated import kernels as _gated_kernels
from seqloom.kernels.cuda.gated.code import GatedDivision, choose_division, list_divisions
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.registry import find_kernel

pytestmark = pytest.mark.usefixtures("emulated")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
KINDS = [_gated_kernels.KINDS[cell] for cell in ("gru", "ln_gru", "lstm", "ln_lstm")]


def cell_of(name, D, H, **settings):
    torch.manual_seed(0)
    cell = find_cell(name)(D, H, **settings)
    cell.learn_initial_state()
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return cell


def job_of(cell, B, T, dtype, wishes=""):
    x, H = torch.randn(B, T, cell.input_size).to(dtype), cell.hidden_size
    state = tuple(torch.randn(B, H).to(dtype) for _ in cell.start(x))
    ends, share = torch.randint(0, T + 1, (B,)), (torch.rand(B, H) < 0.8).to(dtype) / 0.8
    ends[0] = T
    keep = tuple((torch.randint(3, (B, T, H)) / 2).to(dtype) for _ in state)
    job = ScanJob(x, state, ends, torch.rand(B, T) < 0.3, None, share, keep)
    left = {"lengths": None, "reset": None, "mask": None, "keep": ()}
    return replace(job, **{name: nothing for name, nothing in left.items() if name not in wishes})


def in_type(job, dtype):
    to = {"x": job.x.to(dtype), "state": tuple(s.to(dtype) for s in job.state)}
    mask = None if job.mask is None else job.mask.to(dtype)
    return replace(job, **to, mask=mask, keep=tuple(k.to(dtype) for k in job.keep))


def everything(run, cell, job):
    cell, x = copy.deepcopy(cell), job.x.detach().clone().requires_grad_()
    state = tuple(s.detach().clone().requires_grad_() for s in job.state)
    y, last = run(cell, replace(job, x=x, state=state))
    torch.manual_seed(1)
    sum((t.double() * torch.randn(t.shape, dtype=torch.float64)).sum() for t in (y, *last)).backward()
    real = slice(None) if job.lengths is None else job.valid_steps()
    actual = {"y": y, "dx": x.grad[real]} | {f"last {i}": s for i, s in enumerate(last)}
    actual |= {f"dstate {i}": s.grad for i, s in enumerate(state)} | {n: p.grad for n, p in cell.named_parameters()}
    return {name: t.detach().double() for name, t in actual.items() if t is not None}


def worst(name, cell, job, dtype, backend="cuda"):
    """Return the largest error relative to that of the loop in the same type, and where it is."""
    low = copy.deepcopy(cell).to(dtype)
    actual, loop = (everything(run, low, job) for run in (find_kernel(f"{name}_{backend}").code.run, any_loop.run))
    true = everything(any_loop.run, copy.deepcopy(low).double(), in_type(job, torch.float64))
    ratios = {}
    for part, exact in true.items():
        least = 0.25 * torch.finfo(dtype).eps * exact.norm()  # half of a last bit, on average
        ratio = float((actual[part] - exact).norm() / (loop[part] - exact).norm().clamp(min=least))
        ratios[part] = math.inf if math.isnan(ratio) else ratio
    part = max(ratios, key=ratios.get)
    return ratios[part], part


def test_every_size_has_a_division_that_holds_it():
    for kind, back, (size, most) in product(KINDS, (False, True), ((2, heuristics.GATED_LARGEST_HIDDEN), (4, 512))):
        for hidden in range(16, most + 1, 16):
            ways = list_divisions(kind, hidden, back, size)
            assert ways and ways[0].rows == 8
            for way in ways:
                assert 16 * way.each * way.cluster >= hidden and 16 * way.split * way.deep >= hidden
                assert (
                    way.shared_bytes(kind, back) <= heuristics.SHARED_BYTES
                    and way.in_shared + way.from_cache <= kind.gates * way.deep
                )


def test_blocks_take_few_rows_if_the_batch_then_needs_half_of_the_gpu():
    batches = [(64, 132), (64, 264), (64, 265), (256, 64), (256, 68)]
    assert [choose_division(KINDS[0], H, False, B, 132).taken for H, B in batches] == [2, 4, 8, 4, 8]
    assert choose_division(KINDS[0], 64, False, 8, 132, size=4).taken == 4


def test_small_sizes_run_on_one_block_and_large_batches_on_more_rows():
    actual = [choose_division(KINDS[0], H, False, B, 132) for H in (64, 128, 256, 512) for B in (8, 256)]
    clusters = [(1, 8)] * 2 + [(2, 8)] * 2 + [(4, 8), (4, 16), (16, 8), (8, 16)]
    assert [(way.cluster, way.rows) for way in actual] == clusters
    assert [choose_division(KINDS[0], H, True, 8, 132).from_cache > 0 for H in (512, 768, 1024)] == [False, False, True]


ALL = "lengths reset mask keep"
SHAPES = [
    ("gru", 32, BF16, 9, 5, ""),  # one block, two groups of rows
    ("gru", 112, FP16, 3, 4, ALL),  # one block, two warps to a row
    ("gru", 144, BF16, 3, 3, ALL),  # two blocks
    ("gru", 20, BF16, 3, 4, ALL),  # padded to 32 units
    ("lstm", 100, FP16, 3, 4, ALL),  # padded to 112
    ("ln_gru", 48, FP16, 9, 4, ALL),
    ("ln_gru", 128, BF16, 3, 3, ""),
    ("ln_gru", 144, BF16, 3, 3, "lengths"),
    ("lstm", 32, FP16, 3, 4, ALL),
    ("lstm", 160, BF16, 3, 3, "keep"),
    ("ln_lstm", 48, BF16, 3, 4, ALL),
    ("ln_lstm", 144, FP16, 3, 3, ALL),
    ("gru", 64, FP32, 9, 5, ""),  # one block that keeps its weights split
    ("lstm", 144, FP32, 3, 4, ALL),  # a cluster
    ("gru", 20, FP32, 3, 4, ALL),
    ("rnn", 48, BF16, 9, 4, ALL),
]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "H", "dtype", "B", "T", "wishes"), SHAPES)
def test_a_kernel_is_at_most_twice_as_far_from_float64_as_the_loop(name, H, dtype, B, T, wishes):
    cell = cell_of(name, 24, H)
    assert worst(name, cell, job_of(cell, B, T, dtype, wishes), dtype)[0] < 2


@pytest.mark.slow
def test_a_relu_in_float32():
    cell = cell_of("rnn", 24, 32, nonlinearity="relu")
    assert worst("rnn", cell, job_of(cell, 3, 4, FP32, ALL), FP32)[0] < 2


@pytest.mark.slow
def test_products_of_19_bits_where_torch_allows_them(monkeypatch):
    monkeypatch.setattr(_gated_kernels, "allows_tf32", lambda: True)
    cell = cell_of("gru", 24, 48)
    ratio, _ = worst("gru", cell, job_of(cell, 3, 3, FP32), FP32)
    assert 2 < ratio < 2**13


@pytest.mark.slow
def test_sixteen_rows_several_chunks_and_no_bias(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 1)
    monkeypatch.setattr(heuristics, "GATED_CHUNK_NUMBERS", 18 * 48 * 2)
    cell = cell_of("gru", 24, 48, bias=False)
    assert worst("gru", cell, job_of(cell, 18, 5, BF16, ALL), BF16)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize(("in_shared", "from_cache"), [(4, 0), (1, 10)])
def test_weights_in_shared_memory_and_in_the_cache(monkeypatch, in_shared, from_cache):
    monkeypatch.setattr(_gated_code, "choose_division", lambda *_: GatedDivision(8, 2, 4, 2, 3, in_shared, from_cache))
    cell = cell_of("lstm", 24, 96)
    assert worst("lstm", cell, job_of(cell, 3, 3, FP16), FP16)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "ln_lstm"])
def test_values_past_a_length_have_no_effect(name):
    cell = cell_of(name, 24, 32).to(BF16)
    job = job_of(cell, 3, 4, BF16, "lengths")
    other = replace(job, x=job.x.masked_fill(~job.valid_steps().unsqueeze(-1), torch.nan))
    actual, again = (everything(find_kernel(f"{name}_cuda").code.run, cell, j) for j in (job, other))
    for part in actual:
        if part not in ("weight_ih", "bias_ih", "scale_ih"):  # 0 times NaN, outside of the kernel
            assert torch.equal(actual[part], again[part]), part


@pytest.mark.parametrize(("name", "H"), [("ln_gru", 16), ("lstm", 16), ("lstm", 13), ("gru", 13)])
def test_second_derivatives_come_from_the_loop(name, H):
    cell = cell_of(name, 24, H).to(BF16)
    job = job_of(cell, 2, 3, BF16, ALL)
    actual = []
    for run in (find_kernel(f"{name}_cuda").code.run, any_loop.run):
        leaves = [t.detach().requires_grad_() for t in (job.x, *job.state)]
        y, last = run(cell, replace(job, x=leaves[0], state=tuple(leaves[1:])))
        loss = sum((t.double() * torch.linspace(-1, 1, t.numel()).view(t.shape)).sum() for t in (y, *last))
        leaves += [p for n, p in cell.named_parameters()]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        actual.append([*first, *torch.autograd.grad(sum(g.double().square().sum() for g in first), leaves)])
    for mine, loops in zip(*actual, strict=True):
        if name == "ln_gru":  # whose projection rounds once where the loop's rounds twice
            assert (mine - loops).norm() <= 0.02 * loops.norm()
        else:
            assert torch.equal(mine, loops)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "H", "wishes", "helped", "taken"),
    [
        ("lstm", 48, ALL, (1, 16), 2),
        ("ln_gru", 112, "", (1, 16), 4),
        ("ln_lstm", 48, ALL, (1, 16), 2),
        ("ln_lstm", 144, ALL, (16, 16), 4),
    ],
)
def test_a_block_or_a_cluster_takes_fewer_rows_than_it_has_room_for(monkeypatch, name, H, wishes, helped, taken):
    monkeypatch.setattr(heuristics, "GATED_HELPED_BLOCKS", helped)
    choose_division.cache_clear()
    _gated_code.make_code.cache_clear()
    cell = cell_of(name, 24, H)
    kind = _gated_kernels.KINDS[name]
    assert choose_division(kind, H, True, 9, 132).taken == taken
    assert worst(name, cell, job_of(cell, 9, 3, BF16, wishes), BF16)[0] < 2


@pytest.mark.slow
def test_gradients_of_most_rows_in_float16_are_as_near_to_float64_as_the_loop():
    """One row of many can magnify rounding a hundred times, and then has most of the error of all gradients.

    So the ratio of one draw is between 0.1 and 4. The geometric mean over rows is steady.
    """
    cell = cell_of("ln_lstm", 64, 64).to(FP16)
    job = job_of(cell, 8, 12, FP16)
    run = find_kernel("ln_lstm_cuda").code.run
    actual, loop, exact = (
        everything(code, model, given)["dx"]
        for code, model, given in (
            (run, cell, job),
            (any_loop.run, cell, job),
            (any_loop.run, copy.deepcopy(cell).double(), in_type(job, torch.float64)),
        )
    )
    ratios = (actual - exact).norm(dim=(1, 2)) / (loop - exact).norm(dim=(1, 2))
    assert ratios.log().mean().exp() < 1


FAULTS = {
    "no barrier between the parts": (
        "compute_products(W, t, b, [] {}, [] {});\n    wait_block();",
        "compute_products(W, t, b, [] {}, [] {});",
    ),
    "the state taken before it came": ("b.take(i);", ""),
    "sent after the last step": (
        "if (t + 1 < end) share_state(t + 1, next_is_reset);",
        "share_state(t + 1, next_is_reset);",
    ),
    "one side alone": ("const u32 side = (i & 1) * SIDE", "const u32 side = 0 * SIDE"),
    "sums not expected": (
        "if constexpr (NORM) expect(barrier(SUMS_BARRIER + (i & 1)), SUMS / 2 / SLOTS_OF_ROWS * SENDERS);",
        "",
    ),
    "sums taken before they came": (
        "if constexpr (CLUSTER > 1) await(barrier(find_barrier(WHICH, i)), WHICH ? i & 1 : i >> 1 & 1);",
        "",
    ),
    "gradients taken before they came": ("b.take(i);", ""),
    "a wrong sign": ("f[4] = in.z;", "f[4] = -in.z;"),
}
HELPED_FAULTS = {  # where warps without a row help the others
    "the last step not stored": ("if (b.helps && end > 0) store(end - 1);", ""),
    "a step not handed over": ("hand_over(n, top - t + 1, b);", ""),
    "gradients not handed back": ("if (LATE) hand_back(g, i, b);", ""),
}


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "few"), [*product(FAULTS, [0]), *product(HELPED_FAULTS, [4])])
def test_a_fault_in_the_text_is_caught(monkeypatch, fault, few):
    change = (FAULTS | HELPED_FAULTS)[fault]
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=change))
    monkeypatch.setattr(_gated_code, "choose_division", lambda *_: GatedDivision(8, 2, 1, 8, 1, few=few))
    monkeypatch.setattr(heuristics, "GATED_HELPED_BLOCKS", (2, 2))
    cell = cell_of("ln_gru", 24, 32)
    try:
        ratio, _ = worst("ln_gru", cell, job_of(cell, 2, 4, BF16), BF16)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2

"""The generated CUDA text of programs, run on the CPU: against the interpreter, the loop and float64."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from interpreter import FUNCTIONS, interpret

from cells import Fresh
from seqloom.cells.lookup import find_cell
from seqloom.compiler import ir
from seqloom.compiler.cuda import write_cuda
from seqloom.compiler.ir import Access, Buffer, Instruction, Nest, Place, Product, Program, Reduction, Register, Store
from seqloom.compiler.plan import BufferMemory, Scan
from seqloom.compiler.schedule import plan
from seqloom.compiler.staging import stage
from seqloom.compiler.trace import Extras, step_tensors, trace
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics, loop
from seqloom.kernels.compiled import gpu
from seqloom.kernels.compiled.gpu import run_on_gpu, why_not_gpu
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.compiled.run import Compiled

pytestmark = pytest.mark.usefixtures("emulated")
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
INF, NAN = math.inf, math.nan
LENGTHS = torch.tensor([7, 2, 0, 5, 7])


@pytest.fixture
def form(request, monkeypatch):
    """How products run: by a library, or in a kernel whose blocks take so many rows."""
    monkeypatch.setattr(heuristics, "GRAPH_STEPS", 4)  # several chunks, the last one not full
    if request.param == "library":
        monkeypatch.setattr(heuristics, "COMPILED_WEIGHTS", 0)
    else:
        monkeypatch.setattr(heuristics, "COMPILED_MOST_ROWS", int(request.param))
        monkeypatch.setattr(heuristics, "COMPILED_BLOCKS", 1)


# --- programs ---


def scan_of(program):
    """The program with memory of its own for every buffer; those named alike are rows of the same memory."""
    names = list(dict.fromkeys(b.name for b in program.buffers))
    return Scan(program, tuple(BufferMemory("stored", names.index(b.name)) for b in program.buffers))


def check(program, lengths, dtype=FP32, tolerance=2e-5):
    packing = Packing.of(len(lengths), max(lengths), torch.tensor(lengths))
    B, N = packing.B, packing.N
    rows = {Place.WEIGHT: 1, Place.ROW: B, Place.TIME: N, Place.BEFORE: B + N, Place.AFTER: B + N}
    memory = {b.name: torch.randn(rows[b.place], b.size, dtype=FP64).to(dtype) for b in program.buffers}
    wide = {name: t.double() for name, t in memory.items()}
    interpret(program, [wide[b.name] for b in program.buffers], B, packing.offset, packing.count)
    run_on_gpu(scan_of(program), [memory[b.name] for b in program.buffers], packing)
    for b in program.buffers:
        if b.place is not Place.ROW:
            torch.testing.assert_close(memory[b.name].double(), wide[b.name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [FP32, FP64])
def test_every_operator_matches_torch_at_edge_values_too(dtype):
    limits = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, limits.tiny, limits.max, limits.eps]
    edges += [88.0, -87.0, -104.0, 709.0, -740.0, 1e4, 12345.678, -1 + limits.eps]
    a = torch.tensor([x for x in edges for _ in edges], dtype=dtype)
    b = torch.tensor(edges * len(edges), dtype=dtype)
    c = b.flip(0)
    n, names = len(a), list(ir.OPERATORS)
    body = [
        Instruction(name, k, tuple(Access(j, 0, (1,)) for j in range(ir.OPERATORS[name])))
        for k, name in enumerate(names)
    ]
    stores = [Store(Access(3, k * n, (1,)), Register(k)) for k in range(len(names))]
    buffers = [*(Buffer(f"x{k}", Place.TIME, n) for k in range(3)), Buffer("y", Place.TIME, n * len(names))]
    program = Program(tuple(buffers), (Nest((n,), 0, tuple(body), tuple(stores)),))
    y = torch.empty(1, n * len(names), dtype=dtype)
    run_on_gpu(scan_of(program), [a, b, c, y], Packing.of(1, 1, None))
    for name, got in zip(names, y.view(-1, n), strict=True):
        expected = FUNCTIONS[name](*(a, b, c)[: ir.OPERATORS[name]]).to(dtype)
        if name == "erf":  # torch returns 0 for erf(1e-7) in float32 on ARM
            expected = torch.erf(a.double()).to(dtype)
        if name == "fma":  # rounds once, so that a product may exceed the range
            expected = torch.where((a * b).isfinite(), expected, got)
        rtol = 1e-5 if dtype == FP32 else 1e-12
        torch.testing.assert_close(got, expected, rtol=rtol, atol=limits.tiny, equal_nan=True, msg=name)


def norm_program(n, reverse=False):
    """A state that is divided by its own norm: a sum over the row, then a loop that every unit needs it for."""
    buffers = [Buffer("x", Place.TIME, n), Buffer("h", Place.BEFORE, n), Buffer("h", Place.AFTER, n)]
    buffers += [Buffer("new", Place.ROW, n), Buffer("total", Place.ROW, 2), Buffer("weight", Place.WEIGHT, n)]
    own, other = (1,), Access(3, n - 1, (-1,))  # of a unit that another thread computes
    add = (
        Instruction("add", 0, (Access(0, 0, own), Access(1, 0, own))),
        Instruction("mul", 1, (Register(0), Access(5, 0, own))),
    )
    square = (Instruction("mul", 0, (other, other)),)
    scale = (
        Instruction("add", 0, (Access(4, 0, (0,)), 1.0)),
        Instruction("rsqrt", 1, (Register(0),)),
        Instruction("add", 2, (Register(1), Access(4, 1, (0,)))),
        Instruction("mul", 3, (other, Register(2))),
    )
    parts = (
        Nest((n,), 0, add, (Store(Access(3, 0, own), Register(1)),)),
        Nest(
            (n,),
            1,
            square,
            (),
            (
                Reduction("sum", Access(4, 0, (0,)), Register(0)),
                Reduction("maximum", Access(4, 1, (0,)), Access(3, 0, own)),
            ),
        ),
        Nest((n,), 0, scale, (Store(Access(2, 0, own), Register(3)),)),
    )
    return Program(tuple(buffers), parts, reverse)


@pytest.mark.parametrize(("n", "dtype"), [(3, FP32), (100, FP64), (600, FP32)])
def test_a_program_without_products_walks_over_time_with_barriers(n, dtype):
    check(norm_program(n), [5, 3, 1], dtype)


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_missing_barrier_is_caught(monkeypatch, which):
    def write_faulty(scan, dtype, rows):
        cuda = write_cuda(scan, dtype, rows)
        pieces = cuda.text.split("  wait_block();\n")
        assert len(pieces) == 5  # after the first states, before and after the reduction, and after the step
        text = "  wait_block();\n".join([*pieces[:which], pieces[which] + pieces[which + 1], *pieces[which + 2 :]])
        return replace(cuda, text=text)

    monkeypatch.setattr(gpu, "write_cuda", write_faulty)
    with pytest.raises(AssertionError, match="not close"):
        check(norm_program(100), [5, 3, 1])


def test_sums_over_two_loops_for_every_pair_of_outer_ones():
    buffers = Buffer("x", Place.TIME, 2 * 3 * 4 * 5), Buffer("y", Place.TIME, 6)
    read, to = Access(0, 0, (60, 5, 15, 1)), Access(1, 0, (3, 1, 0, 0))
    check(Program(buffers, (Nest((2, 3, 4, 5), 2, (), (), (Reduction("minimum", to, read),)),)), [3, 2])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("heads", "rows", "offset"), [(1, 1, 0), (3, 1, 2), (1, 2, 2)])
@pytest.mark.parametrize("form", ["library", "1", "4"], indirect=True)
def test_products_see_the_rows_of_their_step(form, heads, rows, offset, reverse):
    K = N = 4
    size = rows * heads * K
    before, after = (Place.AFTER, Place.BEFORE) if reverse else (Place.BEFORE, Place.AFTER)
    buffers = (
        Buffer("h", before, size + offset),
        Buffer("h", after, size + offset),
        Buffer("W", Place.WEIGHT, heads * K * N),
    )
    buffers += (Buffer("p", Place.TIME, size), Buffer("q", Place.ROW, size), Buffer("x", Place.TIME, size + offset))
    tanh = Instruction("tanh", 0, (Access(3, 0, (1,)),))
    end = [Instruction("mul", 0, (Access(4, 0, (1,)), 0.5)), Instruction("add", 1, (Register(0), Access(5, 0, (1,))))]
    parts = (
        Product(0, offset, 2, 3, heads, K, N, rows),
        Nest((size,), 0, (tanh,), (Store(Access(5, offset, (1,)), Register(0)),)),
        Product(5, offset, 2, 4, heads, K, N, rows),
        Nest((size,), 0, tuple(end), (Store(Access(1, offset, (1,)), Register(1)),)),
        *([Nest((offset,), 0, (), (Store(Access(1, 0, (1,)), 0.25),))] if offset else []),
    )
    program = Program(buffers, parts, reverse)
    check(program, [6, 4, 4, 1])
    assert [len(s.products) for s in stage(scan_of(program)).segments] == [1, 1, 0]


# --- cells ---


class Leaky(Cell):
    """A user's cell whose state is heads of units, with a product for each head."""

    def __init__(self, D, H, heads=1):
        super().__init__(D, H)
        self.W, self.heads, d = torch.nn.Linear(D, H), heads, H // heads
        self.U = torch.nn.Parameter(torch.randn(heads, d, d) / math.sqrt(d))
        self.a = torch.nn.Parameter(torch.rand(H))

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        (h,) = state
        u = torch.bmm(h.unflatten(-1, (self.heads, -1)).transpose(0, 1), self.U).transpose(0, 1).flatten(-2)
        h = h + self.a * (torch.tanh(x + u) - h)
        return h, (h,)


class TwoStages(Cell):
    """A gate acts on the state before a second product; the output is not the state."""

    def __init__(self, D, H):
        super().__init__(D, H)
        self.W, self.U, self.V = torch.nn.Linear(D, 2 * H), torch.nn.Linear(H, H), torch.nn.Linear(H, H)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        (h,) = state
        x_f, x_n = x.chunk(2, -1)
        f = torch.sigmoid(x_f + self.U(h))
        h = (1 - f) * h + f * torch.tanh(x_n + self.V(f * h))
        return torch.relu(h), (h,)


def cell_of(name, H=16, D=6, **settings):
    torch.manual_seed(0)
    own = {"two stages": TwoStages, "heads": lambda D, H: Leaky(D, H, 4)}
    cell = own[name](D, H) if name in own else find_cell(name)(D, H, **settings)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return cell


def job_of(cell, dtype, B=5, T=7, **settings):
    x = torch.randn(B, T, cell.input_size).to(dtype)
    # not below 0: some states are weights
    state = tuple((s.detach() + 0.1 * torch.rand(s.shape)).to(dtype) for s in cell.initial_state(x.float()))
    return ScanJob(x, state, **settings)


def compile_for(cell, job):
    return Compiled(plan(trace(cell, cell.project(job.x), job.state, Extras.of(job))), run_on_gpu)


def run_compiled(cell, job, compiled=None):
    start = cell.start(job.x) if job.reset is not None else ()
    compiled = compiled or compile_for(cell, job)
    return compiled.run(job, cell.project(job.x), job.state, start, step_tensors(cell))


def everything(run, cell, job):
    cell, x = copy.deepcopy(cell), job.x.clone().requires_grad_()
    state = tuple(s.clone().requires_grad_() for s in job.state)
    y, last = run(cell, replace(job, x=x, state=state))
    torch.manual_seed(1)
    sum((t.double() * torch.randn(t.shape, dtype=FP64).to(t.device)).sum() for t in (y, *last)).backward()
    results = {"y": y, "dx": x.grad} | {f"last {i}": s for i, s in enumerate(last)}
    results |= {f"dstate {i}": s.grad for i, s in enumerate(state)}
    results |= {f"d{name}": p.grad for name, p in cell.named_parameters()}
    return {name: t.detach().double() for name, t in results.items() if t is not None}


def worst(cell, dtype, *jobs):
    """How many times as far from float64 as the loop in the same type, and of what: the geometric mean over jobs."""
    low = copy.deepcopy(cell).to(jobs[0].x.device, dtype)
    logs = {}
    for job in jobs:
        mine, loops = (everything(run, low, job) for run in (run_compiled, loop.run))
        wide = replace(job, x=job.x.double(), state=tuple(s.double() for s in job.state))
        exact = everything(loop.run, copy.deepcopy(low).double(), wide)
        for name, true in exact.items():
            least = torch.finfo(dtype).eps * true.norm()  # a last bit; sums of a few rows can be exact by chance
            ratio = (mine[name] - true).norm() / (loops[name] - true).norm().clamp(min=least)
            logs[name] = logs.get(name, 0.0) + float(ratio.log()) / len(jobs)
    name = max(logs, key=logs.get)
    return math.inf if any(map(math.isnan, logs.values())) else math.exp(logs[name]), name


CELLS = [
    *(("indrnn", FP32, {}), ("indrnn", BF16, {"lengths": LENGTHS}), ("min_gru", FP16, {"lengths": LENGTHS})),
    *(("gru", FP32, {"lengths": LENGTHS}), ("gru", BF16, {}), ("lstm", FP32, {}), ("lstm", BF16, {"lengths": LENGTHS})),
    *(("ln_lstm", FP32, {"lengths": LENGTHS}), ("ln_lstm", FP16, {})),
    *(("two stages", FP32, {"lengths": LENGTHS}), ("two stages", BF16, {})),
    *(("heads", FP32, {"lengths": LENGTHS}), ("heads", BF16, {})),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "dtype", "settings"), CELLS)
@pytest.mark.parametrize("form", ["library", "1", "2"], indirect=True)
def test_a_compiled_cell_is_at_most_twice_as_far_from_float64_as_the_loop(form, name, dtype, settings):
    cell = cell_of(name)
    assert worst(cell, dtype, job_of(cell, dtype, **settings))[0] < 2


class KeepLarger(Cell):
    """A cell whose new state does not depend on the old one, so that torch computes it before the loop."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.W = torch.nn.Linear(input_size, hidden_size)

    def step(self, x, state):
        new = torch.tanh(self.W(0.01 * x))
        return torch.maximum(new, state[0]), (new,)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_programs_and_torch_compare_the_same_numbers_in_16_bits(dtype):
    torch.manual_seed(0)
    cell = KeepLarger(6, 16)
    assert worst(cell, dtype, job_of(cell, dtype))[0] < 2


def test_resets_masks_and_zoneout_run_in_the_kernels():
    cell = cell_of("gru")
    job = job_of(cell, FP32)
    share, stay = (torch.rand(5, 16) < 0.8) / 0.8, (torch.rand(5, 7, 16) < 0.3).float()
    job = replace(job, lengths=LENGTHS, reset=torch.rand(5, 7) < 0.3, mask=share, keep=(stay,))
    assert worst(cell, FP32, job)[0] < 2


def test_a_program_without_products_may_need_memory_within_a_step():
    cell = Fresh(8, 2)
    assert worst(cell, FP32, job_of(cell, FP32, lengths=LENGTHS))[0] < 2


def test_pointwise_cells_keep_their_state_in_registers():
    cell = cell_of("indrnn")
    job = job_of(cell, FP32)
    programs = plan(trace(cell, cell.project(job.x), job.state, Extras.of(job)))
    for scan in (programs.infer, programs.train, programs.reverse):
        cuda = write_cuda(scan, "float32")
        assert cuda.units == 16 and "wait_block" not in cuda.text
        assert cuda.text.count("load_written(b") == cuda.text.count("Real c0 = load_written(") == 1


def test_why_not_gives_the_reason():
    cell = cell_of("gru")
    assert why_not_gpu(cell, job_of(cell, FP32)) == "it is for CUDA tensors"

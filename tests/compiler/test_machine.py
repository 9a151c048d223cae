"""The vector machine of the CPU engine runs every program as the interpreter does."""

import math
import random
from ctypes import c_int64, c_void_p

import pytest
import torch
from interpreter import FUNCTIONS, interpret

from seqloom.compiler import ir
from seqloom.compiler.ir import Access, Buffer, Instruction, Nest, Place, Product, Program, Reduction, Register, Store
from seqloom.compiler.plan import UnfitError
from seqloom.kernels.cpu.engine import ThreadSplit, load_library
from seqloom.kernels.cpu.machine import Rows, encode, run_program, run_trusted, why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

ONE = ThreadSplit(1, False)
SPLITS = [ThreadSplit(threads, columns) for threads in (2, 3) for columns in (False, True)]
INF, NAN = math.inf, math.nan


def pack(lengths):
    """Return offset and count of every step for rows of these lengths, longest first."""
    T = max(lengths, default=0)
    count = torch.tensor([sum(n > t for n in lengths) for t in range(T)], dtype=torch.int64)
    return count.cumsum(0) - count, count


def allocate(program, B, packed, dtype, seed=0):
    """Return random buffers; those that the program only writes hold NaN, so that no number is read too early."""
    rng = torch.Generator().manual_seed(seed)
    rows = {Place.WEIGHT: 1, Place.ROW: B, Place.TIME: packed, Place.BEFORE: B + packed, Place.AFTER: B + packed}
    buffers = [torch.randn(rows[b.place], b.size, dtype=torch.float64, generator=rng) for b in program.buffers]
    for part in program.parts:
        for b in [part.out] if isinstance(part, Product) else [a.buffer for a in part.writes()]:
            buffers[b].fill_(NAN)
    return [b.to(dtype) for b in buffers]


def check(program, lengths, dtype=torch.float32, splits=(ONE,), seed=0):
    """Compare the machine with the interpreter in float64, and return what the machine wrote."""
    B, (offset, count) = len(lengths), pack(lengths)
    start = allocate(program, B, int(count.sum()), dtype, seed)
    expected = [b.double() for b in start]
    interpret(program, expected, B, offset, count)
    encoded = encode(program)
    for split in splits:
        buffers = [b.clone() for b in start]
        run_program(encoded, buffers, B, offset, count, split)
        rtol = 2e-5 if dtype == torch.float32 else 1e-12
        for buffer, got, exact in zip(program.buffers, buffers, expected, strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=rtol, atol=rtol, equal_nan=True, msg=buffer.name)
    return buffers


def pointwise(operator, n):
    """A program of one operator, whose operands vary in time."""
    arity = ir.OPERATORS[operator]
    buffers = [Buffer(f"x{k}", Place.TIME, n) for k in range(arity)] + [Buffer("y", Place.TIME, n)]
    body = Instruction(operator, 0, tuple(Access(k, 0, (1,)) for k in range(arity)))
    return Program(tuple(buffers), (Nest((n,), 0, (body,), (Store(Access(arity, 0, (1,)), Register(0)),)),))


def run_operator(operator, *xs):
    y = torch.full_like(xs[0], NAN)
    run_program(encode(pointwise(operator, len(y))), [*xs, y], 1, torch.tensor([0]), torch.tensor([1]), ONE)
    return y


def samples(dtype):
    """Numbers of all magnitudes, and those where functions have their edges."""
    limits = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, limits.tiny, -limits.tiny]
    edges += [limits.max, -limits.max, limits.tiny / 8, -limits.tiny / 8, limits.eps, -limits.eps]
    edges += [88.0, 89.0, -87.0, -88.5, -95.0, -104.0, -110.0, 709.0, 710.0, -709.0, -740.0, -750.0, -1 + limits.eps]
    edges += [k * math.pi / 2 for k in range(-9, 10)] + [1e4, 12345.678, 1e5, 1e6, 1e20]
    rng = torch.Generator().manual_seed(0)
    spread = torch.randn(3000, generator=rng, dtype=torch.float64)
    sizes = [spread * s for s in (1e-3, 0.3, 1.0, 5.0, 30.0, 1000.0)] + [1 + spread * 1e-3]
    powers = spread.sign() * torch.exp2(spread * (40 if dtype == torch.float32 else 300))
    return torch.cat([torch.tensor(edges, dtype=torch.float64), *sizes, powers]).to(dtype)


def error_in_ulps(y, exact, dtype):
    """Return the error in units of the last place of the exact result; numbers that are not finite must be equal."""
    limits = torch.finfo(dtype)
    rounded = exact.to(dtype).double()
    same = (y.double() == rounded) | (y.isnan() & exact.isnan())
    ulp = torch.exp2(exact.abs().clamp(min=limits.tiny).log2().floor()) * limits.eps
    error = torch.where((y.double() - exact).abs() <= limits.tiny, 0.0, (y.double() - exact).abs() / ulp)
    return torch.where(same, 0.0, error).nan_to_num(INF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", ir.UNARY)
def test_unary_operators_have_the_results_of_torch(operator, dtype):
    x = samples(dtype)
    if operator in ("sinh", "cosh"):
        x = x[((x.abs() < 709) | (x.abs() > 711)).logical_or(x.isnan())]  # where torch is infinite too early
    y = run_operator(operator, x)
    exact = FUNCTIONS[operator](x.double()).double()
    own = error_in_ulps(FUNCTIONS[operator](x).to(dtype), exact, dtype)
    error = error_in_ulps(y, exact, dtype)
    allowed = (2 * own).clamp(min=2 if dtype == torch.float32 else 3)
    worst = (error - allowed).argmax()
    assert (error <= allowed).all(), (x[worst], y[worst], exact[worst], error[worst], own[worst])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", [*ir.BINARY, *ir.TERNARY])
def test_operators_of_several_numbers_have_the_results_of_torch(operator, dtype):
    x = samples(dtype)
    rng = torch.Generator().manual_seed(1)
    xs = [x, *(x[torch.randperm(len(x), generator=rng)] for _ in range(ir.OPERATORS[operator] - 1))]
    xs[1][::3] = x[::3]
    y, expected = run_operator(operator, *xs), FUNCTIONS[operator](*xs).to(dtype)
    if operator not in ("pow", "fma", "sigmoid_backward", "tanh_backward"):
        torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
        return
    a, b = xs[0].abs(), xs[1].abs()
    size = {"pow": expected.abs(), "fma": a * b + xs[-1].abs(), "sigmoid_backward": a * (1 + b) * b}
    size["tanh_backward"] = a * (1 + b * b)
    finite = size[operator].isfinite()  # the machine may round once where torch rounds twice
    assert ((y - expected).abs() <= 4 * torch.finfo(dtype).eps * size[operator])[finite].all()
    if operator == "pow":
        torch.testing.assert_close(y[~finite], expected[~finite], rtol=0, atol=0, equal_nan=True)


def test_powers_that_torch_simplifies():
    x = torch.rand(40) * 4
    for power in (0.5, -0.5, 1.0, -1.0, 2.0, 3.0, -2.0):
        body = Instruction("pow", 0, (Access(0, 0, (1,)), power))
        buffers = (Buffer("x", Place.TIME, 40), Buffer("y", Place.TIME, 40))
        program = Program(buffers, (Nest((40,), 0, (body,), (Store(Access(1, 0, (1,)), Register(0)),)),))
        y = torch.empty(40)
        run_program(encode(program), [x, y], 1, torch.tensor([0]), torch.tensor([1]), ONE)
        torch.testing.assert_close(y, x**power)


def strides_of(sizes, order=None):
    """Return the strides of a contiguous array whose dimensions lie in this order."""
    strides, step = [0] * len(sizes), 1
    for k in reversed(order or range(len(sizes))):
        strides[k] = step
        step *= sizes[k]
    return tuple(strides)


SHAPES = [(), (1,), (3,), (17,), (67,), (200,), (1030,), (3, 17), (17, 3), (5, 1, 67), (3, 4, 5), (2, 3, 4, 17)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SHAPES)
def test_nests_of_all_strides(sizes, dtype):
    size = math.prod(sizes)
    back = strides_of(sizes, list(reversed(range(len(sizes)))))
    zeros = (0,) * len(sizes)
    places = (Place.TIME, Place.BEFORE, Place.ROW, Place.WEIGHT, Place.AFTER, Place.TIME, Place.TIME)
    buffers = tuple(Buffer(f"b{k}", place, 2 * size + 3) for k, place in enumerate(places))
    body = (
        Instruction("add", 0, (Access(0, 1, strides_of(sizes)), Access(1, 0, back))),
        Instruction("tanh", 1, (Register(0),)),
        Instruction("mul", 2, (Access(2, 2, zeros), Access(3, 1, zeros))),  # one number of a row
        Instruction("fma", 3, (Register(1), Register(2), Access(3, 0, tuple(2 * s for s in strides_of(sizes))))),
        Instruction("sub", 4, (1.5, Register(3))),
        Instruction("where", 5, (Register(1), Register(4), Access(0, 0, zeros))),
        Instruction("sigmoid", 6, (Register(2),)),
    )
    stores = (
        Store(Access(4, 1, strides_of(sizes)), Register(4)),
        Store(Access(4, 1 + size, strides_of(sizes)), Register(4)),
        Store(Access(5, 0, back), Register(5)),
        Store(Access(5, size, strides_of(sizes)), Register(6)),
        Store(Access(6, 0, strides_of(sizes)), 2.5),
        Store(Access(6, size, back), Access(0, 0, back)),
        Store(Access(6, 2 * size, zeros), Register(2)),
    )
    program = Program(buffers, (Nest(sizes, 0, body, stores),))
    check(program, [3, 3, 2, 1, 0], dtype, [ONE, *SPLITS])
    check(program, [2], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("operator", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize(
    ("sizes", "inner"), [((67,), 1), ((1,), 1), ((3, 200), 1), ((5, 3), 1), ((17, 4, 3), 2), ((2, 1030), 2), ((17,), 0)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_reductions(operator, sizes, inner, transposed, dtype):
    size, outer = math.prod(sizes), len(sizes) - inner
    order = list(reversed(range(len(sizes)))) if transposed else None
    buffers = (Buffer("x", Place.TIME, size), Buffer("w", Place.WEIGHT, size), Buffer("y", Place.TIME, 2 * size))
    strides, to = strides_of(sizes, order), (*strides_of(sizes[:outer]), *(0,) * inner)
    body = (Instruction("mul", 0, (Access(0, 0, strides), Access(1, 0, strides))),)
    reductions = (
        Reduction(operator, Access(2, 0, to), Register(0)),
        Reduction("sum", Access(2, size, to), Access(0, 0, to)),
    )
    program = Program(buffers, (Nest(sizes, inner, body, (), reductions),))
    check(program, [2, 2, 1], dtype, [ONE, *SPLITS])
    check(program, [1], dtype)


def test_maximum_of_a_row_with_nan_is_nan():
    buffers = (Buffer("x", Place.TIME, 67), Buffer("y", Place.TIME, 1))
    nest = Nest((67,), 1, (), (), (Reduction("maximum", Access(1, 0, (0,)), Access(0, 0, (1,))),))
    x, y = torch.zeros(2, 67), torch.zeros(2)
    x[1, 40] = NAN
    run_program(encode(Program(buffers, (nest,))), [x, y], 2, torch.tensor([0]), torch.tensor([2]), ONE)
    assert y[0] == 0
    assert y[1].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("heads", "K", "columns", "rows", "offset"),
    [(1, 64, 192, 1, 0), (1, 67, 17, 1, 3), (3, 5, 7, 1, 1), (2, 32, 33, 3, 0), (1, 1, 1, 2, 5), (2, 300, 40, 1, 0)],
)
@pytest.mark.parametrize("lengths", [[3], [2, 2, 1], [1] * 5, [1] * 130])
def test_products(heads, K, columns, rows, offset, lengths, dtype):
    buffers = (
        Buffer("x", Place.TIME, offset + rows * heads * K + offset),
        Buffer("w", Place.WEIGHT, heads * K * columns),
        Buffer("y", Place.TIME, rows * heads * columns),
    )
    program = Program(buffers, (Product(0, offset, 1, 2, heads, K, columns, rows),))
    check(program, lengths, dtype, [ONE, *SPLITS])


@pytest.mark.parametrize(("heads", "K", "columns"), [(1, 64, 192), (1, 67, 17), (3, 5, 7), (2, 32, 33), (1, 1, 3)])
def test_a_weight_may_be_transposed_and_scratch_memory_left_out(heads, K, columns):
    buffers = (
        Buffer("x", Place.TIME, heads * K),
        Buffer("w", Place.WEIGHT, heads * K * columns),
        Buffer("scratch", Place.ROW, heads * columns),
        Buffer("y", Place.TIME, heads * columns),
    )
    copy = Nest((heads * columns,), 0, (), (Store(Access(3, 0, (1,)), Access(2, 0, (1,))),))
    program = encode(Program(buffers, (Product(0, 0, 1, 2, heads, K, columns), copy)))
    x, w = torch.randn(6, heads, K), torch.randn(heads, columns, K)
    y, (offset, count) = torch.full((6, heads, columns), NAN), pack([3, 2, 1])
    run_program(program, [x, w.transpose(1, 2), None, y], 3, offset, count, ONE)
    torch.testing.assert_close(y, torch.einsum("rhk,hnk->rhn", x, w), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="x must be a tensor"):
        run_program(program, [None, w.transpose(1, 2), None, y], 3, offset, count, ONE)


def gru(H):
    """A GRU: x = W x + b for all steps; h' = n + z (h - n)."""
    buffers = (
        Buffer("x", Place.TIME, 3 * H),
        Buffer("U", Place.WEIGHT, 3 * H * H),
        Buffer("b", Place.WEIGHT, H),
        Buffer("h", Place.BEFORE, H),
        Buffer("new h", Place.AFTER, H),
        Buffer("g", Place.ROW, 3 * H),
    )
    x, g = [Access(0, k * H, (1,)) for k in range(3)], [Access(5, k * H, (1,)) for k in range(3)]
    r = Register
    body = (
        Instruction("add", 0, (x[0], g[0])),
        Instruction("sigmoid", 1, (r(0),)),
        Instruction("add", 2, (x[1], g[1])),
        Instruction("sigmoid", 3, (r(2),)),
        Instruction("add", 4, (g[2], Access(2, 0, (1,)))),
        Instruction("mul", 5, (r(1), r(4))),
        Instruction("add", 6, (x[2], r(5))),
        Instruction("tanh", 7, (r(6),)),
        Instruction("sub", 8, (Access(3, 0, (1,)), r(7))),
        Instruction("mul", 9, (r(3), r(8))),
        Instruction("add", 10, (r(7), r(9))),
    )
    nest = Nest((H,), 0, body, (Store(Access(4, 0, (1,)), r(10)),))
    return Program(buffers, (Product(3, 0, 1, 5, 1, H, 3 * H), nest))


@pytest.mark.parametrize("lengths", [[5], [7, 7, 4, 4, 1, 0, 0]])
@pytest.mark.parametrize("H", [1, 20, 64, 67])
def test_state_is_carried_from_step_to_step(H, lengths):
    program = gru(H)
    B, (offset, count) = len(lengths), pack(lengths)
    x, U, b, h, _, g = allocate(program, B, int(count.sum()), torch.float64)
    U /= math.sqrt(H)
    h[:B] = torch.randn(B, H)
    h[B:] = NAN
    exact = h.clone()
    interpret(program, [x, U, b, exact, exact, g.clone()], B, offset, count)
    assert not exact.isnan().any()
    results = []
    for split in [ONE, *SPLITS]:
        got = h.clone()
        run_program(encode(program), [x, U, b, got, got, g.clone()], B, offset, count, split)
        torch.testing.assert_close(got, exact, rtol=1e-11, atol=1e-11)
        results.append(got)
    for split, got in zip(SPLITS, results[1:], strict=True):
        assert not split.columns or torch.equal(got, results[0])  # the same sums, whoever computes them


def test_reverse_programs_run_from_the_last_step_to_the_first():
    # y = 2 carry + x; then carry = y
    buffers = (Buffer("x", Place.TIME, 3), Buffer("carry", Place.ROW, 3), Buffer("y", Place.TIME, 3))
    first = Nest(
        (3,),
        0,
        (Instruction("fma", 0, (Access(1, 0, (1,)), 2.0, Access(0, 0, (1,)))),),
        (Store(Access(2, 0, (1,)), Register(0)),),
    )
    second = Nest((3,), 0, (), (Store(Access(1, 0, (1,)), Access(2, 0, (1,))),))
    offset, count = pack([3, 2])
    x, carry, y = torch.ones(5, 3), torch.zeros(2, 3), torch.empty(5, 3)
    run_program(encode(Program(buffers, (first, second), reverse=True)), [x, carry, y], 2, offset, count, ONE)
    assert y[:, 0].tolist() == [7, 3, 3, 1, 1]


def test_nests_do_not_depend_on_threads_or_batch():
    sizes = (5, 67)
    buffers = (Buffer("x", Place.TIME, 335), Buffer("y", Place.TIME, 335), Buffer("s", Place.TIME, 5))
    strides = strides_of(sizes)
    body = (Instruction("exp", 0, (Access(0, 0, strides),)), Instruction("tanh", 1, (Register(0),)))
    nests = (
        Nest(sizes, 0, body, (Store(Access(1, 0, strides), Register(1)),)),
        Nest(sizes, 1, body, (), (Reduction("sum", Access(2, 0, (1, 0)), Register(1)),)),
    )
    program = encode(Program(buffers, nests))
    x = torch.randn(37, 335)

    def run(x, split):
        y, s = torch.empty_like(x), x.new_empty(len(x), 5)
        run_program(program, [x, y, s], len(x), torch.tensor([0]), torch.tensor([len(x)]), split)
        return y, s

    y, s = run(x, ONE)
    for split in SPLITS:
        assert all(torch.equal(a, b) for a, b in zip(run(x, split), (y, s), strict=True))
    for row in range(0, 37, 5):
        one_y, one_s = run(x[row : row + 1].clone(), ONE)
        assert torch.equal(one_y[0], y[row])
        assert torch.equal(one_s[0], s[row])


def build_random_program(rng):
    """Return a program of random nests and products; what a part writes, later ones may read."""
    buffers: list[Buffer] = []
    readable: list[int] = []

    def new(place, size):
        buffers.append(Buffer(f"b{len(buffers)}", place, size))
        return len(buffers) - 1

    for place in (Place.TIME, Place.ROW, Place.WEIGHT, Place.BEFORE):
        readable.append(new(place, rng.choice((40, 67, 240))))
    parts = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.3:
            source = rng.choice([b for b in readable if buffers[b].place is not Place.WEIGHT])
            heads, rows, K = rng.choice(((1, 1, 37), (2, 1, 8), (1, 3, 5), (2, 2, 4)))
            if heads * rows * K <= buffers[source].size:
                columns = rng.choice((1, 9, 64))
                weight, out = new(Place.WEIGHT, heads * K * columns), new(Place.ROW, rows * heads * columns)
                offset = rng.randint(0, buffers[source].size - heads * rows * K)
                parts.append(Product(source, offset, weight, out, heads, K, columns, rows))
                readable.append(out)
            continue
        sizes = rng.choice(((), (1,), (7,), (40,), (3, 13), (13, 3), (2, 3, 5), (1, 6, 2, 3)))
        inner = rng.randint(0, len(sizes)) if rng.random() < 0.4 else 0
        parts.append(build_random_nest(rng, sizes, inner, buffers, readable, new))
    return Program(tuple(buffers), tuple(parts), reverse=rng.random() < 0.5)


def build_random_nest(rng, sizes, inner, buffers, readable, new):
    size, loops = math.prod(sizes), len(sizes)

    def access():
        buffer = rng.choice(readable)
        order = rng.sample(range(loops), loops)
        strides = [s * rng.choice((0, 1, 1)) for s in strides_of(sizes, order)]
        last = sum(s * (n - 1) for s, n in zip(strides, sizes, strict=True))
        if last >= buffers[buffer].size:
            strides, last = [0] * loops, 0
        return Access(buffer, rng.randint(0, buffers[buffer].size - 1 - last), tuple(strides))

    body: list[Instruction] = []

    def value():
        kind = rng.random()
        if kind < 0.15:
            return rng.choice((0.5, -1.0, 2.0))
        return Register(rng.randrange(len(body))) if body and kind < 0.6 else access()

    names = ("add", "sub", "mul", "tanh", "sigmoid", "fma", "where", "maximum", "gt", "neg", "relu", "copy")
    for k in range(rng.randint(0, 8)):
        name = rng.choice(names)
        body.append(Instruction(name, k, tuple(value() for _ in range(ir.OPERATORS[name]))))
    if inner:
        outer = sizes[: loops - inner]
        out = new(Place.ROW, math.prod(outer))
        to = Access(out, 0, (*strides_of(outer), *(0,) * inner))
        nest = Nest(sizes, inner, tuple(body), (), (Reduction(rng.choice(("sum", "maximum")), to, value()),))
    else:
        outs = [new(rng.choice((Place.TIME, Place.AFTER, Place.ROW)), size) for _ in range(rng.randint(1, 3))]
        stores = [Store(Access(b, 0, strides_of(sizes, rng.sample(range(loops), loops))), value()) for b in outs]
        nest = Nest(sizes, 0, tuple(body), tuple(stores))
        out = outs[0]
    readable.append(out)
    return nest


@pytest.mark.parametrize("seed", range(100))
def test_random_programs(seed):
    rng = random.Random(seed)
    program = build_random_program(rng)
    lengths = rng.choice(([2], [3, 2, 2, 0], [2] * 9, [1] * 40))
    check(program, lengths, rng.choice((torch.float32, torch.float64)), [ONE, rng.choice(SPLITS)], seed)


def test_wrong_buffers_raise():
    program = encode(gru(4))
    offset, count = pack([2, 1])
    buffers = allocate(program.program, 2, 3, torch.float32)
    for k, buffer in enumerate(buffers):
        for wrong in (buffer[..., :-1].contiguous(), buffer.double() if k else buffer.long(), buffer.t()):
            if wrong.is_contiguous() and wrong.dtype == buffer.dtype and wrong.numel() == buffer.numel():
                continue  # a single row is contiguous either way
            with pytest.raises(ValueError, match=r"must|supports"):
                run_program(program, [*buffers[:k], wrong, *buffers[k + 1 :]], 2, offset, count)
    for bad_offset, bad_count in (([0, 1], [1, 2]), ([0, 0], [3, 3]), ([5, 2], [2, 1]), ([-1, 2], [2, 1])):
        with pytest.raises(ValueError, match="packed rows"):
            run_program(program, buffers, 2, torch.tensor(bad_offset), torch.tensor(bad_count))
    with pytest.raises(ValueError, match="6 buffers"):
        run_program(program, buffers[:-1], 2, offset, count)


def accepts(code, constants):
    """Return whether the engine accepts a program's code."""
    code = torch.tensor(code, dtype=torch.int64)
    return bool(load_library().seqloom_check_machine(c_void_p(code.data_ptr()), c_int64(len(code)), c_int64(constants)))


def test_the_engine_refuses_code_with_a_number_that_is_too_large_or_missing():
    for program in (gru(4), *(build_random_program(random.Random(seed)) for seed in range(20))):
        encoded = encode(program)
        code, constants = encoded.code.tolist(), len(encoded.constants)
        assert accepts(code, constants)
        for i in range(len(code)):
            assert not accepts([*code[:i], 2**62, *code[i + 1 :]], constants)
            assert not accepts(code[:i], constants)
        assert not accepts([*code, 0], constants)


def test_the_engine_refuses_buffers_that_are_shorter_than_a_program_says():
    encoded, (offset, count) = encode(gru(4)), pack([2, 1])
    buffers = allocate(encoded.program, 2, 3, torch.float32)
    rows = Rows(2, 2, 3, offset, count)
    run_trusted(encoded, buffers, rows, ONE)
    for k, buffer in enumerate(buffers):
        short = [*buffers[:k], buffer.flatten()[:-1], *buffers[k + 1 :]]
        with pytest.raises(UnfitError, match="shorter than a program needs"):
            run_trusted(encoded, short, rows, ONE)
    with pytest.raises(UnfitError, match="shorter"):
        run_trusted(encoded, buffers[:-1], rows, ONE)
    with pytest.raises(UnfitError, match="shorter"):
        run_trusted(encoded, buffers, rows._replace(B=2**61), ONE)


def test_invalid_programs_raise():
    buffers = (Buffer("x", Place.TIME, 4), Buffer("w", Place.WEIGHT, 8), Buffer("y", Place.TIME, 2))
    good, x = Access(2, 0, (1,)), Access(0, 0, (1,))
    for part, message in (
        (Nest((3,), 0, (), (Store(good, x),)), "reaches"),
        (Nest((2,), 0, (), (Store(good, Access(0, 3, (1,))),)), "reaches"),
        (Nest((2,), 0, (), (Store(good, Access(0, 0, (-1,))),)), "reaches"),
        (Nest((2,), 0, (), (Store(Access(1, 0, (1,)), x),)), "weight"),
        (Nest((2,), 0, (), (Store(good, Register(0)),)), "before"),
        (Nest((2,), 0, (Instruction("frob", 0, (x,)),), (Store(good, Register(0)),)), "unknown"),
        (Nest((2,), 1, (), (), (Reduction("sum", good, x),)), "stride"),
        (Product(0, 1, 1, 2, 1, 4, 2), "reads"),
        (Product(0, 0, 1, 2, 1, 4, 3), "weight"),
        (Product(0, 0, 1, 0, 1, 4, 2), "writes"),
    ):
        with pytest.raises(ValueError, match=message):
            encode(Program(buffers, (part,)))

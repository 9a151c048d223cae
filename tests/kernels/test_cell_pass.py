"""Passes of compiled cells: every operation computes what torch does, and nothing outside of a tensor is touched."""

import pytest
import torch

from seqloom.compiler.plan import UnfitError
from seqloom.kernels.cpu import cell_pass
from seqloom.kernels.cpu.cell_pass import ALL, CellPass, PassWriter, UnsupportedPassError, View
from seqloom.kernels.cpu.engine import ThreadSplit
from seqloom.kernels.cpu.machine import Encoded

pytestmark = pytest.mark.skipif(not cell_pass.has_passes(), reason="the CPU engine is not built")

NO_CONSTANTS = Encoded(None, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64), (), {}, 1)


def run(write, given, result_shape, lengths=None, B=3, T=4, threads=1):
    """Run the operations that `write(writer)` adds, whose value is the result."""
    writer = PassWriter([*given, "result", "numbers"])
    writer.constants.append(NO_CONSTANTS.constants)
    view = write(writer)
    writer.put("result", view, is_per_step=ALL in view.sizes)
    dtype = next(iter(given.values())).dtype
    prepared = CellPass(writer, B, T, False, dtype, ThreadSplit(threads, False))
    result = torch.full(result_shape, torch.nan, dtype=dtype)
    prepared.run((*given.values(), result, prepared.numbers), lengths)
    return result


def load(writer, name, columns):
    rows = writer.make((ALL, columns))
    writer.add(rows.buffer, [], cell_pass.LOAD, rows.buffer, writer.tensors.index(name))
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 5, 32, 70])
@pytest.mark.parametrize("K", [1, 7, 32])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_with_weights_and_of_rows_match_torch(dtype, columns, K, threads):
    x, w, d = (torch.randn(*s, dtype=dtype) for s in ((3, 4, K), (columns, K), (3, 4, columns)))

    def project(writer):
        return writer.multiply(load(writer, "x", K), writer.make((columns, K), "w").permute([1, 0]))

    def pull(writer):
        return writer.multiply(load(writer, "d", columns), writer.make((columns, K), "w"))

    def outer(writer):
        return writer.multiply(load(writer, "d", columns).permute([1, 0]), load(writer, "x", K))

    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(run(project, {"x": x, "w": w}, d.shape, threads=threads), x @ w.t(), **close)
    torch.testing.assert_close(run(pull, {"d": d, "w": w}, x.shape, threads=threads), d @ w, **close)
    expected = torch.einsum("btc,btk->ck", d, x)
    torch.testing.assert_close(run(outer, {"d": d, "x": x}, w.shape, threads=threads), expected, **close)


def test_large_products_are_shared_by_threads_with_the_same_results():
    x, w = torch.randn(3, 100, 64), torch.randn(64, 64)

    def project(writer):
        return writer.multiply(load(writer, "x", 64), writer.make((64, 64), "w"))

    alone, shared = (run(project, {"x": x, "w": w}, x.shape, T=100, threads=n) for n in (1, 2))
    torch.testing.assert_close(alone, x @ w, rtol=1e-4, atol=1e-4)
    assert torch.equal(alone, shared)


def test_products_take_parts_of_weights():
    x, w = torch.randn(3, 4, 8), torch.randn(5, 20)

    def project(writer):
        part = writer.make((5, 20), "w").permute([1, 0]).slice(0, 6, 14)
        return writer.multiply(load(writer, "x", 8), part)

    torch.testing.assert_close(run(project, {"x": x, "w": w}, (3, 4, 5)), x @ w.t()[6:14], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_pointwise_operators_broadcast_as_torch_does(columns):
    x, one, row = torch.randn(3, 4, columns), torch.randn(3, 4, 1), torch.randn(columns)

    def scale(writer):
        values = load(writer, "x", columns), load(writer, "one", 1), writer.make((columns,), "row")
        product = writer.compute("mul", [values[0], values[1]], (ALL, columns))
        total = writer.compute("add", [product, values[2]], (ALL, columns))
        return writer.compute("maximum", [total, 0.25], (ALL, columns))

    expected = (x * one + row).clamp(min=0.25)
    torch.testing.assert_close(run(scale, {"x": x, "one": one, "row": row}, x.shape), expected)


@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions_match_torch(kind, dim):
    x = torch.randn(3, 4, 37)
    x[0, 0, 5] = torch.nan
    reduce = {"sum": torch.sum, "maximum": torch.amax, "minimum": torch.amin}[kind]
    expected = reduce(x.view(12, 37), dim, keepdim=True)
    shape = (1, 37) if dim == 0 else (3, 4, 1)
    result = run(lambda w: w.reduce(load(w, "x", 37), dim, kind), {"x": x}, shape)
    torch.testing.assert_close(result.reshape(expected.shape), expected, equal_nan=True)


@pytest.mark.parametrize("lengths", [[4, 0, 2], [0, 0, 0], [9, -3, 4]], ids=str)
def test_padding_is_not_read_and_results_are_zero_there(lengths):
    x = torch.randn(3, 4, 5)
    real = torch.arange(4) < torch.tensor(lengths)[:, None]
    x[~real] = torch.nan
    result = run(lambda w: w.compute("neg", [load(w, "x", 5)], (ALL, 5)), {"x": x}, x.shape, torch.tensor(lengths))
    torch.testing.assert_close(result, torch.where(real[..., None], -x, 0))
    total = run(lambda w: w.reduce(load(w, "x", 5), 0, "sum"), {"x": x}, (1, 5), torch.tensor(lengths))
    torch.testing.assert_close(total[0], x[real].sum(0))


BROKEN = {
    "a view past the end of a weight": lambda w: View(
        w.add_buffer(cell_pass.SHARED, 20, "w"), (4, 5), (5, 1), offset=1
    ),
    "a stride past the end": lambda w: View(w.add_buffer(cell_pass.SHARED, 20, "w"), (4, 5), (6, 1)),
    "a stride that overflows": lambda w: View(w.add_buffer(cell_pass.SHARED, 20, "w"), (4, 5), (1 << 40, 1)),
    "more columns than the tensor": lambda w: View(w.add_buffer(cell_pass.SHARED, 21, "w"), (1, 21), (21, 1)),
    "a buffer that does not exist": lambda _: View(99, (4, 5), (5, 1)),
    "a negative offset": lambda w: View(w.add_buffer(cell_pass.SHARED, 20, "w"), (4, 5), (5, 1), offset=-1),
    "an input of another width": lambda w: load(w, "w", 3),
    "states after the steps of a weight": lambda w: View(
        w.add_buffer(cell_pass.SHARED, 20, "w"), (4, 5), (5, 1), 0, True
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_pass_that_reaches_outside_of_a_tensor_is_refused(name):
    with pytest.raises(UnfitError, match="outside"):
        run(BROKEN[name], {"w": torch.randn(4, 5)}, (4, 5) if name != "an input of another width" else (3, 4, 3))


@pytest.mark.parametrize("cut", ["x", "w", "result"])
def test_a_pass_compares_the_lengths_of_all_tensors(cut):
    shapes = {"x": (3, 4, 5), "w": (5, 6), "result": (3, 4, 6)}
    shapes[cut] = (*shapes[cut][:-1], shapes[cut][-1] - 1)
    given = {name: torch.randn(shapes[name]) for name in ("x", "w")}

    def project(writer):
        return writer.multiply(load(writer, "x", 5), writer.make((5, 6), "w"))

    with pytest.raises(UnfitError, match="outside"):
        run(project, given, shapes["result"])


def test_a_value_that_the_engine_cannot_address_is_refused_with_the_reason():
    writer = PassWriter(["x", "numbers"])
    rows = load(writer, "x", 6)
    with pytest.raises(UnsupportedPassError, match="a part of all rows"):
        rows.slice(0, 0, 2)
    with pytest.raises(UnsupportedPassError, match="rows in its columns"):
        writer.multiply(writer.make((5, 6)), rows.permute([1, 0]))

"""An autograd.Function in a step is compiled with its own backward."""

import importlib.util
import sys

import pytest
import torch
from comparison import Base, why_not
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.testing import assert_close

import seqloom
from seqloom.core.job import ScanJob
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

SLOPE = 3.0


class Spike(Function):
    """A step, with a surrogate gradient that reads a global number."""

    @staticmethod
    def forward(ctx, x, threshold):
        ctx.save_for_backward(x)
        ctx.threshold = threshold
        return (x > threshold).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (SLOPE * (x - ctx.threshold).abs() + 1) ** 2, None


class NewStyle(Function):
    """Forward without `ctx`, a default argument, an output that is saved."""

    @staticmethod
    def forward(x, scale=2.0):
        return torch.exp(-scale * x * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return -1.5 * ctx.scale * x * y * g, None


class Several(Function):
    """Two inputs; three outputs, of which one has no derivative; values inside that are saved as attributes."""

    @staticmethod
    def forward(ctx, a, b):
        gate = torch.sigmoid(a)
        ctx.parts = {"gate": gate, "other": [b]}
        sign = torch.sign(a)
        ctx.mark_non_differentiable(sign)
        return gate * b, sign, a + b

    @staticmethod
    def backward(ctx, g, g_sign, g_sum):
        gate, (b,) = ctx.parts["gate"], ctx.parts["other"]
        da = g * b * gate + g_sum + g_sign if ctx.needs_input_grad[0] else None
        return da, g * gate + 0.5 * g_sum if ctx.needs_input_grad[1] else None


class Lazy(Function):
    """Gradients that are missing are None."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.clone(), 2 * x

    @staticmethod
    def backward(ctx, g, unused):  # noqa: ARG004
        return None if g is None else 0.7 * g if unused is None else 0.1 * g


class Clipped(Function):
    """The identity; its derivative is not linear."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):  # noqa: ARG004
        g = g.clone()
        g[g.abs() > 0.4] = 0.4
        return g


class Outer(Function):
    """A function that calls another one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Spike.apply(x, 0.1) * x

    @staticmethod
    def backward(ctx, g):
        return g * torch.atan(ctx.saved_tensors[0])


class Linear(Function):
    """A product with a weight, whose gradient is a sum over the rows."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, 0.5 * (g.t() @ x), g.sum(0)


class Vjp(Function):
    """The older name of backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def vjp(ctx, g):
        return g * (ctx.saved_tensors[0].abs() < 1)


FUNCTIONS = {
    "spike": lambda _, a: Spike.apply(a, 0.2) + a,
    "new style": lambda _, a: NewStyle.apply(a) + NewStyle.apply(a, 0.5),
    "several": lambda _, a: sum(Several.apply(a, a.roll(1, -1))[::2]) + Several.apply(a, a)[1],
    "lazy": lambda _, a: Lazy.apply(a)[0],
    "clipped": lambda _, a: Clipped.apply(3 * a),
    "outer": lambda _, a: Outer.apply(a),
    "linear": lambda cell, a: Linear.apply(a, cell.U.weight, cell.U.bias),
    "vjp": lambda _, a: 0.3 * Vjp.apply(a),
}


def build_cell(function):
    return type("Own", (Base,), {"new": lambda self, x, h: torch.tanh(function(self, x + self.U(h)))})


def compare(layer, **settings):
    """Compare outputs and all gradients with those of the loop."""
    torch.manual_seed(2)
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    start = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for kernel in ("compiled", "loop"):
        layer.kernel = kernel
        y, last = layer(x, start, **settings)
        leaves = [x, start, *layer.parameters()]
        grads = torch.autograd.grad(y.square().sum() + last.sum(), leaves, allow_unused=True)
        found.append([y, last, *(torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves, strict=True))])
    assert_close(*found, rtol=1e-12, atol=1e-12)
    return found[0]


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_has_its_own_derivative(function):
    layer = seqloom.Recurrent(build_cell(function), 3, 4, batch_first=True, dtype=torch.float64)
    for settings in ({}, {"lengths": [6, 0, 3, 5]}, {"reset": torch.arange(24).view(4, 6) % 5 == 0}):
        compare(layer, **settings)


def test_a_global_that_only_the_backward_reads_is_watched(monkeypatch):
    layer = seqloom.Recurrent(build_cell(FUNCTIONS["spike"]), 3, 4, batch_first=True, dtype=torch.float64)
    before = compare(layer)
    monkeypatch.setattr(sys.modules[__name__], "SLOPE", 0.5)
    after = compare(layer)
    assert_close(after[0], before[0])
    assert not torch.allclose(after[2], before[2])


def test_a_function_of_an_installed_package_is_compiled(tmp_path):
    folder = tmp_path / "site-packages" / "surrogates"
    folder.mkdir(parents=True)
    path = folder / "__init__.py"
    path.write_text(
        "import torch\n\n\nclass Sigmoid(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x, slope):\n        ctx.save_for_backward(x)\n"
        "        ctx.slope = slope\n        return (x > 0).to(x.dtype)\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        (x,) = ctx.saved_tensors\n"
        "        s = torch.sigmoid(ctx.slope * x)\n        return grad.clone() * ctx.slope * s * (1 - s), None\n\n\n"
        "def sigmoid(slope=25):\n    def inner(x):\n        return Sigmoid.apply(x, slope)\n\n    return inner\n"
    )
    spec = importlib.util.spec_from_file_location("surrogates", path)
    module = sys.modules["surrogates"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        spike = module.sigmoid(slope=4)
        layer = seqloom.Recurrent(build_cell(lambda _, a: spike(a)), 3, 4, batch_first=True, dtype=torch.float64)
        compare(layer)
    finally:
        del sys.modules["surrogates"]


def test_second_derivatives_are_those_of_the_loop():
    layer = seqloom.Recurrent(build_cell(FUNCTIONS["new style"]), 3, 4, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for kernel in ("compiled", "loop"):
        layer.kernel = kernel
        (g,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, *layer.parameters()], allow_unused=True))
    assert_close(*found)


class Constant(Function):
    """A derivative that is not 0 where that of the output is."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.sign()

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return torch.ones_like(g)


class InPlace(Function):
    """Change the argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return 2 * g


class Branch(Function):
    """Read a number in the backward."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.sign()

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return g if g.abs().max() < 1 else g / g.abs().max()


class Noisy(Branch):
    """Draw random numbers in the backward."""

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return g * torch.rand_like(g)


class Centred(Branch):
    """Combine rows in the backward."""

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return g - g.sum(0)


class ClippedWeight(Linear):
    """Clip the gradient of a weight in every step."""

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, (g.t() @ x).clamp(-1, 1), g.sum(0)


class BatchSize(Branch):
    """Divide by the number of rows."""

    @staticmethod
    def backward(ctx, g):  # noqa: ARG004
        return g / g.shape[0]


class NoBackward(Function):
    """Have no derivative."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.sign()


REFUSED = {
    Constant: "step calls an autograd.Function whose backward returns a gradient where that of its output is 0",
    InPlace: "step calls an autograd.Function that changes its argument in place",
    Branch: "the derivative of step depends on the value of a tensor",
    Noisy: "step draws random numbers (test_own_functions.py:",
    Centred: "the backward of a function combines rows of the batch by sub (test_own_functions.py:",
    ClippedWeight: "the backward of a function combines rows of the batch by ",
    BatchSize: "step computes with the batch size (test_own_functions.py:",
    NoBackward: "step cannot be traced: NotImplementedError",
}


@pytest.mark.parametrize(("function", "reason"), REFUSED.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_what_a_backward_must_not_do_is_named(function, reason):
    def call(cell, a):
        return function.apply(a, cell.U.weight, cell.U.bias) if function is ClippedWeight else function.apply(1 * a)

    cell = build_cell(call)().double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    answer = why_not(cell, ScanJob(x, cell.start(x)))
    assert answer is not None and answer.startswith(reason), answer


def test_other_threads_may_call_functions_meanwhile():
    from seqloom.compiler.functions import FunctionRecorder

    recorder, x = FunctionRecorder(), torch.ones(2, requires_grad=True)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, recorder.record(None):
        y = pool.submit(Spike.apply, x, 0.5).result()
    assert y.grad_fn is not None and not recorder.calls
    assert Spike.apply(x, 0.5).grad_fn is not None

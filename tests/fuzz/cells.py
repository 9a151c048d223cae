"""Random cells: what the compiler makes of a cell matches the reference loop, or it names the operator it refuses.

A cell is written as Python source, so that a refusal can name a line and a failing case can be read and kept.
"""

from __future__ import annotations

import collections
import copy
import importlib.util
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import seqloom
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.kernels.compiled.validation import ROUNDING, TRIES, OtherRounding, Verdicts

Shape = tuple[int, ...]
UNARY = (
    *("torch.tanh({})", "torch.sigmoid({})", "torch.relu({})", "torch.sin({})", "torch.cos({})", "torch.erf({})"),
    *("F.softplus({})", "F.gelu({})", "F.silu({})", "torch.exp(-{}.abs())", "torch.sqrt({}.abs() + 0.1)", "-{}"),
    *("torch.log1p({}.abs())", "1 / (1 + {} * {})", "{}.square()", "{}.clamp(-0.7, 0.6)"),
    *("F.logsigmoid({})", "torch.rsqrt({} * {} + 0.5)", "F.gelu({}, approximate='tanh')", "{} ** 3", "1 - {}"),
    *("({}.abs() + 0.3).reciprocal()", "torch.expm1(-{}.abs())", "{}.abs()", "F.relu6({})", "{}.detach()"),
    *("F.leaky_relu({})", "F.elu({})", "F.selu({})", "F.hardtanh({})", "torch.asinh({})", "F.softshrink({}, 0.2)"),
    *("{}.roll(1, -1)", "{}.flip(-1)", "{}.cumsum(-1)", "F.mish({})", "torch.hypot({}, {} + 1.5)"),
    *("torch.atan({})", "torch.atan2({}, 0.5 - {})", "{}.sort(-1).values", "{}.sort(-1, descending=True)[0]"),
    *("{}.max(-1, keepdim=True).values", "{}.topk(1, -1)[0] + {}", "F.pad({}, (1, 0))[..., :-1]"),
    *("Spike.apply({}, 0.2)", "Soft.apply({}, {} - 0.3)[0]", "Soft.apply({}, 0.5 * {})[1]"),
    *("{} + 0.3 * torch.randn_like({})", "{} * torch.rand_like({})", "F.dropout({}, 0.3)"),
)
STEPS = ("torch.sign({})", "torch.floor({})", "{}.round()", "({} > 0).to({}.dtype)")  # without a derivative
# operators that the compiler may refuse, with a reason
RARE = (
    *("({}.argmax(-1, keepdim=True) > 0) * {}", "torch.logsumexp({}, -1, keepdim=True)", "{}.cummax(-1).values"),
    *(
        "torch.bernoulli(torch.sigmoid({}))",
        "{} + torch.empty_like({}).exponential_()",
        "torch.fft.fft({}.double()).real.to({}.dtype)",
    ),
    *("F.normalize({}, dim=-1)", "{}.prod(-1, keepdim=True)", "{}.std(-1, keepdim=True)", "{} % 0.7"),
)
BINARY = (
    *("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} / (1.5 + {}.abs())"),
    *("torch.lerp({}, {}, 0.3)", "{}.mul({}).tanh()", "torch.addcmul({}, {}, {}, value=0.5)"),
)
COMPARISONS = ("{} > {}", "{} <= {}", "{} > 0.1", "({} < {}) & ({} > -0.3)", "~({} >= {})", "({} > 0) | ({} < -1)")
REDUCTIONS = (
    *(
        "{}.sum(-1, keepdim=True)",
        "{}.mean(-1, keepdim=True)",
        "{}.amax(-1, keepdim=True)",
        "{}.amin(-1, keepdim=True)",
    ),
    *("{}.var(-1, keepdim=True, unbiased=False)", "{}.square().sum(-1, keepdim=True)"),
)
HEADER = """import torch
import torch.nn.functional as F
from torch import nn

from seqloom import Cell


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, threshold):
        ctx.save_for_backward(x)
        ctx.threshold = threshold
        return (x > threshold).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.clone()
        g[(x - ctx.threshold).abs() > 1.5] = 0
        return g / (1 + 3 * (x - ctx.threshold).abs()) ** 2, None


class Soft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.gate = torch.sigmoid(a)
        ctx.b = b
        return ctx.gate * b, torch.sin(a + b)

    @staticmethod
    def backward(ctx, g, h):
        return (0.5 * g * ctx.b * ctx.gate + h).clamp(-2, 2), g * ctx.gate - 0.1 * h


class Random(Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
"""


@dataclass
class Writer:
    """Write a random cell, one statement after the other."""

    draw: random.Random
    hidden: int
    projected: int = 0  # features of x
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)  # of float type; names and shapes of a row
    truths: list[tuple[str, Shape]] = field(default_factory=list)
    count: int = 0

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def weight(self, *sizes: int, scale: float | None = None) -> str:
        name = self.name("p")
        scale = (sizes[0] if sizes else 1) ** -0.5 if scale is None else scale
        shape = ", ".join(map(str, sizes))
        made = f"torch.randn({shape}) * {scale:.3f}" if sizes else "torch.randn(())"
        kind = self.draw.random()
        if kind < 0.9:
            self.init.append(f"self.{name} = nn.Parameter({made})")
        else:
            self.init.append(f"self.register_buffer({name!r}, {made})")
        return f"self.{name}"

    def module(self, text: str) -> str:
        name = self.name("m")
        self.init.append(f"self.{name} = {text}")
        return f"self.{name}"

    def pick(self, fits: Callable[[Shape], bool] = lambda _: True) -> tuple[str, Shape]:
        """Choose a value, recent ones more often."""
        found = [v for v in self.values if fits(v[1])]
        return found[-1 - min(int(self.draw.expovariate(0.5)), len(found) - 1)] if found else self.values[0]

    def add(self, text: str, shape: Shape) -> tuple[str, Shape]:
        name = self.name("v")
        self.body.append(f"{name} = {text}")
        self.values.append((name, shape))
        return name, shape

    def other(self, shape: Shape) -> str:
        """Return an operand that can be combined with a value of a shape: a value, a weight or a number."""
        kind = self.draw.random()
        if kind < 0.6:
            name, own = self.pick(lambda s: fits_into(s, shape))
            if fits_into(own, shape):
                return name
        if kind < 0.75:
            return self.weight(*self.draw.choice([shape, shape[-1:], (1,), ()]), scale=0.7)
        return f"{self.draw.choice((0.5, -0.3, 1.7))}" if kind > 0.9 else self.fill(shape)

    def fill(self, shape: Shape) -> str:
        """Return a value of exactly this shape."""
        same = [v for v in self.values if v[1] == shape]
        return self.draw.choice(same)[0] if same else self.reach(shape)

    def reach(self, shape: Shape) -> str:
        """Add a value of a shape, by a product of another one."""
        name, own = self.pick()
        flat = name if len(own) == 1 else f"{name}.flatten(1)"
        size = _size(shape)
        text = f"{self.module(f'nn.Linear({_size(own)}, {size})')}({flat})"
        text = text if len(shape) == 1 else f"{text}.unflatten(-1, {shape})"
        return self.add(text, shape)[0]

    # --- statements ---

    def product(self) -> None:
        name, shape = self.pick()
        n, m, kind = shape[-1], self.draw.choice((self.hidden, self.hidden, 1, 3, 2 * self.hidden)), self.draw.random()
        if len(shape) > 1 and kind < 0.3:
            self.add(
                f"torch.einsum('bhi,hio->bho', {name}, {self.weight(shape[0], n, m, scale=n**-0.5)})", (shape[0], m)
            )
        elif len(shape) > 1 and kind < 0.6:
            vector = self.fill((n,))
            text = self.draw.choice(("torch.einsum('bij,bj->bi', {}, {})", "({} @ {}.unsqueeze(-1)).squeeze(-1)"))
            self.add(text.format(name, vector), shape[:1])
        elif len(shape) == 1 and kind < 0.15:
            other, wide = self.pick(lambda s: len(s) == 1)
            if len(wide) == 1:
                self.add(f"torch.cat([{name}, {other}], -1) @ {self.weight(n + wide[0], m)}", (m,))
        elif len(shape) == 1 and kind < 0.3:
            self.add(f"torch.addmm({self.weight(m)}, {name}, {self.weight(n, m)})", (m,))
        elif len(shape) == 1 and kind < 0.5:
            self.add(f"F.linear({name}, {self.weight(m, n, scale=n**-0.5)})", (m,))
        elif len(shape) == 1 and kind < 0.6:
            self.add(f"torch.einsum('bi,oi->bo', {name}, {self.weight(m, n, scale=n**-0.5)})", (m,))
        elif kind < 0.8:
            self.add(f"{name} @ {self.weight(n, m)}", (*shape[:-1], m))
        else:
            self.add(f"{self.module(f'nn.Linear({n}, {m}, bias={kind < 0.9})')}({name})", (*shape[:-1], m))

    def unary(self) -> None:
        name, shape = self.pick()
        kind = self.draw.random()
        texts = UNARY if kind < 0.93 else STEPS if kind < 0.97 else RARE
        text = self.draw.choice(texts)
        keeps = "-1, keepdim" in text and "argmax" not in text
        self.add(text.replace("{}", name), (*shape[:-1], 1) if keeps else shape)

    def binary(self) -> None:
        name, shape = self.pick()
        text = self.draw.choice(BINARY)
        same = text.startswith(("torch.m", "torch.lerp", "torch.addcmul", "{}.mul")) or "abs()" in text
        others = [self.fill(shape) if same else self.other(shape) for _ in range(text.count("{}") - 1)]
        self.add(text.format(name, *others), shape)

    def choose(self) -> None:
        """Compare two values, and choose by the result."""
        name, shape = self.pick()
        text = self.draw.choice(COMPARISONS)
        others = [self.other(shape) for _ in range(text.count("{}") - 1)]
        text = text.format(name, *others)
        truth = self.name("t")
        self.body.append(f"{truth} = {text}")
        if self.draw.random() < 0.3 and self.truths:
            earlier = self.draw.choice(self.truths)
            if earlier[1] == shape:
                truth = f"{truth} {self.draw.choice('&|^')} {earlier[0]}" if self.draw.random() < 0.9 else truth
        else:
            self.truths.append((truth, shape))
        kind = self.draw.random()
        if kind < 0.6:
            self.add(f"torch.where({truth}, {self.fill(shape)}, {self.other(shape)})", shape)
        elif kind < 0.8:
            self.add(f"({truth}) * {self.fill(shape)}", shape)
        else:
            self.add(f"{self.fill(shape)}.masked_fill({truth}, {self.draw.choice((0.0, 0.4))})", shape)

    def gate(self) -> None:
        name, shape = self.pick()
        gate, new = self.fill(shape), self.fill(shape)
        text = self.draw.choice(
            (
                "torch.lerp({a}, {b}, torch.sigmoid({g}))",
                "torch.sigmoid({g}) * {a} + (1 - torch.sigmoid({g})) * {b}",
                "{a} + torch.sigmoid({g}) * ({b} - {a})",
            )
        )
        self.add(text.format(a=name, b=new, g=gate), shape)

    def reduce(self) -> None:
        name, shape = self.pick()
        kind = self.draw.random()
        if shape[-1] == 1:  # the norm or softmax of one unit is nothing but rounding
            kind += 0.5
        if kind < 0.25:
            norm = self.module(f"nn.LayerNorm({shape[-1]}, eps=0.01, elementwise_affine={kind < 0.2})")
            self.add(f"{norm}({name})", shape)
        elif kind < 0.5:
            function = self.draw.choice(("torch.softmax", "torch.log_softmax"))
            self.add(f"{function}({name}, {self.draw.choice(('-1', '1'))})", shape)
        elif len(shape) > 1 and kind < 0.65:
            self.add(f"{name}.{self.draw.choice(('sum', 'mean', 'amax'))}(1)", shape[1:])
        else:
            self.add(self.draw.choice(REDUCTIONS).format(name), (*shape[:-1], 1))

    def move(self) -> None:
        name, shape = self.pick()
        n, kind = shape[-1], self.draw.random()
        if kind < 0.25 and n > 1:
            at = self.draw.randrange(1, n)
            text, size = self.draw.choice(
                ((f"[..., :{at}]", at), (f"[..., {at}:]", n - at), ("[..., ::2]", (n + 1) // 2))
            )
            self.add(f"{name}{text}", (*shape[:-1], size))
        elif kind < 0.45:
            other, own = self.pick(lambda s: s[:-1] == shape[:-1])
            if own[:-1] == shape[:-1] and n + own[-1] <= 24:
                self.add(f"torch.cat([{name}, {other}], -1)", (*shape[:-1], n + own[-1]))
        elif kind < 0.6 and n % 2 == 0 and len(shape) == 1:
            first = self.name("v")
            second = self.name("v")
            self.body.append(f"{first}, {second} = {name}.chunk(2, -1)")
            self.values += [(first, (n // 2,)), (second, (n // 2,))]
        elif kind < 0.7 and n % 2 == 0 and len(shape) == 1:
            self.add(f"{name}.unflatten(-1, (2, {n // 2}))", (2, n // 2))
        elif kind < 0.8 and len(shape) > 1:
            self.add(f"{name}.flatten(1)", (_size(shape),))
        elif kind < 0.9 and len(shape) > 1:
            self.add(f"{name}.transpose(1, 2)", shape[::-1])
        elif len(shape) == 1 and kind < 0.93:
            places = ", ".join(str(self.draw.randrange(-n, n)) for _ in range(n))
            order = f"order{len(self.init)}"
            self.init.append(f"self.register_buffer({order!r}, torch.tensor([{places}]))")
            self.add(f"{name}[:, {self.draw.choice((f'self.{order}', f'[{places}]'))}]", shape)
        elif len(shape) == 1 and kind < 0.96 and n > 2:
            self.add(f"F.conv1d({name}.unsqueeze(1), {self.weight(1, 1, 3)}, padding=1).squeeze(1)", shape)
        elif len(shape) == 1:
            other = self.fill(self.draw.choice((shape, (2,), (3,))))
            width = next(s for v, s in self.values if v == other)[0]
            self.add(f"{name}.unsqueeze(-1) * {other}.unsqueeze(1)", (n, width))

    def statement(self) -> None:
        kinds = (self.product, self.unary, self.binary, self.choose, self.gate, self.reduce, self.move)
        self.draw.choices(kinds, (3, 5, 4, 1.5, 2, 2, 3))[0]()


def fits_into(shape: Shape, whole: Shape) -> bool:
    """Return whether a value of a shape can be broadcast to another one, with the batch before both."""
    return len(shape) == len(whole) and all(a in (1, b) for a, b in zip(shape, whole, strict=True))


def _size(shape: Shape) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def write_cell(draw: random.Random) -> tuple[str, int, int]:
    """Return the source of a random cell, its input size and its hidden size."""
    H = draw.choice((1, 2, 3, 4, 4, 6, 8, 16))
    D = H  # so that a second layer fits on the first
    w = Writer(draw, H)
    shapes: list[Shape] = [(H,)]
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2, 3))):
        shapes.append(draw.choice([(H,), (H,), (3,), (1,), (2, H), (H, 2)]))
    projected, lines = D, []
    if draw.random() < 0.5:
        projected = draw.choice((H, 3 * H, 2))
        lines += ["    def project(self, x):", f"        return {w.module(f'nn.Linear({D}, {projected})')}(x)", ""]
    if len(shapes) > 1 or draw.random() < 0.3:
        fill = draw.choice(("x.new_zeros({})", "x.new_full(({}), 0.3)"))
        states = [fill.format(f"x.shape[0], {', '.join(map(str, s))}") for s in shapes]
        lines += ["    def initial_state(self, x):", f"        return ({', '.join(states)},)", ""]
    names = [f"s{i}" for i in range(len(shapes))]
    w.projected = projected
    w.values = [("x", (projected,)), *zip(names, shapes, strict=True)]
    draw.shuffle(w.values)
    for _ in range(draw.choice((1, 2, 3, 4, 6, 8, 12))):
        w.statement()
    after = [_write_state(w, names[i], shape) for i, shape in enumerate(shapes)]
    if len(after) > 1 and shapes[0] == shapes[1] and draw.random() < 0.1:
        after[1] = after[0]
    y = _write_output(w, after, names)
    lines += ["    def step(self, x, state):", f"        {', '.join(names)}{',' if len(names) == 1 else ''} = state"]
    lines += [f"        {line}" for line in w.body]
    lines += [f"        return {y}, ({', '.join(after)},)", ""]
    return HEADER + "".join(f"        {line}\n" for line in w.init) + "\n" + "\n".join(lines), D, H


def _write_state(w: Writer, old: str, shape: Shape) -> str:
    """Return what a state is after the step: mostly something bounded."""
    kind = w.draw.random()
    if kind < 0.03:
        return old
    new = w.fill(shape) if kind < 0.5 else w.reach(shape)
    new = w.reach(shape) if new == old else new
    texts = (
        "torch.tanh({})",
        "torch.sigmoid({})",
        "0.5 * {old} + 0.5 * torch.tanh({})",
        "0.9 * {old} + 0.1 * torch.sin({})",
    )
    text = w.draw.choice(texts)
    return w.add(text.format(new, old=old), shape)[0]


def _write_output(w: Writer, after: Sequence[str], before: Sequence[str]) -> str:
    """Return the output: a new state, an old one, both, or anything else."""
    kind, H = w.draw.random(), w.hidden
    if kind < 0.35:
        return after[0]
    if kind < 0.5:
        return w.add(w.draw.choice(("{} - {}", "{} * {}", "torch.maximum({}, {})")).format(after[0], before[0]), (H,))[
            0
        ]
    if kind < 0.6 and H > 1:
        return w.add(f"{w.module(f'nn.LayerNorm({H}, eps=0.01)')}({after[0]} + {before[0]})", (H,))[0]
    if kind < 0.7:
        return before[0]
    if kind < 0.8:
        return w.add(f"{w.module(f'nn.Linear({w.projected}, {H})')}(x)", (H,))[0]
    return w.fill((H,)) if kind < 0.9 else w.reach((H,))


def load_cell(source: str, path: Path) -> type[Cell]:
    """Import a cell from its source."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DRAWS = any(word in source for word in ("rand_like", "randn_like", "dropout", "bernoulli", "exponential_"))
    return module.Random


# --- comparison ---

B, T = 4, 6
CALLS = ("plain", "lengths", "reset", "state", "both directions", "two layers")
TYPES = {"cpu": (torch.float64, torch.float32), "cuda": (torch.float32, torch.bfloat16)}
# The difference that rounding may make, as a share of the largest number of a result; smaller ones than LEAST count
# as LEAST.
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1}
LEAST = {torch.float64: 1e-3, torch.float32: 0.03, torch.bfloat16: 0.1}
REFUSAL = re.compile(r"\(\w+\.py:\d+\)")  # names a line


class MismatchError(AssertionError):
    """The compiled cell and the loop differ."""


def check(draw: random.Random, work: Path, device: str = "cpu") -> str:
    """Compare one cell in every call and type; return what became of it."""
    source, D, H = write_cell(draw)
    kind = load_cell(source, work / f"random_cell_{draw.randrange(10**9)}.py")
    try:
        # the check of a first call would hide a fault behind the loop
        with mock.patch.object(Verdicts, "find", return_value=None):
            for dtype in TYPES[device]:
                for call in CALLS:
                    _compare(kind, (D, H), call, dtype, device)
    except UserError as error:
        reason = str(error)
        if not REFUSAL.search(reason):
            raise AssertionError(f"a refusal does not name a line: {reason}\n{source}") from error
        return "refused"
    except Exception as error:
        error.add_note(source)
        raise
    return "compiled"


def _compare(kind: type[Cell], sizes: tuple[int, int], call: str, dtype: torch.dtype, device: str) -> None:
    """Compare a compiled cell with the loop.

    Raises:
        MismatchError: If they differ by more than rounding explains.
    """
    torch.manual_seed(0)
    layer = seqloom.Recurrent(
        kind, *sizes, batch_first=True, dtype=torch.float64, device=device,
        bidirectional=call == "both directions", num_layers=1 + (call == "two layers"),
    )  # fmt: skip
    loops = [_run(layer, "loop", call, dtype, device)]
    draws = kind.step.__globals__["DRAWS"]  # other numbers in each type
    exact = loops[0] if draws or dtype == torch.float64 else _run(layer, "loop", call, torch.float64, device)
    ours = _run(layer, "compiled", call, dtype, device)
    wrong = _list_differences(ours, loops, exact, dtype)
    for seed in range(TRIES):  # other rounding may change the loop's results as much: a threshold, or chaos
        if not wrong:
            break
        with OtherRounding(ROUNDING[dtype], seed):
            loops.append(_run(layer, "loop", call, dtype, device))
        wrong = _list_differences(ours, loops, exact, dtype)
    if wrong:
        raise MismatchError("; ".join(f"{call} in {dtype}: {difference}" for difference in wrong))


def _list_differences(
    ours: dict[str, Tensor], loops: Sequence[dict[str, Tensor]], exact: dict[str, Tensor], dtype: torch.dtype
) -> list[str]:
    wrong = []
    for name, mine in ours.items():
        known = exact[name].isfinite()
        for loop in loops:  # numbers that overflow in this type have no right value
            known = known & loop[name].isfinite()
        theirs, largest = max(_distance(loop[name], exact[name], known) for loop in loops), _largest(exact[name])
        distance = _distance(mine, exact[name], known)
        if not distance <= 4 * theirs + ALLOWED[dtype] * max(largest, LEAST[dtype]):
            wrong.append(f"{name} differs by {distance:.3g} (the loop by {theirs:.3g}), numbers to {largest:.3g}")
    return wrong


def _largest(t: Tensor) -> float:
    t = t[t.isfinite()]
    return float(t.abs().max()) if t.numel() else 0.0


def _distance(a: Tensor, b: Tensor, known: Tensor) -> float:
    """Return the largest difference where the loop's results are numbers."""
    difference = (a - b)[known] if a.shape == b.shape == known.shape else a - b
    return float(difference.abs().max()) if difference.numel() else 0.0


def _run(layer: seqloom.Recurrent, kernel: str, call: str, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Return outputs, last states and all gradients of one call, in float64 on the CPU.

    Args:
        layer: The layer, in float64.
        kernel: "loop" or "compiled".
        call: One of `CALLS`.
        dtype: The type to run it in.
        device: Where it is.
    """
    layer = copy.deepcopy(layer).to(dtype)
    layer.kernel = kernel
    draw = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(device, dtype)

    x = random(B, T, layer.input_size).requires_grad_()
    settings: dict[str, Any] = {}
    if call in ("lengths", "both directions", "two layers"):
        settings["lengths"] = torch.tensor([T, 3, 0, 5])
    if call == "reset":
        settings["reset"] = (torch.rand(B, T, generator=draw) < 0.3).to(device)
        settings["lengths"] = torch.tensor([T, 3, 0, 5])
    leaves = {"x": x} | dict(layer.named_parameters())
    if call == "state":
        states = tuple(random(1, *s.shape) * 0.5 for s in layer.cell_at(0).start(x.detach()))
        leaves |= {f"state {i}": s.requires_grad_() for i, s in enumerate(states)}
        settings["state"] = states if len(states) > 1 else states[0]
    torch.manual_seed(3)  # of the random numbers that a step draws
    y, last = layer(x, **settings)
    results = {"output": y} | {f"last {i}": s for i, s in enumerate(last if isinstance(last, tuple) else (last,))}
    loss = sum((r * random(*r.shape)).sum() for r in results.values())
    if loss.requires_grad:
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        results |= {f"gradient of {n}": g for n, g in zip(leaves, gradients, strict=True) if g is not None}
    return collections.defaultdict(_zero, {name: t.detach().double().cpu() for name, t in results.items()})


def _zero() -> Tensor:  # a gradient that one of the two does not have
    return torch.zeros((), dtype=torch.float64)

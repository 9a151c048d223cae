"""Write a traced function of tensors as C99: constants become arrays, every operator becomes loops.

Tensors have fixed shapes. A view (slice, transpose, expand) costs nothing: it is an offset and strides into the memory
of another tensor, which torch computes on its meta device. All values are float; truth values are 0 and 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from seqloom.core.errors import UserError
from seqloom.lab.export.int8 import FEWEST, split_int8

aten = torch.ops.aten
POINTWISE = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "rsub": "{1} - {0}",
    "neg": "-{0}",
    "sigmoid": "sigmoid({0})",
    "tanh": "tanhf({0})",
    "relu": "({0} > 0.0f ? {0} : 0.0f)",
    "exp": "expf({0})",
    "expm1": "expm1f({0})",
    "log": "logf({0})",
    "log1p": "log1pf({0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "1.0f / sqrtf({0})",
    "reciprocal": "1.0f / {0}",
    "erf": "erff({0})",
    "abs": "fabsf({0})",
    "sin": "sinf({0})",
    "cos": "cosf({0})",
    "pow": "powf({0}, {1})",
    "maximum": "fmaxf({0}, {1})",
    "minimum": "fminf({0}, {1})",
    "clamp_min": "fmaxf({0}, {1})",
    "gt": "(float)({0} > {1})",
    "lt": "(float)({0} < {1})",
    "ge": "(float)({0} >= {1})",
    "le": "(float)({0} <= {1})",
    "eq": "(float)({0} == {1})",
    "ne": "(float)({0} != {1})",
    "isnan": "(float)({0} != {0})",
    "logical_not": "(float)({0} == 0.0f)",
    "where": "({0} != 0.0f ? {1} : {2})",
    "_to_copy": "{0}",
    "clone": "{0}",
}
REDUCTIONS = {"sum": ("0.0f", "{a} + {v}"), "amax": ("-INFINITY", "fmaxf({a}, {v})"), "mean": ("0.0f", "{a} + {v}")}
VIEWS = (
    *(
        "view",
        "_unsafe_view",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "t",
        "expand",
        "slice",
        "select",
        "alias",
    ),
    *("split", "split_with_sizes", "unbind", "detach"),
)
MORE_DECOMPOSITIONS = (aten.gelu, aten.elu, aten.silu, aten.softplus, aten._softmax, aten.addmm, aten.stack)


class CWriter:
    """Collects the C code of one function.

    Args:
        int8: Whether to store matrices that were rounded as int8.

    Attributes:
        constants: Declarations of arrays.
        lines: Statements, in order.
        work: Number of floats of memory that the statements use.
    """

    def __init__(self, int8: bool = False) -> None:
        self.int8 = int8
        self.constants: list[str] = []
        self.lines: list[str] = []
        self.work = 0
        self._names: dict[int, tuple[str, Tensor]] = {}

    def write(
        self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], names: Sequence[str]
    ) -> list[CArray]:
        """Write the statements of a function and return its results.

        Args:
            function: Maps tensors to tensors of fixed shapes.
            inputs: Examples; ids are of type int64.
            names: The C expression of each input: a pointer, or an int.

        Raises:
            UserError: If it uses an operator that has no C code here.
        """
        table: Any = core_aten_decompositions() | get_decompositions(MORE_DECOMPOSITIONS)
        with torch.no_grad():
            traced = make_fx(function, decomposition_table=table)(*inputs)
        known: dict[fx.Node, Any] = {}
        arguments = iter(zip(inputs, names, strict=True))
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                example, name = next(arguments)
                known[node] = CArray(name, example.to("meta").contiguous())
            elif node.op == "get_attr":
                known[node] = getattr(traced, node.target).detach()
            elif node.op == "call_function":
                args, kwargs = (fx.node.map_arg(part, known.__getitem__) for part in (node.args, node.kwargs))
                known[node] = self._call(node.target, args, kwargs)
            elif node.op == "output":
                return [known[n] if isinstance(n, fx.Node) else n for n in node.args[0]]
        raise AssertionError("a graph has an output")

    def _call(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401  # an operator and its arguments
        if target is operator.getitem:
            return args[0][args[1]]
        flat = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, CArray)]
        if not flat:
            return target(*args, **kwargs)  # constants
        name = target.overloadpacket.__name__
        if name in VIEWS:
            return self._view(target, args, kwargs)
        if name in POINTWISE:
            return self._pointwise(name, args, kwargs)
        if name in REDUCTIONS or name == "var":
            return self._reduce(name, args, kwargs)
        special: dict[str, Callable[..., Any]] = {
            "mm": self._mm,
            "cat": self._cat,
            "embedding": self._embedding,
            "native_layer_norm": self._layer_norm,
        }
        if name in special:
            return special[name](*args)
        if name in ("full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full"):
            return target(torch.empty(args[0].meta.shape), *args[1:])
        raise UserError(f"this model uses {name}, which has no C code; use --to onnx")

    def _view(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        source = args[0]
        try:
            results = target(source.meta, *args[1:], **kwargs)
        except RuntimeError:  # its numbers are not in order
            source = self._pointwise("clone", [source], {})
            results = target(source.meta, *args[1:], **kwargs)
        if isinstance(results, Tensor):
            return CArray(source.base, results)
        return [CArray(source.base, one) for one in results]

    def allocate(self, shape: Sequence[int]) -> CArray:
        """Return new memory of a shape."""
        start, size = self.work, max(1, int(np.prod(shape)))
        self.work += size
        return CArray(f"w + {start}", torch.empty(tuple(shape), device="meta"))

    def _name(self, constant: Tensor) -> CArray:
        """Return the array of a constant; it is declared when it is first used."""
        key = id(constant)
        if key not in self._names:
            name = f"c{len(self._names)}"
            self._names[key] = name, constant  # keeps the tensor, so that no other has its id
            self.constants.append(declare(name, constant.contiguous().float().numpy()))
        return CArray(self._names[key][0], torch.empty(constant.shape, device="meta"))

    def _read(self, value: Any, shape: Sequence[int], indices: Sequence[str]) -> str:  # noqa: ANN401
        """Return the C expression of one element of an argument that is broadcast to a shape."""
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool | int | float):
            return format_number(float(value))
        value = self._name(value) if isinstance(value, Tensor) else value
        return value.at(value.meta.expand(tuple(shape)), indices)

    def _loops(self, shape: Sequence[int], body: Callable[[list[str]], list[str]]) -> None:
        indices = [f"i{k}" if n > 1 else "0" for k, n in enumerate(shape)]
        inner = body(indices)
        depth = 0
        for index, n in zip(indices, shape, strict=True):
            if n > 1:
                self.lines.append("    " * (depth + 1) + f"for (int {index} = 0; {index} < {n}; {index}++) {{")
                depth += 1
        self.lines += ["    " * (depth + 1) + line for line in inner]
        self.lines += ["    " * (d + 1) + "}" for d in reversed(range(depth))]

    def _pointwise(self, name: str, args: Any, kwargs: Any) -> CArray:  # noqa: ANN401
        args = [a for a in args if isinstance(a, CArray | Tensor | int | float)]
        shapes = [a.meta.shape if isinstance(a, CArray) else getattr(a, "shape", ()) for a in args]
        shape = torch.broadcast_shapes(*shapes)
        out, alpha = self.allocate(shape), kwargs.get("alpha", 1)

        def body(indices: list[str]) -> list[str]:
            reads = [self._read(a, shape, indices) for a in args]
            if alpha != 1:
                reads[1] = f"({format_number(alpha)} * {reads[1]})"
            return [f"{out.at(out.meta, indices)} = {POINTWISE[name].format(*reads)};"]

        self._loops(shape, body)
        return out

    def _reduce(self, name: str, args: Any, kwargs: Any) -> CArray:  # noqa: ANN401
        source, rest = args[0], list(args[1:])
        shape = tuple(source.meta.shape)
        dims = rest[0] if rest and rest[0] else list(range(len(shape)))
        dims = [d % len(shape) for d in ([dims] if isinstance(dims, int) else dims)]
        keep = bool(kwargs.get("keepdim", rest[1] if len(rest) > 1 and isinstance(rest[1], bool) else False))
        outer = [1 if d in dims else n for d, n in enumerate(shape)]
        count = int(np.prod([shape[d] for d in dims]))
        if name == "var":
            mean = self._reduce("mean", [source, dims, True], {})
            off = self._pointwise("sub", [source, mean], {})
            total = self._reduce("sum", [self._pointwise("mul", [off, off], {}), dims, True], {})
            out = self._pointwise("div", [total, count - kwargs.get("correction", 1)], {})
        else:
            out = self.allocate(outer)
            first, combine = REDUCTIONS[name]

            def body(indices: list[str]) -> list[str]:
                inner = [f"j{d}" if d in dims and shape[d] > 1 else "0" for d in range(len(shape))]
                at = [j if d in dims else i for d, (i, j) in enumerate(zip(indices, inner, strict=True))]
                lines, depth = [f"float a = {first};"], 0
                for d in dims:
                    if shape[d] > 1:
                        lines.append("    " * depth + f"for (int j{d} = 0; j{d} < {shape[d]}; j{d}++) {{")
                        depth += 1
                lines.append("    " * depth + f"a = {combine.format(a='a', v=source.at(source.meta, at))};")
                lines += ["    " * d + "}" for d in reversed(range(depth))]
                end = f"a / {format_number(count)}" if name == "mean" else "a"
                return ["{", *("    " + line for line in lines), f"    {out.at(out.meta, indices)} = {end};", "}"]

            self._loops(outer, body)
        return out if keep else CArray(out.base, out.meta.squeeze(tuple(dims)))

    def _layer_norm(self, x: CArray, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> list[Any]:  # noqa: ANN401
        dims = list(range(-len(shape), 0))
        off = self._pointwise("sub", [x, self._reduce("mean", [x, dims, True], {})], {})
        var = self._reduce("mean", [self._pointwise("mul", [off, off], {}), dims, True], {})
        rate = self._pointwise("rsqrt", [self._pointwise("add", [var, eps], {})], {})
        y = self._pointwise("mul", [off, rate], {})
        y = y if weight is None else self._pointwise("mul", [y, weight], {})
        return [y if bias is None else self._pointwise("add", [y, bias], {}), None, None]

    def _mm(self, left: CArray, right: Any) -> CArray:  # noqa: ANN401  # a CArray or a constant
        (rows, K), N = left.meta.shape, (right.meta if isinstance(right, CArray) else right).shape[1]
        out = self.allocate((rows, N))
        parts = None
        if self.int8 and isinstance(right, Tensor) and right.numel() >= FEWEST:
            parts = split_int8(right.contiguous().numpy())
        scale = "1.0f"
        before = ""
        if parts is not None:
            q, s = parts
            name = f"q{len(self.constants)}"
            self.constants += [declare(name, q), declare(f"{name}_scale", s.ravel())]
            matrix = CArray(name, torch.empty((K, N), device="meta"))
            scale = f"{name}_scale[n]" if s.shape[0] == 1 else scale
            before = f" * {name}_scale[k]" if s.shape[0] != 1 else ""
        else:
            matrix = right if isinstance(right, CArray) else self._name(right)
        o = out.at(out.meta, ["r", "n"])
        self.lines += [
            f"    for (int r = 0; r < {rows}; r++) {{",
            f"        for (int n = 0; n < {N}; n++) {o} = 0.0f;",
            f"        for (int k = 0; k < {K}; k++) {{",
            f"            const float a = {left.at(left.meta, ['r', 'k'])}{before};",
            f"            for (int n = 0; n < {N}; n++) {o} += a * {matrix.at(matrix.meta, ['k', 'n'])};",
            "        }",
            *([f"        for (int n = 0; n < {N}; n++) {o} *= {scale};"] if scale != "1.0f" else []),
            "    }",
        ]
        return out

    def _cat(self, parts: Sequence[Any], dim: int = 0) -> CArray:
        tensors = [p.meta if isinstance(p, CArray) else p for p in parts]
        shape = list(torch.cat([torch.empty(t.shape, device="meta") for t in tensors], dim).shape)
        out, start = self.allocate(shape), 0
        for part, tensor in zip(parts, tensors, strict=True):
            size = tensor.shape[dim]
            to = out.meta.narrow(dim, start, size)
            self._loops(
                tensor.shape,
                lambda indices, to=to, part=part, tensor=tensor: [  # type: ignore[misc]
                    f"{out.at(to, indices)} = {self._read(part, tensor.shape, indices)};"
                ],
            )
            start += size
        return out

    def copy(self, value: Any, to: str, size: int) -> list[str]:  # noqa: ANN401  # a CArray or a constant
        """Return the statements that copy a result to memory."""
        value = self._name(value) if isinstance(value, Tensor) else value
        flat = value if value.meta.is_contiguous() else self._pointwise("clone", [value], {})
        base = flat.at(flat.meta.reshape(-1), ["i"])
        return [f"    for (int i = 0; i < {size}; i++) {to}[i] = {base};"]

    def _embedding(self, table: Tensor, ids: CArray, *rest: object) -> CArray:
        N, out = table.shape[1], self.allocate((*ids.meta.shape, table.shape[1]))
        parts = split_int8(table.contiguous().numpy()) if self.int8 and table.numel() >= FEWEST else None
        if parts is not None and parts[1].shape[1] == 1:
            name = f"q{len(self.constants)}"
            self.constants += [declare(name, parts[0]), declare(f"{name}_scale", parts[1].ravel())]
            value = f"{name}_scale[{ids.base}] * {name}[{ids.base} * {N} + n]"
        else:
            value = f"{self._name(table).base}[{ids.base} * {N} + n]"
        self.lines.append(f"    for (int n = 0; n < {N}; n++) ({out.base})[n] = {value};")
        return out


class CArray:
    """A tensor in C: the pointer to its memory, and offset, shape and strides as those of a meta tensor."""

    def __init__(self, base: str, meta: Tensor) -> None:
        self.base, self.meta = base, meta

    def at(self, meta: Tensor, indices: Sequence[str]) -> str:
        """Return the C expression of one element, with the strides of `meta`."""
        terms = [
            index if stride == 1 else f"{index} * {stride}"
            for index, stride, size in zip(indices, meta.stride(), meta.shape, strict=True)
            if index != "0" and stride and size > 1
        ]
        if meta.storage_offset():
            terms.append(str(meta.storage_offset()))
        base = self.base if self.base.isidentifier() else f"({self.base})"
        return f"{base}[{' + '.join(terms) or '0'}]"


def format_number(value: float) -> str:
    """Format a float exactly, as a C literal."""
    if np.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = f"{np.float32(value):.9g}"
    text = text if any(c in text for c in ".e") else f"{text}.0"
    return f"({text}f)" if value < 0 else f"{text}f"


def declare(name: str, values: np.ndarray[Any, Any]) -> str:
    """Return the declaration of a constant array."""
    is_whole = values.dtype == np.int8
    numbers = [str(int(v)) if is_whole else format_number(float(v)).strip("()") for v in values.ravel()]
    width = 24 if is_whole else 8
    lines = [", ".join(numbers[k : k + width]) for k in range(0, len(numbers), width)]
    kind = "signed char" if is_whole else "float"
    return f"static const {kind} {name}[{len(numbers)}] = {{\n    " + ",\n    ".join(lines) + "};"

"""Plans on disk, as JSON."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqloom.compiler.draws import Draw
from seqloom.compiler.fingerprint import digest_compiler, digest_file
from seqloom.compiler.guards import Guards, read_guards
from seqloom.compiler.ir import (
    Access,
    Argument,
    Buffer,
    Instruction,
    Nest,
    Place,
    Product,
    Program,
    Reduction,
    Register,
    Store,
)
from seqloom.compiler.plan import BufferMemory, OperatorCall, Plan, Scan, Value
from seqloom.compiler.validity import check_plan
from seqloom.compiler.watch import Seen
from seqloom.core.cache import cache_folder, read_cached, write_cached

WHAT = "compiled cell"


_discarded: set[str] = set()  # names of stored plans that this process does not use


def load_plan(description: str, check: Callable[[Plan], None]) -> tuple[Plan, Guards] | None:
    """Return the plan of a cell that was compiled before, and the guards of what its step reads.

    Args:
        description: What the plan depends on.
        check: A function that raises an error if a plan does not fit the cell.

    Returns:
        None if there is no plan, or if a source file that was run to make it, or a value that was read, has changed.
    """
    path = _path(description)
    content = read_cached(path, WHAT)
    if content is None:
        return None
    name = _digest(content)
    if name in _discarded:
        return None
    try:
        data = json.loads(content)
        guards = read_guards(data["guards"])
        if guards is None or any(digest_file(file) != digest for file, digest in data["files"].items()):
            return None
        plan = replace(_decode(data["plan"]), name=name, is_loaded=True)
        check_plan(plan)
        check(plan)
    except Exception as error:  # a file may hold anything
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"the {WHAT} {path} is not valid ({message}); building it again", stacklevel=4)
        return None
    return plan, guards


def save_plan(description: str, plan: Plan, seen: Seen) -> Plan:
    """Store a plan, and return it with the name under which its checks are stored.

    Args:
        description: What the plan depends on.
        plan: The plan.
        seen: What the step ran and read. If a file cannot be read, or a value cannot be described as text, nothing is
            stored.
    """
    files, guards = {file: digest_file(file) for file in sorted(seen.files)}, seen.guards.write()
    if None in files.values() or guards is None:
        return plan
    stored = {"files": files, "guards": guards, "plan": _encode(plan)}
    content = json.dumps(stored, separators=(",", ":")).encode()
    return replace(plan, name=_digest(content)) if write_cached(_path(description), content, WHAT) else plan


def discard_plan(plan: Plan, reason: str) -> None:
    """Stop using a plan that was read from disk; the cell is traced again.

    Args:
        plan: The plan.
        reason: Why, for the warning.
    """
    _discarded.add(plan.name)
    warnings.warn(f"a {WHAT} in {cache_folder('cells')} does not fit ({reason}); building it again", stacklevel=4)


def is_discarded(plan: Plan) -> bool:
    """Return whether `discard_plan` has been called for this plan."""
    return plan.is_loaded and plan.name in _discarded


def load_checks(plan: Plan) -> set[str]:
    """Return the kinds of call in which a stored plan was found to match the loop."""
    content = read_cached(_checks_path(plan), WHAT) if plan.name else None
    return set() if content is None else set(content.decode(errors="replace").splitlines())


def save_check(plan: Plan, kind: str) -> None:
    """Record beside a stored plan that it matches the loop in a kind of call."""
    if plan.name:
        write_cached(_checks_path(plan), "\n".join(sorted({*load_checks(plan), kind})).encode(), WHAT)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _path(description: str) -> Path:
    name = f"{digest_compiler()}\n{description}"
    return cache_folder("cells") / f"{_digest(name.encode())}.plan"


def _checks_path(plan: Plan) -> Path:
    """Return where the checks of a plan are stored; they apply only to a plan with the same content."""
    return cache_folder("cells") / f"{plan.name}.checks"


def _encode(plan: Plan) -> dict[str, Any]:
    return {
        "calls": [[n, c.operator, c.arguments, c.named] for n, c in plan.calls.items()],
        "values": [[n, v.batch, v.sizes, v.is_truth] for n, v in plan.values.items()],
        "inputs": plan.inputs,
        "weights": plan.weights,
        "results": plan.results,
        "after": plan.after,
        "projects": plan.projects,
        "alone": plan.alone,
        "draws": plan.draws,
        "scans": [_encode_scan(scan) for scan in (plan.infer, plan.train, plan.reverse)],
    }


def _decode(data: Mapping[str, Any]) -> Plan:
    infer, train, reverse = (_decode_scan(scan) for scan in data["scans"])
    return Plan(
        {_int(n): OperatorCall(name, tuple(arguments), _pairs(named)) for n, name, arguments, named in data["calls"]},
        {_int(n): Value(_int_or_none(batch), _ints(sizes), _bool(truth)) for n, batch, sizes, truth in data["values"]},
        _numbers(data["inputs"]),
        _numbers(data["weights"]),
        _numbers(data["results"]),
        tuple(_ints(nodes) for nodes in data["after"]),
        infer,
        train,
        reverse,
        _bool(data["projects"]),
        _bool(data["alone"]),
        tuple(
            Draw(kind, tuple(map(float, numbers)), _ints(sizes), _ints(layout), str(line))
            for kind, numbers, sizes, layout, line in data["draws"]
        ),
    )


def _int(value: object) -> int:
    """Return an integer; refuse true and 1.0, which equal 1 in Python."""
    if type(value) is not int:
        raise ValueError(f"{value!r} is not an integer")
    return value


def _bool(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _int_or_none(value: object) -> int | None:
    return None if value is None else _int(value)


def _ints(values: list[object]) -> tuple[int, ...]:
    return tuple(map(_int, values))


def _numbers(values: Mapping[str, object]) -> dict[str, int]:
    return {name: _int(n) for name, n in values.items()}


def _pairs(values: list[list[Any]]) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in values)


def _encode_scan(scan: Scan) -> dict[str, Any]:
    return {
        "buffers": [[b.name, b.place.value, b.size] for b in scan.program.buffers],
        "memory": [[m.kind, m.node, m.index, m.transposed] for m in scan.memory],
        "parts": [_encode_part(part) for part in scan.program.parts],
        "reverse": scan.program.reverse,
    }


def _decode_scan(data: Mapping[str, Any]) -> Scan:
    buffers = tuple(Buffer(name, Place(place), _int(size)) for name, place, size in data["buffers"])
    program = Program(buffers, tuple(_decode_part(part) for part in data["parts"]), _bool(data["reverse"]))
    memory = (
        BufferMemory(kind, _int(node), _int(index), _bool(turned)) for kind, node, index, turned in data["memory"]
    )
    return Scan(program, tuple(memory))


def _encode_part(part: Product | Nest) -> dict[str, Any]:
    if isinstance(part, Product):
        return {"product": [*vars(part).values()]}
    return {
        "sizes": part.sizes,
        "inner": part.inner,
        "body": [[i.operator, i.out, [_encode_argument(a) for a in i.arguments]] for i in part.body],
        "stores": [[_encode_argument(s.to), _encode_argument(s.value)] for s in part.stores],
        "reductions": [[r.operator, _encode_argument(r.to), _encode_argument(r.value)] for r in part.reductions],
    }


def _decode_part(data: Mapping[str, Any]) -> Product | Nest:
    if "product" in data:
        return Product(*_ints(data["product"]))
    body = [
        Instruction(name, _int(out), tuple(map(_decode_argument, arguments))) for name, out, arguments in data["body"]
    ]
    stores = [Store(_decode_access(to), _decode_argument(value)) for to, value in data["stores"]]
    reductions = [Reduction(op, _decode_access(to), _decode_argument(value)) for op, to, value in data["reductions"]]
    return Nest(_ints(data["sizes"]), _int(data["inner"]), tuple(body), tuple(stores), tuple(reductions))


def _encode_argument(a: Argument) -> float | int | list[Any] | dict[str, int]:
    if isinstance(a, Register):
        return {"register": a.index}
    return [a.buffer, a.offset, *a.strides] if isinstance(a, Access) else float(a)


def _decode_argument(a: Any) -> Argument:  # noqa: ANN401  # one of the forms above
    if isinstance(a, dict):
        return Register(_int(a["register"]))
    return _decode_access(a) if isinstance(a, list) else float(a)


def _decode_access(a: list[object]) -> Access:
    buffer, offset, *strides = _ints(a)
    return Access(buffer, offset, tuple(strides))

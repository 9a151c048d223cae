"""Plans on disk, as JSON."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from seqloom.compiler.plan import Call, Memory, Plan, Scan, Value, find_operator
from seqloom.compiler.validity import check_program
from seqloom.compiler.watch import Seen
from seqloom.core.cache import cache_folder, read_cached, write_cached

WHAT = "compiled cell"


def load_plan(description: str) -> tuple[Plan, Guards] | None:
    """Return the plan of a cell that was compiled before, and the guards of what its step reads.

    Args:
        description: What the plan depends on.

    Returns:
        None if there is no plan, or if a source file that was run to make it, or a value that was read, has changed.
    """
    content = read_cached(_path(description), WHAT)
    if content is None:
        return None
    try:
        data = json.loads(content)
        guards = read_guards(data["guards"])
        if guards is None or any(digest_file(file) != digest for file, digest in data["files"].items()):
            return None
        plan = _decode(data["plan"])
        for call in plan.calls.values():
            find_operator(call.operator)
        return replace(plan, name=_name(description)), guards
    except (ValueError, KeyError, TypeError, IndexError) as error:
        warnings.warn(f"a {WHAT} in {cache_folder('cells')} is not valid ({error}); building it again", stacklevel=4)
        return None


def save_plan(description: str, plan: Plan, seen: Seen) -> Plan:
    """Keep a plan, and return it with the name under which it is kept.

    Args:
        description: What the plan depends on.
        plan: The plan.
        seen: What the step ran and read. If a file cannot be read, or no text stands for a value, nothing is kept.
    """
    files, guards = {file: digest_file(file) for file in sorted(seen.files)}, seen.guards.write()
    if None in files.values() or guards is None:
        return plan
    stored = {"files": files, "guards": guards, "plan": _encode(plan)}
    is_written = write_cached(_path(description), json.dumps(stored, separators=(",", ":")).encode(), WHAT)
    return replace(plan, name=_name(description)) if is_written else plan


def load_checks(plan: Plan) -> set[str]:
    """Return the kinds of call in which a stored plan was found to match the loop."""
    content = read_cached(_checks_path(plan), WHAT) if plan.name else None
    return set() if content is None else set(content.decode().splitlines())


def save_check(plan: Plan, kind: str) -> None:
    """Keep beside a stored plan that it matches the loop in a kind of call."""
    if plan.name:
        write_cached(_checks_path(plan), "\n".join(sorted({*load_checks(plan), kind})).encode(), WHAT)


def _name(description: str) -> str:
    return hashlib.sha256(f"{digest_compiler()}\n{description}".encode()).hexdigest()


def _path(description: str) -> Path:
    return cache_folder("cells") / f"{_name(description)}.plan"


def _checks_path(plan: Plan) -> Path:
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
        "scans": [_encode_scan(scan) for scan in (plan.infer, plan.train, plan.reverse)],
    }


def _decode(data: Mapping[str, Any]) -> Plan:
    infer, train, reverse = (_decode_scan(scan) for scan in data["scans"])
    return Plan(
        {n: Call(name, _tuple(arguments), _pairs(named)) for n, name, arguments, named in data["calls"]},
        {n: Value(batch, tuple(sizes), is_truth) for n, batch, sizes, is_truth in data["values"]},
        dict(data["inputs"]),
        dict(data["weights"]),
        dict(data["results"]),
        tuple(tuple(nodes) for nodes in data["after"]),
        infer,
        train,
        reverse,
        data["projects"],
        data["alone"],
    )


def _tuple(values: list[Any]) -> tuple[Any, ...]:
    return tuple(values)


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
    buffers = tuple(Buffer(name, Place(place), size) for name, place, size in data["buffers"])
    program = Program(buffers, tuple(_decode_part(part) for part in data["parts"]), data["reverse"])
    check_program(program)
    if len(data["memory"]) != len(buffers):
        raise ValueError("buffers and their memory differ in number")
    return Scan(program, tuple(Memory(*memory) for memory in data["memory"]))


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
        return Product(*data["product"])
    body = [Instruction(name, out, tuple(map(_decode_argument, arguments))) for name, out, arguments in data["body"]]
    stores = [Store(_decode_access(to), _decode_argument(value)) for to, value in data["stores"]]
    reductions = [Reduction(op, _decode_access(to), _decode_argument(value)) for op, to, value in data["reductions"]]
    return Nest(tuple(data["sizes"]), data["inner"], tuple(body), tuple(stores), tuple(reductions))


def _encode_argument(a: Argument) -> float | int | list[Any] | dict[str, int]:
    if isinstance(a, Register):
        return {"register": a.index}
    return [a.buffer, a.offset, *a.strides] if isinstance(a, Access) else float(a)


def _decode_argument(a: Any) -> Argument:  # noqa: ANN401  # one of the forms above
    if isinstance(a, dict):
        return Register(a["register"])
    return _decode_access(a) if isinstance(a, list) else float(a)


def _decode_access(a: list[int]) -> Access:
    return Access(a[0], a[1], tuple(a[2:]))

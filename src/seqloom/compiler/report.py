"""Format programs as readable text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from seqloom.compiler.draws import Draw
from seqloom.compiler.ir import Access, Argument, Instruction, Nest, Product, Program, Register
from seqloom.compiler.plan import RESHAPES, OperatorCall, Plan, references
from seqloom.core.plurals import count

_COMPARISONS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "and", "or": "or"} | _COMPARISONS
HIDDEN = RESHAPES | {"alias", "clone", "detach", "expand"}  # change shapes or strides, not values
MOST_REPEATED = 20  # maximum length of an expression that is repeated wherever it is used


def summarize(plan: Plan) -> str:
    """Return what was compiled in one phrase: "1 product stage; 4 forward and 9 reverse operators"."""
    stages = plan.train.program.stages
    products = count(stages, "product stage") if stages else "no product with the state"
    forward, back = (_count(scan.program) for scan in (plan.infer, plan.reverse))
    return f"{products}; {count(forward, 'pointwise operator')} forward, {back} in reverse"


def _count(program: Program) -> int:
    return sum(len(part.body) for part in program.parts if isinstance(part, Nest))


def write_calls(plan: Plan) -> str:
    """Return what torch computes before the forward loop, for the rows of all steps: one line per result."""
    titles = {n: name for name, n in plan.inputs.items()} | {n: name for name, n in plan.weights.items()}
    scan, early = plan.train, plan.early()
    needed = [(m.node, b.name) for m, b in zip(scan.memory, scan.program.buffers, strict=True) if m.node in early]
    uses = Counter(n for call in early for n in references(plan.calls[call]))
    lines, wanted = [_write_draw(i, draw) for i, draw in enumerate(plan.draws)], dict(needed)
    for n in early:
        text = _write_call(plan.calls[n], titles)
        if n in wanted or (uses[n] > 1 and len(text) > MOST_REPEATED):
            titles[n] = wanted.get(n, f"t{n}")
            lines += [f"{titles[n]} = {_strip(text)}"] if text != titles[n] else []
        else:
            titles[n] = text
    return "\n".join(lines)


def _write_draw(index: int, draw: Draw) -> str:
    return f"draw_{index} = {draw.kind}({', '.join(f'{number:g}' for number in draw.numbers)})"


def _write_call(call: OperatorCall, titles: Mapping[int, str]) -> str:
    name = call.operator.partition(".")[0]

    def write(a: object) -> str:
        if isinstance(a, dict):
            return titles[a["node"]] if "node" in a else "rows" if "rows" in a else str(a["dtype"])
        return f"[{', '.join(map(write, a))}]" if isinstance(a, (list, tuple)) else f"{a}"

    arguments = [write(a) for a in call.arguments]
    if name in HIDDEN:
        return arguments[0]
    if name in ("mm", "bmm"):
        return f"({arguments[0]} @ {arguments[1]})"
    if name in INFIX and len(arguments) == 2:
        return f"({arguments[0]} {INFIX[name]} {arguments[1]})"
    if name == "permute" and arguments[1] == "[1, 0]":
        return arguments[0].removesuffix(".T") if arguments[0].endswith(".T") else f"{arguments[0]}.T"
    return f"{name}({', '.join([*map(_strip, arguments), *(f'{k}={write(a)}' for k, a in call.named)])})"


def write_program(program: Program) -> str:
    """Return a program as text, one line per product, loop and instruction."""
    lines = []
    for part in program.parts:
        if isinstance(part, Product):
            lines.append(_write_product(part, program))
            continue
        names = _name_loops(part)
        head = ", ".join(f"{name} < {size}" for name, size in zip(names, part.sizes, strict=True))
        lines.append(f"for {head}:" if head else "once:")
        values: dict[int, str] = {}
        counts = _count_uses(part)
        for i in part.body:
            text = _write_instruction(i, program, names, values)
            if counts.get(i.out, 0) == 1 and len(text) < 60:
                values[i.out] = f"({text})" if i.operator in INFIX or i.operator == "neg" else text
                continue
            values[i.out] = f"v{i.out}"
            lines.append(f"    v{i.out} = {text}")
        for store in part.stores:
            value = _strip(_write_argument(store.value, program, names, values))
            lines.append(f"    {_write_argument(store.to, program, names, values)} = {value}")
        for r in part.reductions:
            over = ", ".join(names[len(names) - part.inner :])
            value = _strip(_write_argument(r.value, program, names, values))
            lines.append(f"    {_write_argument(r.to, program, names, values)} = {r.operator} over {over} of {value}")
    return "\n".join(lines)


def _strip(text: str) -> str:
    """Return an expression without the brackets around it."""
    depth = 0
    for i, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:  # the first bracket is closed here
            return text[1:-1] if i == len(text) - 1 and text.startswith("(") else text
    return text


def _write_product(part: Product, program: Program) -> str:
    source, weight, out = (program.buffers[b].name for b in (part.source, part.weight, part.out))
    begin = f"[{part.offset}:]" if part.offset else ""
    heads = f", {part.heads} heads" if part.heads > 1 else ""
    rows = f", {part.rows} rows each" if part.rows > 1 else ""
    return f"{out} = {source}{begin} @ {weight} ({part.K} x {part.N}{heads}{rows})"


def _name_loops(nest: Nest) -> list[str]:
    outer = len(nest.sizes) - nest.inner
    letters = "ijlm"
    return [letters[k] if k < outer <= len(letters) else f"k{k - outer}" for k in range(len(nest.sizes))]


def _count_uses(nest: Nest) -> dict[int, int]:
    counts: dict[int, int] = {}
    values = [a for i in nest.body for a in i.arguments]
    values += [s.value for s in nest.stores] + [r.value for r in nest.reductions]
    for a in values:
        if isinstance(a, Register):
            counts[a.index] = counts.get(a.index, 0) + 1
    return counts


def _write_instruction(i: Instruction, program: Program, names: list[str], values: dict[int, str]) -> str:
    arguments = [_write_argument(a, program, names, values) for a in i.arguments]
    if i.operator in INFIX:
        return f"{arguments[0]} {INFIX[i.operator]} {arguments[1]}"
    if i.operator == "neg":
        return f"-{arguments[0]}"
    return f"{i.operator}({', '.join(_strip(a) for a in arguments)})"


def _write_argument(a: Argument, program: Program, names: list[str], values: dict[int, str]) -> str:
    if isinstance(a, Register):
        return values[a.index]
    if not isinstance(a, Access):
        return f"{a:g}"
    terms = [
        name if stride == 1 else f"{stride} {name}" for name, stride in zip(names, a.strides, strict=True) if stride
    ]
    terms += [str(a.offset)] if a.offset or not terms else []
    buffer = program.buffers[a.buffer]
    return buffer.name if buffer.size == 1 else f"{buffer.name}[{' + '.join(terms)}]"

"""Translate a nest of the compiler's intermediate form into the instructions of the engine's vector machine.

The machine (csrc/nest.hpp) runs every instruction over a block of elements along one dimension, the vector. This module
chooses that dimension, merges neighbouring loops, fuses short chains of instructions, and assigns slots to registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from seqloom.compiler import ir
from seqloom.compiler.ir import REDUCTIONS, Access, Argument, Instruction, Nest, Place, Program, Register

# mul_sub: a b - c, sub_mul: c - a b, add_add: a + b + c
FUSED = (
    *("sigmoid_add", "tanh_add", "mul_sub", "sub_mul", "sigmoid_fma", "tanh_fma"),
    *("add_add", "sigmoid_add_add", "tanh_add_add"),
)
MOVES = ("gather", "scatter")
# As csrc/operators.hpp lists them.
OPERATORS = (
    *ir.OPERATORS,
    *FUSED,
    *MOVES,
    *(f"{name} {part}" for name in REDUCTIONS for part in ("start", "across", "fold", "down")),
)
CODES = {name: code for code, name in enumerate(OPERATORS)}
MOST_LOOPS = 7  # DIMENSIONS of csrc/nest.hpp, less the rows
LANES = 16  # a loop of this many iterations fills the widest vectors
GATHER_COST = 3  # time of a gathered element, relative to a loaded one


def encode_nest(nest: Nest, program: Program, constants: list[float]) -> list[int]:
    """Return the code of a nest.

    Args:
        nest: The nest.
        program: The program that it belongs to.
        constants: The constants that programs use; new ones are appended.

    Raises:
        ValueError: If the nest has more loops than the machine runs.
    """
    if len(nest.sizes) > MOST_LOOPS:
        raise ValueError(f"a nest has {len(nest.sizes)} loops; the CPU engine runs at most {MOST_LOOPS}")
    return _Encoder(_fuse(_merge_loops(nest)), program, constants).encode()


def _merge_loops(nest: Nest) -> Nest:
    """Remove loops of size 1, and merge a loop with the next one if every access is contiguous across both."""
    sizes, inner = list(nest.sizes), nest.inner
    accesses = {a: list(a.strides) for a in [*nest.reads(), *nest.writes()]}
    for k in reversed(range(len(sizes))):
        is_inner = k >= len(sizes) - inner
        follows = k + 1 < len(sizes) and is_inner == (k + 1 >= len(sizes) - inner)
        if sizes[k] == 1:
            drop = k
        elif follows and all(s[k] == s[k + 1] * sizes[k + 1] for s in accesses.values()):
            drop = k
            sizes[k + 1] *= sizes[k]
        else:
            continue
        inner -= is_inner
        del sizes[drop]
        for strides in accesses.values():
            del strides[drop]

    def move(argument: Argument) -> Argument:
        return replace(argument, strides=tuple(accesses[argument])) if isinstance(argument, Access) else argument

    def move_access(access: Access) -> Access:
        return replace(access, strides=tuple(accesses[access]))

    return Nest(
        tuple(sizes),
        inner,
        tuple(replace(i, arguments=tuple(map(move, i.arguments))) for i in nest.body),
        tuple(replace(s, to=move_access(s.to), value=move(s.value)) for s in nest.stores),
        tuple(replace(r, to=move_access(r.to), value=move(r.value)) for r in nest.reductions),
    )


_POWERS = {1.0: "copy", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}  # as torch computes them


def _fuse(nest: Nest) -> Nest:
    """Replace powers with simpler operators, fuse chains whose inner value has no other use, and drop unused values."""
    values = [a for i in nest.body for a in i.arguments]
    values += [s.value for s in nest.stores] + [r.value for r in nest.reductions]
    uses = Counter(a.index for a in values if isinstance(a, Register))
    body: dict[int, Instruction] = {}
    for instruction in nest.body:
        made_of = [
            body[a.index] if isinstance(a, Register) and uses[a.index] == 1 else None for a in instruction.arguments
        ]
        fused, consumed = _fuse_one(_simplify(instruction), made_of)
        for register in consumed:
            del body[register]
        body[fused.out] = fused
    needed = {
        a.index for a in values[len(values) - len(nest.stores) - len(nest.reductions) :] if isinstance(a, Register)
    }
    kept: list[Instruction] = []
    for instruction in reversed(body.values()):
        if instruction.out in needed:
            kept.append(instruction)
            needed |= {a.index for a in instruction.arguments if isinstance(a, Register)}
    return replace(nest, body=tuple(reversed(kept)))


def _simplify(instruction: Instruction) -> Instruction:
    if instruction.operator == "pow" and isinstance(instruction.arguments[1], float | int):
        x, power = instruction.arguments
        if power == 2.0:
            return replace(instruction, operator="mul", arguments=(x, x))
        if power in _POWERS:
            return replace(instruction, operator=_POWERS[power], arguments=(x,))
    return instruction


def _fuse_one(instruction: Instruction, made_of: Sequence[Instruction | None]) -> tuple[Instruction, list[int]]:
    """Return an instruction fused with one that computes an argument, and the registers that this removes.

    Args:
        instruction: The instruction.
        made_of: For each argument the instruction that computes it, if nothing else uses it.
    """
    name, arguments = instruction.operator, instruction.arguments
    for k, source in enumerate(made_of):
        if source is None:
            continue
        fused, parts = None, source.arguments
        if name == "add" and source.operator == "mul":
            fused, parts = "fma", (*parts, arguments[1 - k])
        elif name == "add" and source.operator == "add":
            fused, parts = "add_add", (*parts, arguments[1 - k])
        elif name == "sub" and source.operator == "mul":
            fused, parts = ("sub_mul" if k else "mul_sub"), (*parts, arguments[1 - k])
        elif name in ("sigmoid", "tanh") and source.operator in ("add", "fma", "add_add"):
            fused = f"{name}_{source.operator}"
        if fused is not None:
            return Instruction(fused, instruction.out, parts), [source.out]
    return instruction, []


class _Value(NamedTuple):
    """An operand: its kind, its slot among those of that kind, and whether it is a single value of a row."""

    kind: str  # "register", "single", "sum", "access" or "constant"
    slot: int
    is_single: bool


class _Step(NamedTuple):
    """One instruction of the machine."""

    operator: str
    out: _Value
    operands: tuple[_Value, ...]
    is_single: bool  # whether it computes a single value of a row; for "across": whether the operand is a register


class _Pool:
    """Slots of one kind; one is free again after the last use of its value."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self.size += 1
        return self.size - 1

    def give_back(self, index: int) -> None:
        self._free.append(index)


class _Encoder:
    """Encodes one nest, with its loops merged."""

    def __init__(self, nest: Nest, program: Program, constants: list[float]) -> None:
        self.nest, self.program, self.constants = nest, program, constants
        self.vector = self._choose_vector()
        self.accesses: dict[Access, int] = {}
        self.numbers: dict[str, int] = {}  # slot of a constant, by its text, which distinguishes -0.0 from 0.0
        self.number_places: list[int] = []
        self.pools = {"register": _Pool(), "single": _Pool()}
        self.start: list[_Step] = []
        self.body: list[_Step] = []
        self.finish: list[_Step] = []
        self.values: dict[int, _Value] = {}  # values by register
        self.gathered: dict[Access, _Value] = {}
        self.last_use = self._find_last_uses()

    def _find_last_uses(self) -> dict[Argument, int]:
        """Return for every register and access the last instruction that reads it."""
        end = len(self.nest.body)
        last: dict[Argument, int] = {}
        for k, instruction in enumerate(self.nest.body):
            last |= dict.fromkeys(instruction.arguments, k)
        last |= dict.fromkeys([s.value for s in self.nest.stores], end)
        last |= dict.fromkeys([r.value for r in self.nest.reductions], end)
        return last

    def _choose_vector(self) -> int:
        """Return the dimension along which instructions run: 0 for rows, 1 + k for loop k."""
        loops = range(len(self.nest.sizes))
        if not loops:
            return 0
        accesses = self.nest.reads() + ([] if self.nest.reductions else self.nest.writes())

        def score(k: int) -> tuple[float, int]:
            costs = [1 if a.strides[k] in (0, 1) else GATHER_COST for a in accesses]
            # a reduction along an outer loop needs no folding of lanes
            return min(self.nest.sizes[k], LANES) / max(1, sum(costs)), -k if self.nest.reductions else k

        return 1 + max(loops, key=score)

    def _stride(self, access: Access) -> int:
        """Return the stride of an access along the vector; 2 stands for any that needs a gather."""
        if self.vector:
            return access.strides[self.vector - 1]
        return 0 if self.program.buffers[access.buffer].place is Place.WEIGHT else 2

    def encode(self) -> list[int]:
        targets = self._find_direct_stores()
        for k, instruction in enumerate(self.nest.body):
            operands = [self._read(a, k) for a in instruction.arguments]
            is_single = all(v.is_single for v in operands)
            target = targets.get(instruction.out)
            if target is not None and not is_single:
                out = self._access(target)
            else:
                targets.pop(instruction.out, None)
                kind = "single" if is_single else "register"
                out = _Value(kind, self.pools[kind].take(), is_single)
            self.values[instruction.out] = out
            self._emit(self.body, instruction.operator, out, operands, is_single)
            for argument in set(instruction.arguments):
                self._release(argument, k)
        for store in self.nest.stores:
            if isinstance(store.value, Register) and targets.get(store.value.index) == store.to:
                del targets[store.value.index]
            else:
                self._store(store.to, self._read(store.value, len(self.nest.body)))
        for k, reduction in enumerate(self.nest.reductions):
            self._reduce(reduction, _Value("sum", k, False))
        return self._assemble()

    def _find_direct_stores(self) -> dict[int, Access]:
        """Return for each register the memory to which its instruction can write directly."""
        targets: dict[int, Access] = {}
        for store in self.nest.stores:
            if isinstance(store.value, Register) and self._stride(store.to) == 1 and all(store.to.strides):
                targets.setdefault(store.value.index, store.to)
        return targets

    def _access(self, access: Access) -> _Value:
        index = self.accesses.setdefault(access, len(self.accesses))
        return _Value("access", index, self._stride(access) == 0)

    def _read(self, argument: Argument, k: int) -> _Value:
        """Return the operand for an argument of instruction k, gathered into a register if necessary."""
        if isinstance(argument, Register):
            return self.values[argument.index]
        if not isinstance(argument, Access):
            text = repr(float(argument))
            if text not in self.numbers:
                self.numbers[text] = len(self.numbers)
                self.number_places.append(len(self.constants))
                self.constants.append(float(argument))
            return _Value("constant", self.numbers[text], True)
        value = self._access(argument)
        if self._stride(argument) in (0, 1):
            return value
        if argument not in self.gathered:
            register = _Value("register", self.pools["register"].take(), False)
            self._emit(self.body, "gather", register, [value])
            self.gathered[argument] = register
        return self.gathered[argument]

    def _release(self, argument: Argument, k: int) -> None:
        """Free the slot of an argument that instruction k was the last to read."""
        value = None
        if self.last_use.get(argument) == k:
            if isinstance(argument, Register):
                value = self.values[argument.index]
            elif isinstance(argument, Access):
                value = self.gathered.pop(argument, None)
        if value is not None and value.kind in self.pools:
            self.pools[value.kind].give_back(value.slot)

    def _store(self, to: Access, value: _Value, into: list[_Step] | None = None) -> None:
        steps = self.body if into is None else into
        target, stride = self._access(to), self._stride(to)
        if stride == 1:
            self._emit(steps, "copy", target, [value])
        elif stride == 0 and value.is_single:
            self._emit(steps, "copy", target, [value], True)
        else:
            self._emit(steps, "scatter", target, [self._widen(value)])

    def _widen(self, value: _Value) -> _Value:
        """Return a value as a full register."""
        if not value.is_single:
            return value
        register = _Value("register", self.pools["register"].take(), False)
        self._emit(self.body, "copy", register, [value])
        return register

    def _reduce(self, reduction: ir.Reduction, total: _Value) -> None:
        name = reduction.operator
        across = self.vector > len(self.nest.sizes) - self.nest.inner
        value = self._widen(self._read(reduction.value, len(self.nest.body)))
        self._emit(self.start, f"{name} start", total, [], across)
        self._emit(self.body, f"{name} {'across' if across else 'down'}", total, [value], value.kind == "register")
        if across:
            self._emit(self.finish, f"{name} fold", self._access(reduction.to), [total])
        else:
            self._store(reduction.to, total, self.finish)

    @staticmethod
    def _emit(steps: list[_Step], operator: str, out: _Value, operands: Sequence[_Value], single: bool = False) -> None:
        steps.append(_Step(operator, out, tuple(operands), single))

    def _assemble(self) -> list[int]:
        nest, sums = self.nest, len(self.nest.reductions)
        registers, singles = self.pools["register"].size, self.pools["single"].size
        first = {"register": 0, "single": registers, "sum": registers + singles}
        first["access"] = first["sum"] + sums
        first["constant"] = first["access"] + len(self.accesses)
        code = [len(nest.sizes), *nest.sizes, nest.inner, self.vector, registers, singles, sums]
        code += [len(self.accesses), len(self.number_places)]
        for access in self.accesses:
            code += [access.buffer, access.offset, *access.strides]
        code += self.number_places
        for steps in (self.start, self.body, self.finish):
            code.append(len(steps))
            for operator, out, operands, single in steps:
                scalars = 0 if single else sum(v.is_single << k for k, v in enumerate(operands))
                slots = [first[v.kind] + v.slot for v in operands]
                code += [CODES[operator], scalars, int(single), first[out.kind] + out.slot]
                code += [*slots, 0, 0, 0][:3]
        return code

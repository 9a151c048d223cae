"""A program without products as one kernel over time in which a thread needs only what it wrote itself.

Rows and units are spread over all blocks, states stay in registers, and inputs of several steps are loaded in advance.
"""

from __future__ import annotations

import math

from seqloom.compiler.cuda_writer import PLACES, PRELUDE, CudaWriter, is_same, overlap, write_index
from seqloom.compiler.ir import Access, Place
from seqloom.compiler.staging import Staged

FLAT_THREADS = 128  # threads per block
FLAT_REGISTERS = 48  # registers for values that a thread loads in advance
DEEPEST = 8  # steps whose inputs are loaded in advance

_OTHER_SIDE = {Place.BEFORE: Place.AFTER, Place.AFTER: Place.BEFORE}


class FlatScan(CudaWriter):
    """Write a kernel that runs all steps of a program in which a thread needs only what it wrote itself."""

    def __init__(self, staged: Staged, type_: str) -> None:
        super().__init__(staged, type_)
        self.nests = staged.segments[0].nests

    @property
    def units(self) -> int:
        return math.prod(self.nests[0].sizes)

    def is_possible(self) -> bool:
        if not self.nests or any(n.inner or n.sizes != self.nests[0].sizes for n in self.nests):
            return False
        if any(self.staged.is_own(number) for number in range(len(self.staged.buffers))):
            return False  # values within a step have no buffer here
        memory = self.staged.memory
        reads = [a for n in self.nests for a in n.reads()]
        writes = [a for n in self.nests for a in n.writes()]
        return not any(
            memory[w.buffer] == memory[a.buffer] and not is_same(w, a) and overlap(w, a, self.nests[0])
            for w in writes
            for a in (*reads, *writes)
        )

    def write(self) -> str:
        nest = self.nests[0]
        self._sort_reads()
        self.lines = [PRELUDE.format(type=self.type, threads=FLAT_THREADS, rows=1).rstrip()]
        self.emit(0, "constexpr int SCAN_BYTES = 0;")
        self.emit(0, "KERNEL(scan, StepArguments, THREADS) {")
        self.emit(1, "const Head h = read_head(a.table);")
        self.emit(1, "const i64 at = (i64)block() * THREADS + thread();")
        self.emit(1, f"const i64 row = at / {self.units};")
        self.emit(1, "if (row >= h.B) return;")
        self.emit(1, f"const int i = (int)(at % {self.units});")
        self.emit_variables(1, nest.sizes, 0, "i")
        self.emit(1, "const i64 steps = count_steps(h, row);")
        self.emit(1, "if (!steps) return;")
        for number in range(len(self.staged.buffers)):
            kind = "Real" if number in self.wide else "Number"
            self.emit(1, f"{kind}* const b{number} = read_address<{kind}>(a.table, {number});")
        self.emit(1, f"Rows rows = find_rows(h, {'steps - 1' if self.staged.reverse else '0'}, row);")
        for a, name in self.fixed.items():
            self.emit(1, f"const Real {name} = load({self._place(a)});")
        for a, name in self.carried.items():
            self.emit(1, f"Real {name} = load_written({self._place(a)});")
        self._emit_loop()
        self.emit(0, "}")
        return "\n".join(self.lines) + "\n"

    def _sort_reads(self) -> None:
        """Decide what is loaded once, what stays in a register from step to step, and what is prefetched."""
        self.fixed: dict[Access, str] = {}
        self.carried: dict[Access, str] = {}
        self.early: dict[Access, str] = {}
        for a in dict.fromkeys(a for n in self.nests for a in n.reads()):
            place = self.staged.buffers[a.buffer].place
            if not self.is_written(a):
                names = self.fixed if place in (Place.WEIGHT, Place.ROW) else self.early
                names[a] = f"{'f' if names is self.fixed else 'p'}{len(names)}"
            elif self._carries(a):
                self.carried[a] = f"c{len(self.carried)}"

    def _carries(self, a: Access) -> bool:
        return any(self._is_next(a, s.to) for n in self.nests for s in n.stores)

    def _is_next(self, a: Access, to: Access) -> bool:
        """Return whether the next step reads through access `a` what this step writes through access `to`."""
        buffers, memory = self.staged.buffers, self.staged.memory
        sides = _OTHER_SIDE.get(buffers[a.buffer].place) is buffers[to.buffer].place
        return sides and memory[a.buffer] == memory[to.buffer] and is_same(a, to)

    def _place(self, a: Access) -> str:
        buffer = self.staged.buffers[a.buffer]
        begin = "" if buffer.place is Place.WEIGHT else f" + rows.{PLACES[buffer.place]} * {buffer.size}"
        return f"b{a.buffer}{begin} + ({write_index(a, self.nests[0])})"

    def _emit_loop(self) -> None:
        depth = max(1, min(DEEPEST, FLAT_REGISTERS // max(1, len(self.early))))
        t = "steps - 1 - first - d" if self.staged.reverse else "first + d"
        self.emit(1, f"for (i64 first = 0; first < steps; first += {depth}) {{")
        for name in self.early.values():
            self.emit(2, f"Number {name}[{depth}];")
        for what in (self._emit_early, self._emit_step):
            self.emit(0, "#pragma unroll")
            self.emit(2, f"for (int d = 0; d < {depth}; d++) {{")
            self.emit(3, "if (first + d >= steps) continue;")
            self.emit(3, f"rows = find_rows(h, {t}, row);")
            what()
            self.emit(2, "}")
        self.emit(1, "}")

    def _emit_early(self) -> None:
        for a, name in self.early.items():
            self.emit(3, f"{name}[d] = get_constant({self._place(a)});")

    def _emit_step(self) -> None:
        later = []
        for k, nest in enumerate(self.nests):
            self.emit(3, "{")
            text = self.emit_body(4, nest, self._load)
            values = [text(s.value) for s in nest.stores]
            for s, value in zip(nest.stores, values, strict=True):
                self.emit(4, f"{self.name_store(s.to)}({self._place(s.to)}, {value});")
                for a, name in self.carried.items():
                    if self._is_next(a, s.to):
                        if k == len(self.nests) - 1:
                            self.emit(4, f"{name} = round_to_type({value});")
                        else:
                            later.append((name, self._place(s.to)))
            self.emit(3, "}")
        for name, place in later:
            self.emit(3, f"{name} = load_written({place});")

    def _load(self, a: Access) -> str:
        if a in self.fixed:
            return self.fixed[a]
        if a in self.early:
            return f"widen<TYPE>({self.early[a]}[d])"
        return self.carried.get(a) or f"{self.name_load(a)}({self._place(a)})"

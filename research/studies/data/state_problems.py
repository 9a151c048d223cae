"""State tracking: symbols that change a hidden state, with a label after every symbol.

A batch is drawn on the device of its generator without host synchronisation, so that a training step that draws it can
be a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import torch
from torch import Tensor

from research.studies.data.automaton import Automaton
from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.task import IGNORE

MOD = 5
OPERATIONS = ("keep", "load", "add", "multiply")  # operations of the register
OPERATION_SHARES = (0.25, 0.05, 0.35, 0.35)

Draw = Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]  # generator, rows, steps -> x and y (rows, steps)


@dataclass(frozen=True)
class StateProblem:
    """A state-tracking problem; y is IGNORE where nothing is asked."""

    name: str
    symbols: int
    classes: int
    chance: float  # accuracy of the most frequent label
    draw: Draw
    about: str  # one line for tables


def list_state_problems() -> list[str]:
    """Return the names of all state-tracking problems."""
    return list(_PROBLEMS)


@cache
def make_state_problem(name: str) -> StateProblem:
    """Return the problem with this name.

    Raises:
        UserError: If there is none.

    Example:
        >>> parity = make_state_problem("parity")
        >>> x, y = parity.draw(torch.Generator().manual_seed(0), 128, 40)
        >>> bool((y == x.cumsum(1) % 2).all())
        True
    """
    if name not in _PROBLEMS:
        hint = suggest(name, _PROBLEMS) or f"choose one of {', '.join(_PROBLEMS)}"
        raise UserError(f"there is no state-tracking problem {name!r}; {hint}")
    return _PROBLEMS[name](name)


def _track(
    name: str,
    maps: Sequence[Sequence[int]],
    about: str,
    labels: Sequence[int] | None = None,
    shares: Sequence[float] | None = None,
    first: int = 0,
) -> StateProblem:
    """Return the problem of naming the state of an automaton; symbols have these probabilities, or equal ones.

    If `first` is not 0, the first symbol of a sequence is one of the first `first` symbols.
    """
    automaton, symbols = Automaton(maps, labels), len(maps)
    equal = [1 / symbols] * symbols

    def draw(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
        if shares is None:
            x = torch.randint(symbols, (rows, steps), generator=random, device=random.device)
        else:
            x = _draw_unequal(shares, random, rows, steps)
        if first:
            x[:, 0] %= first
        return x, automaton.read(x)

    classes = int(automaton.labels.max()) + 1
    return StateProblem(name, symbols, classes, automaton.most_frequent(shares or equal), draw, about)


def _draw_unequal(shares: Sequence[float], random: torch.Generator, rows: int, steps: int) -> Tensor:
    """Draw symbols with these probabilities."""
    u = torch.rand(rows, steps, generator=random, device=random.device)
    x = torch.zeros(rows, steps, dtype=torch.long, device=random.device)
    total = 0.0
    for share in shares[:-1]:
        total += share
        x += u >= total
    return x


def _parity(name: str) -> StateProblem:
    return _track(name, [[0, 1], [1, 0]], "sum of bits modulo 2")


def _addition(name: str) -> StateProblem:
    maps = [[(s + d) % MOD for s in range(MOD)] for d in range(MOD)]
    return _track(name, maps, "sum of digits modulo 5")


def _cycle(name: str) -> StateProblem:
    maps = [[(s + d) % MOD for s in range(MOD)] for d in (-1, 0, 1)]
    return _track(name, maps, "place on a ring of 5 after steps of -1, 0 and 1")


def _even_pairs(name: str) -> StateProblem:
    """State 0: nothing read; 1 + 2 first + last otherwise."""
    maps = [[1 + 3 * b, *(1 + 2 * first + b for first in range(2) for _ in range(2))] for b in range(2)]
    return _track(name, maps, "whether the first symbol equals the last", labels=[1, 1, 0, 0, 1])


def _compose(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation a after b."""
    return tuple(a[i] for i in b)


def _is_even(p: Sequence[int]) -> bool:
    return sum(p[i] > p[j] for j in range(len(p)) for i in range(j)) % 2 == 0


def _group(name: str, points: int, even: bool = False, drawn: str = "all") -> StateProblem:
    """Return the word problem y_t = x_t ... x_1 of permutations, in lexicographic order; the first is the identity.

    `drawn` defines the symbols: "all" permutations, "swaps" of neighbours and the identity, or two "generators", a swap
    and the cycle of all points, which generate every permutation.
    """
    elements = [p for p in permutations(range(points)) if _is_even(p) or not even]
    number = {p: i for i, p in enumerate(elements)}
    moves = {
        "all": elements,
        "swaps": [_swap(points, i) for i in range(points)],
        "generators": [_swap(points, 1), (*range(1, points), 0)],
    }[drawn]
    maps = [[number[_compose(move, state)] for state in elements] for move in moves]
    kind = "even permutations" if even else "permutations"
    symbols = {
        "all": f"all {len(moves)}",
        "swaps": "neighbouring swaps and the identity",
        "generators": "one swap and the cycle of all points",
    }[drawn]
    return _track(name, maps, f"product of {kind} of {points} points ({symbols})")


def _swap(points: int, i: int) -> tuple[int, ...]:
    """Return the permutation that swaps i - 1 and i; the identity for i = 0."""
    order = list(range(points))
    if i:
        order[i - 1], order[i] = order[i], order[i - 1]
    return tuple(order)


def _register(name: str) -> StateProblem:
    """Symbol 5 operation + digit."""

    def apply(operation: str, s: int, d: int) -> int:
        return {"keep": s, "load": d, "add": (s + d) % MOD, "multiply": s * d % MOD}[operation]

    maps = [[apply(operation, s, d) for s in range(MOD)] for operation in OPERATIONS for d in range(MOD)]
    shares = [share / MOD for share in OPERATION_SHARES for _ in range(MOD)]
    return _track(name, maps, "a register modulo 5: keep, load, add, multiply", shares=shares)


def _flip_flop(name: str, ignored: float) -> StateProblem:
    """Symbols: write 0, write 1, ignore 0, ignore 1; the first one writes."""
    write = (1 - ignored) / 2
    shares = [write, write, ignored / 2, ignored / 2]
    about = f"the last bit written; {ignored:.0%} of the symbols are to be ignored"
    return _track(name, [[0, 0], [1, 1], [0, 1], [0, 1]], about, shares=shares, first=2)


def _arithmetic(name: str) -> StateProblem:
    """Return arithmetic modulo 5: digits and operators in turn; the target is the value so far, products first.

    The value is s + p, where p is the product that may still grow: "+ d" maps (s, p) to (s + p, d).
    """

    def apply(operation: int, s: int, p: int, d: int) -> int:
        s, p = (s, p * d % MOD) if operation == 2 else ((s + p) % MOD, (d if operation == 0 else -d) % MOD)
        return MOD * s + p

    pairs = list(product(range(3), range(MOD)))
    maps = [[apply(o, s, p, d) for s in range(MOD) for p in range(MOD)] for o, d in pairs]
    automaton = Automaton(maps, [(s + p) % MOD for s in range(MOD) for p in range(MOD)])

    def draw(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
        terms = (steps + 1) // 2
        digits = torch.randint(MOD, (rows, terms), generator=random, device=random.device)
        operations = torch.randint(3, (rows, terms), generator=random, device=random.device)
        operations[:, 0] = 0
        values = automaton.read(MOD * operations + digits)
        x = torch.stack([MOD + operations, digits], -1).flatten(1)[:, 1 : steps + 1]
        y = torch.stack([torch.full_like(values, IGNORE), values], -1).flatten(1)[:, 1 : steps + 1]
        return x.contiguous(), y.contiguous()

    chance = automaton.most_frequent([1 / len(pairs)] * len(pairs))
    return StateProblem(name, MOD + 3, MOD, chance, draw, "digits, + - * and their value modulo 5, products first")


def _keyed_flip_flop(name: str, slots: int) -> StateProblem:
    """Symbols: write bit b to slot k (2 k + b), read slot k (2 slots + k), ignore (3 slots)."""

    def draw(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
        shape, at = (rows, steps), random.device
        slot = torch.randint(slots, shape, generator=random, device=at)
        bit = torch.randint(2, shape, generator=random, device=at)
        kind = torch.randint(4, shape, generator=random, device=at)  # 0: write, 1: read, otherwise ignore
        x = torch.where(kind == 0, 2 * slot + bit, torch.where(kind == 1, 2 * slots + slot, 3 * slots))
        time = torch.arange(1, steps + 1, device=at).view(1, -1, 1)
        writes = (kind == 0).unsqueeze(-1) & (slot.unsqueeze(-1) == torch.arange(slots, device=at))
        last = torch.where(writes, time, 0).cummax(1).values  # (B, T, slots), 0: never written
        when = last.gather(2, slot.unsqueeze(-1)).squeeze(-1)
        stored = bit.gather(1, (when - 1).clamp(min=0))
        return x, torch.where((kind == 1) & (when > 0), stored, IGNORE)

    about = f"the last bit written to one of {slots} slots, asked when it is read after a write"
    return StateProblem(name, 3 * slots + 1, 2, 0.5, draw, about)


def _dyck(name: str, depth: int) -> StateProblem:
    """Symbols: ( [ ) ]. Label: the bracket that may close now: 0 none, 1 round, 2 square.

    The depth is a random walk that turns round at 0 and at the largest depth.
    """
    up = [d + 1 if d < depth else d - 1 for d in range(depth + 1)]
    down = [d - 1 if d else 1 for d in range(depth + 1)]
    walk = Automaton([up, down])

    def draw(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
        shape, at = (rows, steps), random.device
        after = walk.read(torch.randint(2, shape, generator=random, device=at))
        before = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], 1)
        kind = torch.randint(2, shape, generator=random, device=at)  # kind of an opening bracket
        opens, time = after > before, torch.arange(1, steps + 1, device=at)
        levels = torch.arange(1, depth + 1, device=at)
        opened = opens.unsqueeze(-1) & (after.unsqueeze(-1) == levels)
        when = torch.where(opened, time.view(1, -1, 1), 0).cummax(1).values  # (B, T, levels): the latest opening

        def find_kind(level: Tensor) -> Tensor:
            latest = when.gather(2, (level - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            return kind.gather(1, (latest - 1).clamp(min=0))

        x = torch.where(opens, kind, 2 + find_kind(before))
        return x, torch.where(after > 0, 1 + find_kind(after), 0)

    # half of the walk's steps are at even depths; the ends are visited half as often as the inner depths
    none = 1 / (2 * depth)
    return StateProblem(name, 4, 3, max(none, (1 - none) / 2), draw, f"the bracket that may close now, depth {depth}")


def _recall(name: str, pairs: int) -> StateProblem:
    """Multi-query associative recall: pairs of key and value, then keys, each asking for its value.

    Symbols: 2 pairs keys, of which `pairs` occur, then 2 pairs values. Arora et al. 2024, arXiv 2312.04927.
    """
    kinds = 2 * pairs

    def draw(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
        at = random.device
        keys = torch.rand(rows, kinds, generator=random, device=at).argsort(1)[:, :pairs]
        values = torch.randint(kinds, (rows, pairs), generator=random, device=at)
        told = torch.stack([keys, kinds + values], -1).flatten(1)
        asked = torch.randint(pairs, (rows, max(0, steps - kinds)), generator=random, device=at)
        x = torch.cat([told, keys.gather(1, asked)], 1)[:, :steps]
        y = torch.cat([torch.full_like(told, IGNORE), values.gather(1, asked)], 1)[:, :steps]
        return x.contiguous(), y.contiguous()

    about = f"the value of a key, {pairs} pairs"
    return StateProblem(name, 2 * kinds, kinds, 1 / kinds, draw, about)


_PROBLEMS: dict[str, Callable[[str], StateProblem]] = {
    "parity": _parity,
    "mod 5": _addition,
    "cycle": _cycle,
    "even pairs": _even_pairs,
    "arithmetic": _arithmetic,
    "S3": lambda name: _group(name, 3),
    "A5": lambda name: _group(name, 5, even=True),
    "S5": lambda name: _group(name, 5),
    "S5 swaps": lambda name: _group(name, 5, drawn="swaps"),
    "S5 generators": lambda name: _group(name, 5, drawn="generators"),
    "register": _register,
    "flip-flop 0.8": lambda name: _flip_flop(name, 0.8),
    "flip-flop 0.98": lambda name: _flip_flop(name, 0.98),
    "keyed 4": lambda name: _keyed_flip_flop(name, 4),
    "keyed 8": lambda name: _keyed_flip_flop(name, 8),
    "keyed 16": lambda name: _keyed_flip_flop(name, 16),
    "Dyck-2 depth 4": lambda name: _dyck(name, 4),
    "Dyck-2 depth 8": lambda name: _dyck(name, 8),
    "recall": lambda name: _recall(name, 8),
    "recall 32": lambda name: _recall(name, 32),
}

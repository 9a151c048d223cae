from itertools import permutations
from operator import ne

import pytest
import torch

from research.studies.data.automaton import Automaton
from research.studies.data.state_problems import MOD, OPERATIONS, list_state_problems, make_state_problem
from seqloom.lab.data.task import IGNORE

EVEN = [p for p in permutations(range(5)) if sum(p[i] > p[j] for j in range(5) for i in range(j)) % 2 == 0]


def track(step, state):
    """Return a function from a sequence to the state after every symbol."""

    def run(xs):
        now, states = state, []
        for x in xs:
            now = step(now, x)
            states.append(now)
        return states

    return run


def multiply(elements, moves=None):
    def run(xs):
        now, states = tuple(range(len(elements[0]))), []
        for x in xs:
            now = tuple((moves or elements)[x][i] for i in now)
            states.append(elements.index(now))
        return states

    return run


def use_register(now, x):
    operation, d = OPERATIONS[x // MOD], x % MOD
    return {"keep": now, "load": d, "add": (now + d) % MOD, "multiply": now * d % MOD}[operation]


def evaluate(xs):
    labels, text = [], ""
    for x in xs:
        text += str(x) if x < MOD else "+-*"[x - MOD]
        labels.append(eval(text) % MOD if x < MOD else IGNORE)
    return labels


def look_up(slots):
    def run(xs):
        stored, labels = [IGNORE] * slots, []
        for x in xs:
            if x < 2 * slots:
                stored[x // 2] = x % 2
            labels.append(stored[x - 2 * slots] if 2 * slots <= x < 3 * slots else IGNORE)
        return labels

    return run


def close(depth):
    def run(xs):
        stack, labels = [], []
        for x in xs:
            if x < 2:
                stack.append(x)
            else:
                assert stack.pop() == x - 2, "a bracket closes another kind"
            assert len(stack) <= depth
            labels.append(1 + stack[-1] if stack else 0)
        return labels

    return run


def recall(pairs):
    def answer(xs):
        end = 2 * pairs
        told = dict(zip(xs[:end:2], xs[1:end:2], strict=True))
        return [IGNORE] * end + [told[x] - end for x in xs[end:]]

    return answer


SWAPS = [(0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (0, 2, 1, 3, 4), (0, 1, 3, 2, 4), (0, 1, 2, 4, 3)]
GENERATORS = [(1, 0, 2, 3, 4), (1, 2, 3, 4, 0)]
DEFINITIONS = {
    "parity": lambda xs: [sum(xs[: t + 1]) % 2 for t in range(len(xs))],
    "mod 5": lambda xs: [sum(xs[: t + 1]) % 5 for t in range(len(xs))],
    "cycle": lambda xs: [sum(x - 1 for x in xs[: t + 1]) % 5 for t in range(len(xs))],
    "even pairs": lambda xs: [int(sum(map(ne, xs[:t], xs[1 : t + 1])) % 2 == 0) for t in range(len(xs))],
    "arithmetic": evaluate,
    "S3": multiply(list(permutations(range(3)))),
    "A5": multiply(EVEN),
    "S5": multiply(list(permutations(range(5)))),
    "S5 swaps": multiply(list(permutations(range(5))), SWAPS),
    "S5 generators": multiply(list(permutations(range(5))), GENERATORS),
    "register": track(use_register, 0),
    "flip-flop 0.8": track(lambda now, x: x if x < 2 else now, 0),
    "flip-flop 0.98": track(lambda now, x: x if x < 2 else now, 0),
    "keyed 4": look_up(4),
    "keyed 8": look_up(8),
    "keyed 16": look_up(16),
    "Dyck-2 depth 4": close(4),
    "Dyck-2 depth 8": close(8),
    "recall": recall(8),
    "recall 32": recall(32),
}


def test_every_problem_has_a_definition_here():
    assert list(DEFINITIONS) == list_state_problems()


@pytest.mark.parametrize("name", DEFINITIONS)
def test_labels_follow_the_definition_of_the_problem(name):
    problem = make_state_problem(name)
    x, y = problem.draw(torch.Generator().manual_seed(1), 12, 97)
    assert x.shape == y.shape == (12, 97)
    assert int(x.min()) >= 0 and int(x.max()) < problem.symbols and int(y.max()) < problem.classes
    for xs, ys in zip(x.tolist(), y.tolist(), strict=True):
        assert ys == DEFINITIONS[name](xs)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_chance_is_the_share_of_the_most_frequent_label(name):
    problem = make_state_problem(name)
    _, y = problem.draw(torch.Generator().manual_seed(2), 3_000, 120)
    late = y[:, -15:]
    shares = torch.bincount(late[late != IGNORE], minlength=problem.classes) / (late != IGNORE).sum()
    assert float(shares.max()) == pytest.approx(problem.chance, abs=0.03)


def test_symbols_have_the_shares_of_the_problem():
    x, _ = make_state_problem("flip-flop 0.98").draw(torch.Generator().manual_seed(3), 500, 100)
    assert bool((x[:, 0] < 2).all())
    assert (x[:, 1:] < 2).float().mean().item() == pytest.approx(0.02, abs=0.003)
    x, _ = make_state_problem("register").draw(torch.Generator().manual_seed(3), 500, 100)
    assert (torch.bincount(x.flatten() // MOD) / x.numel()).tolist() == pytest.approx(
        [0.25, 0.05, 0.35, 0.35], abs=0.01
    )


def test_an_automaton_knows_only_the_maps_that_words_make():
    assert Automaton([[0, 1], [1, 0]]).words == 2
    assert Automaton([[0, 0], [1, 1], [0, 1]]).words == 3
    assert Automaton([[1, 2, 0], [1, 0, 2]]).words == 6  # a rotation and a swap generate S3


def test_an_unknown_problem_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match="no state-tracking problem 'party'; did you mean 'parity'"):
        make_state_problem("party")

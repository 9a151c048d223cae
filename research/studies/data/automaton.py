"""Finite automata that read whole batches of symbols at once, by composing state maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Automaton:
    """A deterministic automaton: every symbol maps each state to the next state.

    Maps compose associatively, so all prefixes of a sequence take about log2(T) table lookups (Hillis and Steele 1986)
    instead of T steps. The table holds every map that a word can produce, the transition monoid: 60 maps for A5, 25 for
    a register modulo 5.

    Args:
        maps: maps[symbol][state] is the next state.
        labels: The label of each state. Default: its number.
        start: The state before the first symbol.

    Example:
        >>> parity = Automaton([[0, 1], [1, 0]])
        >>> parity.read(torch.tensor([[1, 1, 0, 1]]))
        tensor([[1, 0, 0, 1]])
    """

    def __init__(self, maps: Sequence[Sequence[int]], labels: Sequence[int] | None = None, start: int = 0) -> None:
        self.maps, self.start = torch.tensor(maps), start
        self.labels = torch.arange(self.maps.shape[1]) if labels is None else torch.tensor(labels)
        elements, keys = self._find_words()
        order = keys.argsort()
        table = [order[torch.searchsorted(keys[order], self._key(one[elements]))] for one in elements]
        symbols = order[torch.searchsorted(keys[order], self._key(self.maps))]
        results = self.labels[elements[:, start]]
        self._tables = {torch.device("cpu"): (symbols, torch.stack(table), results)}  # the product a after b at [a, b]

    @property
    def words(self) -> int:
        """The number of different maps that words produce."""
        return len(self._tables[torch.device("cpu")][2])

    def _key(self, maps: Tensor) -> Tensor:
        """Return a hash of each map (..., states); different maps have equal hashes with probability 1e-13."""
        random = torch.Generator().manual_seed(0)
        weights = torch.randint(-(2**62), 2**62, (self.maps.shape[1],), generator=random)
        return (maps * weights).sum(-1)  # modulo 2^64

    def _find_words(self) -> tuple[Tensor, Tensor]:
        """Return all maps that words of symbols produce, the empty word first, and their keys."""
        elements = torch.arange(self.maps.shape[1]).unsqueeze(0)
        keys, new = self._key(elements), elements
        while len(new):
            longer = torch.cat([one[new] for one in self.maps])
            found = self._key(longer)
            _, first = _unique(found)
            first = first[~torch.isin(found[first], keys)]
            new = longer[first]
            elements, keys = torch.cat([elements, new]), torch.cat([keys, found[first]])
        return elements, keys

    def read(self, x: Tensor) -> Tensor:
        """Return the label after every symbol: (B, T) -> (B, T), on the device of x and without synchronising."""
        if x.device not in self._tables:
            cpu = self._tables[torch.device("cpu")]
            self._tables[x.device] = (cpu[0].to(x.device), cpu[1].to(x.device), cpu[2].to(x.device))
        symbols, table, results = self._tables[x.device]
        words, ahead = symbols[x], 1
        while ahead < x.shape[1]:
            longer = table[words[:, ahead:], words[:, :-ahead]]
            words, ahead = torch.cat([words[:, :ahead], longer], 1), 2 * ahead
        return results[words]

    def most_frequent(self, shares: Sequence[float], steps: int = 1_000) -> float:
        """Return the share of the most frequent label after many symbols that are drawn with these probabilities."""
        states = self.maps.shape[1]
        step = torch.zeros(states, states, dtype=torch.float64)
        for share, one in zip(shares, self.maps, strict=True):
            step[torch.arange(states), one] += share
        at = torch.linalg.matrix_power(step, steps)[self.start]
        return float(torch.zeros(int(self.labels.max()) + 1, dtype=torch.float64).index_add_(0, self.labels, at).max())


def _unique(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct keys and the index of the first occurrence of each."""
    values, inverse = torch.unique(keys, return_inverse=True)
    first = torch.full((len(values),), len(keys)).scatter_reduce_(0, inverse, torch.arange(len(keys)), "amin")
    return values, first

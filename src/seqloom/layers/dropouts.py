"""The dropouts of a recurrent layer that torch.nn does not have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError
from seqloom.core.weights import weights


@dataclass(frozen=True)
class Dropouts:
    """Noise inside a recurrent layer; all of it is drawn from torch's seeded generator.

    recurrent: one mask a sequence on h where it enters a product (Gal & Ghahramani 2016, arXiv 1512.05287).
    zoneout: the chance that a unit keeps its old value at a step, its mean in eval mode
    (Krueger et al. 2017, arXiv 1606.01305); a pair for cells with several states, such as (h, c).
    weight: on the recurrent matrices, one draw a call (Merity et al. 2018, arXiv 1708.02182).
    """

    recurrent: float = 0.0
    zoneout: float | tuple[float, ...] = 0.0
    weight: float = 0.0

    def __post_init__(self) -> None:
        rates = self.zoneout if isinstance(self.zoneout, tuple) else (self.zoneout,)
        for name, value in (("recurrent", self.recurrent), ("weight", self.weight), *(("zoneout", r) for r in rates)):
            if not 0 <= value <= 1:
                raise UserError(f"Dropouts.{name} must be between 0 and 1, got {value}")

    def check(self, cell: Cell) -> None:
        """Say at once what this cell cannot do."""
        name = cell.name or type(cell).__name__
        if self.recurrent and "mask" not in cell.takes:
            raise UserError(f"Dropouts.recurrent={self.recurrent}, but the step of cell {name!r} takes no `mask`")
        if self.weight and not recurrent_weights(cell):
            raise UserError(f"Dropouts.weight={self.weight}, but cell {name!r} has no recurrent matrix to drop from")

    def mask(self, cell: Cell, x: Tensor, training: bool) -> Tensor | None:
        """Recurrent dropout for one scan: (B, H)."""
        if not (self.recurrent and training):
            return None
        return F.dropout(x.new_ones(x.shape[0], cell.output_size), self.recurrent)

    def keep(self, x: Tensor, state: State, training: bool) -> tuple[Tensor, ...]:
        """Zoneout for one scan: for each state (B, T, ...), the share that stays."""
        rates = self.zoneout if isinstance(self.zoneout, tuple) else (self.zoneout,) * len(state)
        if not any(rates):
            return ()
        if len(rates) != len(state):
            raise UserError(f"Dropouts.zoneout has {len(rates)} rates, but the state has {len(state)} tensors")
        kept = []
        for rate, s in zip(rates, state, strict=True):
            shape = (x.shape[0], x.shape[1], *s.shape[1:])
            mean = s.new_full((), rate).expand(shape)
            kept.append(torch.bernoulli(mean) if training else mean)
        return tuple(kept)

    def dropped(self, cell: Cell, training: bool) -> dict[str, Tensor]:
        """Recurrent matrices with holes in them."""
        if not (self.weight and training):
            return {}
        return {name: F.dropout(w, self.weight) for name, w in recurrent_weights(cell).items()}


def recurrent_weights(cell: Cell) -> dict[str, Tensor]:
    """The matrices that multiply the state: by the names our cells give them."""
    names = ("weight_hh", "weight_q", "weight_g", "weight_flow", "weight_ch")
    return {n: w for n, w in weights(cell).items() if n in names}

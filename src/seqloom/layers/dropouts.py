"""Settings of recurrent layers that torch.nn lacks, including dropout inside the recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.arguments import Checked
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError
from seqloom.core.init import Init
from seqloom.core.plurals import count
from seqloom.core.weights import weights

RECURRENT_WEIGHTS = (  # matrices that multiply a state
    *(
        "weight_hh",
        "weight_q",
        "weight_g",
        "weight_flow",
        "weight_ch",
        "weight_hm",
        "weight_zh",
        "weight_ss",
        "weight_sh",
    ),
)


@dataclass(frozen=True)
class Dropouts(metaclass=Checked):
    """Dropout inside a recurrent layer, drawn from torch's random generator.

    Args:
        recurrent: Share of h that is dropped where it enters a product, with one mask for each sequence
            (Gal & Ghahramani 2016, arXiv 1512.05287).
        zoneout: Probability that a unit keeps its old value at a step; in eval mode the weight of the old value in a
            mean with the new one (Krueger et al. 2017, arXiv 1606.01305). A tuple has a value for each state, (h, c).
        weight: Share of the recurrent matrices that is dropped, drawn once for each call (Merity et al. 2018,
            arXiv 1708.02182).

    Raises:
        ValueError: If a value is not between 0 and 1.

    Example:
        >>> layer = seqloom.LSTM(8, 16, dropouts=seqloom.Dropouts(recurrent=0.2, zoneout=(0.1, 0.05)))
        >>> layer(torch.randn(5, 3, 8))[0].shape
        torch.Size([5, 3, 16])
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
        """Raise an error if the cell does not support these settings."""
        name = cell.name or type(cell).__name__
        if self.recurrent and "mask" not in cell.takes:
            raise UserError(f"Dropouts.recurrent={self.recurrent}, but the step of cell {name!r} takes no `mask`")
        if self.weight and not _recurrent_weights(cell):
            raise UserError(f"Dropouts.weight={self.weight}, but cell {name!r} has no recurrent matrix to drop from")

    def draw_mask(self, cell: Cell, x: Tensor, training: bool) -> Tensor | None:
        """Draw the mask (B, H) of recurrent dropout for one scan of x (B, T, D)."""
        if not (self.recurrent and training):
            return None
        return F.dropout(x.new_ones(x.shape[0], cell.output_size), self.recurrent)

    def draw_zoneout(self, x: Tensor, state: State, training: bool) -> tuple[Tensor, ...]:
        """Draw the share of each state's old value that is kept, for one scan of x (B, T, D): (B, T, ...) each."""
        rates = self.zoneout if isinstance(self.zoneout, tuple) else (self.zoneout,) * len(state)
        if not any(rates):
            return ()
        if len(rates) != len(state):
            raise UserError(
                f"Dropouts.zoneout has {count(len(rates), 'rate')}, but the state has {count(len(state), 'tensor')}"
            )
        shares = []
        for rate, s in zip(rates, state, strict=True):
            shape = (x.shape[0], x.shape[1], *s.shape[1:])
            mean = s.new_full((), rate).expand(shape)
            shares.append(torch.bernoulli(mean) if training else mean)
        return tuple(shares)

    def drop_weights(self, cell: Cell, training: bool) -> dict[str, Tensor]:
        """Return the recurrent matrices after dropout, by name; none if `weight` is 0."""
        if not (self.weight and training):
            return {}
        return {name: F.dropout(w, self.weight) for name, w in _recurrent_weights(cell).items()}


class Options(TypedDict, total=False):
    """Settings of every named layer in addition to torch's and those of its cell; `Recurrent` documents them."""

    dropouts: Dropouts
    init: Init
    learn_initial_state: bool
    residual: bool
    stack_norm: str | None
    kernel: str
    parallel: str | int
    check: bool


def _recurrent_weights(cell: Cell) -> dict[str, Tensor]:
    return {name: w for name, w in weights(cell).items() if name in RECURRENT_WEIGHTS}


class HeadsOptions(Options, total=False):
    """The same settings, plus `heads` for layers whose units can be divided."""

    heads: int | None

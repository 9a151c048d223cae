"""Initialisation of a cell's weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.weights import weights

SCHEMES = ("default", "linear", "orthogonal", "xavier", "he")


@dataclass(frozen=True)
class Init(metaclass=Checked):
    """How to initialise the cells of every layer and direction.

    Args:
        weights: "default" keeps the cell's own initialisation (torch's for cells that torch has). "linear" initialises
            each gate as a torch.nn.Linear with one bias: uniform in +-1/sqrt(fan in). "orthogonal" makes the recurrent
            block of each gate orthogonal and uses Xavier for the others; "xavier" and "he" apply to every block. These
            three set biases to 0.
        chrono: The longest expected dependency in steps, at least 3. Gate biases are drawn so that memories last
            between 1 and `chrono` steps (Tallec & Ollivier 2018, arXiv 1804.11188).

    Raises:
        UserError: If `weights` is unknown, or `chrono` is too small.

    Example:
        >>> layer = seqloom.LSTM(8, 16, init=seqloom.Init("orthogonal", chrono=200))
        >>> layer(torch.randn(5, 2, 8))[0].shape  # (T, B, H)
        torch.Size([5, 2, 16])
    """

    weights: Literal["default", "linear", "orthogonal", "xavier", "he"] = "default"
    chrono: int | None = None

    def __post_init__(self) -> None:
        if self.weights not in SCHEMES:
            raise UserError(f"Init.weights must be one of {', '.join(SCHEMES)}, got {self.weights!r}")
        if self.chrono is not None and self.chrono < 3:
            raise UserError(f"Init.chrono must be at least 3 steps, got {self.chrono}")

    @torch.no_grad()
    def apply(self, cell: Cell) -> None:
        """Initialise a cell's parameters. A gate bias that was passed to the cell's constructor stays.

        Args:
            cell: The cell, changed in place.

        Raises:
            UserError: If `chrono` is set and the cell has no gate bias.
        """
        if self.weights != "default":
            for name, p in {**cell.own_parameters(), **dict(cell.named_parameters())}.items():
                _fill(self.weights, name, p, cell)
            bias = _constructor_bias(cell)
            if bias is not None:
                cell.remember(torch.full((cell.hidden_size,), bias))
        if self.chrono is not None:
            span = torch.empty(cell.hidden_size).uniform_(1, self.chrono - 1)
            cell.remember(torch.log(span), coupled=True)


def _fill(scheme: str, name: str, p: nn.Parameter, cell: Cell) -> None:
    leaf = name.rpartition(".")[2]
    if p.dim() < 2:
        if leaf.startswith("bias"):
            bound = 1 / math.sqrt(_fan_in(name, cell)) if scheme == "linear" and leaf != "bias_hh" else 0.0
            nn.init.uniform_(p, -bound, bound)
        return
    if not leaf.startswith("weight"):
        return
    for block in _blocks(p, cell.hidden_size):
        if scheme == "linear":
            nn.init.kaiming_uniform_(block, a=math.sqrt(5))
        elif scheme == "he":
            nn.init.kaiming_normal_(block, nonlinearity="relu")
        elif scheme == "orthogonal" and block.shape[0] == block.shape[1] and leaf != "weight_ih":
            nn.init.orthogonal_(block)
        else:
            nn.init.xavier_uniform_(block)


def _fan_in(bias: str, cell: Cell) -> int:
    """Return the number of columns of the matrix that this bias belongs to."""
    weight = weights(cell).get(bias.replace("bias", "weight"))
    return cell.hidden_size if weight is None or weight.dim() < 2 else weight.shape[1]


def _blocks(weight: Tensor, hidden: int) -> list[Tensor]:
    """Split a matrix into the rows of each gate; one that does not consist of gates is one block."""
    return list(weight.split(hidden)) if weight.shape[0] % hidden == 0 else [weight]


def _constructor_bias(cell: Cell) -> float | None:
    """Return the name of the cell's constructor argument that sets the bias of the memory gate."""
    for name, sign in (("forget_bias", 1), ("update_bias", 1), ("gate_bias", -1)):
        value = getattr(cell, name, None)
        if value is not None:
            return float(sign * value)
    return None

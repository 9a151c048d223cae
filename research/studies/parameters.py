"""Parameter counts that the articles print, compared with the actual layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from research.studies.study import Study
from seqloom.lab.report.page import PageBlock, Table
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.measure import cost, parameters

Count = Callable[[int, int], int]  # for d inputs and h units


@dataclass(frozen=True)
class Claim:
    """One printed number or formula; `mistake` explains what is wrong if it does not hold."""

    source: str
    model: str
    what: str
    printed: str
    says: Count
    has: Count
    d: int = 64
    h: int = 128
    mistake: str = ""


@dataclass(frozen=True)
class ParameterSettings:
    """Settings of the parameters study."""

    sizes: tuple[tuple[int, int], ...] = ((64, 128), (100, 128), (12, 20))  # d, h at which a formula is tried


@dataclass(frozen=True)
class CheckedClaim:
    """The result for a claim at its printed size; a formula must hold at all sizes."""

    source: str
    model: str
    what: str
    printed: str
    d: int
    h: int
    says: int
    has: int
    holds: bool
    mistake: str

    def __str__(self) -> str:
        claim = f"{self.source}, {self.model}, {self.what} {self.printed}"
        return f"{claim}: {'holds' if self.holds else f'the layer has {self.has:,}; {self.mistake}'}"


def layer(cell: str) -> Count:
    return lambda d, h: parameters(Recurrent(cell, d, h))


def products(cell: str) -> Count:
    """Return a function that counts the multiply-adds of a step, forward."""
    return lambda d, h: cost(cell, d, h).flops_per_token // 2


def states(cell: str) -> Count:
    return lambda d, h: cost(cell, d, h).state_floats // h


def exactly(number: int) -> Count:
    return lambda *_: number


def custom_lstm(d: int, h: int) -> int:
    """Count the article's CustomLSTM: biases only for the product with the input."""
    return parameters(nn.ModuleList(part for _ in range(4) for part in (nn.Linear(d, h), nn.Linear(h, h, bias=False))))


def custom_gru(d: int, h: int) -> int:
    """Count the article's CustomGRU: one product of input and state, with one bias."""
    return parameters(nn.ModuleList(nn.Linear(d + h, h) for _ in range(3)))


def encoder(d: int, h: int) -> int:
    with torch.device("meta"):
        return 2 * parameters(nn.TransformerEncoderLayer(d, 4, batch_first=True))


A, B = "AttnRNN article", "RNN family article"
TWO = "it counts one bias per gate, but the layer and the printed example have two: {} more"
TORCH = "it counts one bias per gate, but the torch layer in its code has two: {} more"
CLAIMS = (
    Claim(A, "RNN", "formula", "dh + h^2 + 2h", lambda d, h: d * h + h * h + 2 * h, layer("rnn")),
    Claim(A, "RNN", "example", "24,832", exactly(24_832), layer("rnn")),
    Claim(
        *(A, "LSTM", "formula", "4(dh + h^2 + h)", lambda d, h: 4 * (d * h + h * h + h), layer("lstm")),
        mistake=TWO.format("4h"),
    ),
    Claim(A, "LSTM", "example", "99,328", exactly(99_328), layer("lstm")),
    Claim(
        *(A, "GRU", "formula", "3(dh + h^2 + h)", lambda d, h: 3 * (d * h + h * h + h), layer("gru")),
        mistake=TWO.format("3h"),
    ),
    Claim(A, "GRU", "example", "74,496", exactly(74_496), layer("gru")),
    Claim(A, "AttnRNN", "formula", "dh + 4h^2 + 6h", lambda d, h: d * h + 4 * h * h + 6 * h, layer("attn_rnn")),
    Claim(
        *(A, "AttnRNN", "example", "66,432", exactly(66_432), layer("attn_rnn")),
        mistake="its own formula gives 74,496, the same as a GRU; with d = h = 128 the cell has 66,176",
    ),
    Claim(A, "RNN", "IMDB table", "33,024", exactly(33_024), layer("rnn"), 128),
    Claim(A, "GRU", "IMDB table", "99,072", exactly(99_072), layer("gru"), 128),
    Claim(A, "LSTM", "IMDB table", "132,096", exactly(132_096), layer("lstm"), 128),
    Claim(A, "AttnRNN", "IMDB table", "66,176", exactly(66_176), layer("attn_rnn"), 128),
    Claim(A, "Transformer", "IMDB table", "1,186,048", exactly(1_186_048), encoder, 128),
    Claim(A, "RNN", "products per step", "dh + h^2", lambda d, h: d * h + h * h, products("rnn")),
    Claim(A, "LSTM", "products per step", "4(dh + h^2)", lambda d, h: 4 * (d * h + h * h), products("lstm")),
    Claim(A, "GRU", "products per step", "3(dh + h^2)", lambda d, h: 3 * (d * h + h * h), products("gru")),
    Claim(
        *(A, "AttnRNN", "products per step", "3h^2 + dh", lambda d, h: 3 * h * h + d * h, products("attn_rnn")),
        mistake="W_q and W_o have h^2 products each and W_g [h, o] has 2h^2: 4h^2 + dh",
    ),
    Claim(A, "RNN", "states", "1", exactly(1), states("rnn")),
    Claim(A, "LSTM", "states", "2", exactly(2), states("lstm")),
    Claim(A, "GRU", "states", "1", exactly(1), states("gru")),
    Claim(A, "AttnRNN", "states", "1", exactly(1), states("attn_rnn")),
    Claim(
        *(B, "RNN", "formula", "h(h + d + 1)", lambda d, h: h * (h + d + 1), layer("rnn"), 100),
        mistake=TORCH.format("h"),
    ),
    Claim(
        *(B, "LSTM", "formula", "4h(h + d + 1)", lambda d, h: 4 * h * (h + d + 1), layer("lstm"), 100),
        mistake=TORCH.format("4h"),
    ),
    Claim(
        *(B, "GRU", "formula", "3h(h + d + 1)", lambda d, h: 3 * h * (h + d + 1), layer("gru"), 100),
        mistake=TORCH.format("3h"),
    ),
    Claim(B, "CustomLSTM", "formula", "4h(h + d + 1)", lambda d, h: 4 * h * (h + d + 1), custom_lstm, 100),
    Claim(B, "CustomGRU", "formula", "3h(h + d + 1)", lambda d, h: 3 * h * (h + d + 1), custom_gru, 100),
)


class Parameters(Study[ParameterSettings, CheckedClaim], name="parameters"):
    """Parameter counts of the layers against every formula and example in the articles."""

    full = quick = paper = ParameterSettings()

    @property
    def parts(self) -> int:
        return len(CLAIMS)

    def run(self, before: Callable[[str], None]) -> Iterator[CheckedClaim]:
        for c in CLAIMS:
            before(f"{c.source}, {c.model}")
            says, has = c.says(c.d, c.h), c.has(c.d, c.h)
            sizes = self.settings.sizes if c.what in ("formula", "products per step") else ()
            holds = says == has and all(c.says(d, h) == c.has(d, h) for d, h in sizes)
            mistake = "" if holds else c.mistake or "the count differs"
            yield CheckedClaim(c.source, c.model, c.what, c.printed, c.d, c.h, says, has, holds, mistake)

    def table(self, rows: Sequence[CheckedClaim]) -> list[dict[str, Any]]:
        return [
            {
                "source": row.source,
                "model": row.model,
                "what": row.what,
                "printed": row.printed,
                "d": row.d,
                "h": row.h,
                "value": row.says,
                "counted": row.has,
                "holds": "yes" if row.holds else "no",
                "mistake": row.mistake or None,
            }
            for row in rows
        ]

    def caption(self) -> str:
        return (
            "counted: parameters of one layer of seqloom (the same as torch.nn; Transformer: two encoder layers of "
            "torch, "
            "d = 128), multiply-adds per step by torch's flop counter, states by their tensors.\n"
            f"a formula holds if it does for all (d, h) of {', '.join(map(str, self.settings.sizes))}"
        )

    def verdict(self, rows: Sequence[CheckedClaim]) -> str:
        wrong = [row for row in rows if not row.holds]
        named = "; ".join(f"{row.source}, {row.model}, {row.what} {row.printed}: {row.mistake}" for row in wrong)
        return f"{len(rows) - len(wrong)} of {len(rows)} printed counts are correct. Incorrect: {named or 'none'}."

    def blocks(self, rows: Sequence[CheckedClaim]) -> list[PageBlock]:
        table = self.table(rows)
        wrong = [row for row in table if row["holds"] == "no"]
        return [Table("Incorrect counts", wrong), Table("All printed counts", table, self.caption())]

"""Every count that the documents print, beside what the layers have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from seqloom.lab.report.page import PageBlock, Table
from seqloom.lab.studies.study import Study
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.measure import cost, parameters

Count = Callable[[int, int], int]  # for d inputs and h units


@dataclass(frozen=True)
class Claim:
    """One printed number or formula; `mistake` says what is wrong where it does not hold."""

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
class Settings:
    sizes: tuple[tuple[int, int], ...] = ((64, 128), (100, 128), (12, 20))  # d, h at which a formula is tried


@dataclass(frozen=True)
class Checked:
    """A claim at the size at which it was printed; a formula has to hold at all sizes."""

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
        said = f"{self.source}, {self.model}, {self.what} {self.printed}"
        return f"{said}: {'holds' if self.holds else f'the layer has {self.has:,}; {self.mistake}'}"


def layer(cell: str) -> Count:
    return lambda d, h: parameters(Recurrent(cell, d, h))


def products(cell: str) -> Count:
    """Multiply-adds of a step, forward."""
    return lambda d, h: cost(cell, d, h).flops_per_token // 2


def states(cell: str) -> Count:
    return lambda d, h: cost(cell, d, h).state_floats // h


def exactly(number: int) -> Count:
    return lambda *_: number


def written_lstm(d: int, h: int) -> int:
    """As the document's CustomLSTM: a bias for the input's product alone."""
    return parameters(nn.ModuleList(part for _ in range(4) for part in (nn.Linear(d, h), nn.Linear(h, h, bias=False))))


def written_gru(d: int, h: int) -> int:
    """As the document's CustomGRU: one product of both, with one bias."""
    return parameters(nn.ModuleList(nn.Linear(d + h, h) for _ in range(3)))


def encoder(d: int, h: int) -> int:
    with torch.device("meta"):
        return 2 * parameters(nn.TransformerEncoderLayer(d, 4, batch_first=True))


A, B = "AttnRNN document", "RNN family document"
TWO = "it has one bias a gate, the layer two, as the printed example counts: {} more"
TORCH = "it has one bias a gate, the torch layer of its code two: {} more"
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
        mistake="its own formula gives 74,496, as many as the GRU has; with d = h = 128 the cell has 66,176",
    ),
    Claim(A, "RNN", "IMDB table", "33,024", exactly(33_024), layer("rnn"), 128),
    Claim(A, "GRU", "IMDB table", "99,072", exactly(99_072), layer("gru"), 128),
    Claim(A, "LSTM", "IMDB table", "132,096", exactly(132_096), layer("lstm"), 128),
    Claim(A, "AttnRNN", "IMDB table", "66,176", exactly(66_176), layer("attn_rnn"), 128),
    Claim(A, "Transformer", "IMDB table", "1,186,048", exactly(1_186_048), encoder, 128),
    Claim(A, "RNN", "products a step", "dh + h^2", lambda d, h: d * h + h * h, products("rnn")),
    Claim(A, "LSTM", "products a step", "4(dh + h^2)", lambda d, h: 4 * (d * h + h * h), products("lstm")),
    Claim(A, "GRU", "products a step", "3(dh + h^2)", lambda d, h: 3 * (d * h + h * h), products("gru")),
    Claim(
        *(A, "AttnRNN", "products a step", "3h^2 + dh", lambda d, h: 3 * h * h + d * h, products("attn_rnn")),
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
    Claim(B, "CustomLSTM", "formula", "4h(h + d + 1)", lambda d, h: 4 * h * (h + d + 1), written_lstm, 100),
    Claim(B, "CustomGRU", "formula", "3h(h + d + 1)", lambda d, h: 3 * h * (h + d + 1), written_gru, 100),
)


class Parameters(Study[Settings, Checked], name="parameters"):
    """Exact counts against every printed formula and example, each printed mistake named."""

    full = quick = paper = Settings()

    @property
    def parts(self) -> int:
        return len(CLAIMS)

    def run(self, before: Callable[[str], None]) -> Iterator[Checked]:
        for c in CLAIMS:
            before(f"{c.source}, {c.model}")
            says, has = c.says(c.d, c.h), c.has(c.d, c.h)
            sizes = self.settings.sizes if c.what in ("formula", "products a step") else ()
            holds = says == has and all(c.says(d, h) == c.has(d, h) for d, h in sizes)
            mistake = "" if holds else c.mistake or "the count differs"
            yield Checked(c.source, c.model, c.what, c.printed, c.d, c.h, says, has, holds, mistake)

    def table(self, rows: Sequence[Checked]) -> list[dict[str, Any]]:
        return [
            {
                "source": row.source,
                "model": row.model,
                "what": row.what,
                "printed": row.printed,
                "d": row.d,
                "h": row.h,
                "which is": row.says,
                "counted": row.has,
                "holds": "yes" if row.holds else "no",
                "mistake": row.mistake or None,
            }
            for row in rows
        ]

    def caption(self) -> str:
        return (
            "counted: the parameters of one layer as it is made here (torch.nn has as many; a Transformer: two of "
            "torch's encoder layers, d = 128), multiply-adds of a step by torch's counter, states by their tensors.\n"
            f"a formula holds where it does at every d, h of {', '.join(map(str, self.settings.sizes))}"
        )

    def verdict(self, rows: Sequence[Checked]) -> str:
        wrong = [row for row in rows if not row.holds]
        named = "; ".join(f"{row.source}, {row.model}, {row.what} {row.printed}: {row.mistake}" for row in wrong)
        return f"{len(rows) - len(wrong)} of {len(rows)} printed counts hold. These do not: {named or 'none'}."

    def blocks(self, rows: Sequence[Checked]) -> list[PageBlock]:
        shown = self.table(rows)
        wrong = [row for row in shown if row["holds"] == "no"]
        return [Table("Printed mistakes", wrong), Table("Every printed count", shown, self.caption())]

"""From a recurrence to recurrence + self-attention to attention alone, at equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from research.studies.data.symbols import ABOUT, COPY, FIRST, TEXT
from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, Condition, TrialSettings
from research.studies.support.contenders import MULTIPLE, layer, rates, starts
from research.studies.support.outcome import Trial
from research.studies.support.symbol_trials import SymbolTrials, describe_conditions, read_symbols
from seqloom.layers.hybrid import RNNThenAttention
from seqloom.layers.transformer.layer import Projected, Transformer

HEADS = 4
BOTH, ALONE = "lstm + attention", "attention alone"
MODELS = (BOTH, "lstm", ALONE, "attn_rnn")


class Stages(SymbolTrials[TrialSettings], name="stages"):
    """What self-attention adds to an LSTM, and what remains without the LSTM, on recall, state tracking and text."""

    against = BOTH
    full = replace(
        EXPLORATORY,
        conditions=(
            read_symbols("recall", "recall", 2_000, 64, (64, 128)),
            read_symbols("S3", "S3", 2_000, 40, (40, 64, 128, 256), late=8, grows=True),
            read_symbols(TEXT, TEXT, 2_000, 64),
        ),
        models=MODELS,
        budget=56_000,
        starts=("default", "chrono"),
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(
            read_symbols("parity", "parity", 250, 10, (10, 40), late=8, grows=True),
            read_symbols("first symbol", FIRST, 250, 24, late=8),
            read_symbols("copy", COPY, 250, 13),
        ),
        models=(BOTH, "lstm", ALONE),
    )

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model == ALONE:
            return Projected(Transformer(hidden, HEADS, causal=True, position="rotary"), symbols)
        if model == BOTH:
            both = RNNThenAttention(symbols, hidden, cell="lstm", heads=HEADS)
            both.rnn = layer("lstm", symbols, hidden, start, condition.task["T"])
            return both
        return layer(model, symbols, hidden, start, condition.task["T"])

    def multiple(self, model: str) -> int:
        return MULTIPLE if model == "lstm" else super().multiple(model)

    def can_stack(self, model: str) -> bool:
        return model == ALONE

    def grid(self, model: str) -> list[tuple[float, str]]:
        s = self.settings
        if model == ALONE:
            return [(lr, "default") for lr in rates(s.lrs, s.starts)]
        return [(lr, start) for lr in s.lrs for start in starts("lstm" if model == BOTH else model, s.starts)]

    def caption(self) -> str:
        return (
            f"{super().caption()}\nlstm + attention: one layer of LSTM, then self-attention over its outputs, a "
            f"residual and LayerNorm; attention alone: a causal Transformer of two layers, {HEADS} heads, rotary "
            f"positions.\n{describe_conditions(self, ABOUT)}"
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        return (
            f"{super().verdict(rows)} The self-attention article says that self-attention brings most of the gain and "
            "that results improve without the RNN."
        )

"""Attention, linear and nonlinear recurrence at equal size: recall, the first symbol, text."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from research.studies.data.symbols import ABOUT, FIRST, TEXT
from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, Condition, TrialSettings
from research.studies.support.contenders import MULTIPLE, layer, rates
from research.studies.support.mixers import HEADS, is_linear, make_linear
from research.studies.support.symbol_trials import SymbolTrials, describe_conditions, read_symbols
from seqloom.layers.linear.parts import ShortConv
from seqloom.layers.transformer.layer import Projected, Transformer

TAPS = 4  # steps of a convolution
LINEAR = ("gated_deltanet", "mamba2", "mlstm")
CONVOLVED = "transformer conv"  # reads its input through a convolution of four steps, as linear recurrences do
MODELS = ("transformer", CONVOLVED, *LINEAR, "lstm", "attn_rnn")


class Kinds(SymbolTrials[TrialSettings], name="kinds"):
    """Compare attention with linear and nonlinear recurrence on three tasks: recall, the first symbol, and text."""

    against = "transformer"
    full = replace(
        EXPLORATORY,
        conditions=(
            read_symbols("recall, 32 pairs", "recall 32", 1_500, 128, (128, 256, 512, 1_024)),
            read_symbols(TEXT, TEXT, 2_000, 128, (128, 256, 512, 1_024), main=128),
            read_symbols(FIRST, FIRST, 1_000, 256, (256, 512, 1_024, 2_048), late=8),
        ),
        models=MODELS,
        budget=100_000,
        tuning_seeds=1,
        widen=False,
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(
            read_symbols("recall", "recall", 200, 32),
            read_symbols(FIRST, FIRST, 100, 24, late=8),
        ),
        models=("transformer", "gated_deltanet", "lstm"),
    )

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model in ("transformer", CONVOLVED):
            read = Projected(Transformer(hidden, HEADS, causal=True, position="rotary"), symbols)
            return ConvolvedReader(read) if model == CONVOLVED else read
        if is_linear(model):
            return Projected(make_linear(model, hidden, num_layers=2), symbols)
        return layer(model, symbols, hidden, start, condition.task["T"])

    def multiple(self, model: str) -> int:
        return MULTIPLE if model == "lstm" else super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def caption(self) -> str:
        has_conv = CONVOLVED in self.settings.models
        convolved = f"{CONVOLVED}: the same behind a convolution over the last {TAPS} steps; " if has_conv else ""
        return (
            f"{super().caption()}\ntransformer: two causal layers, {HEADS} heads, rotary positions; {convolved}"
            f"{', '.join(m for m in self.settings.models if is_linear(m))}: two blocks of a linear recurrence with "
            f"{HEADS} heads, in place of the attention; lstm, attn_rnn: one layer.\n"
            f"{describe_conditions(self, ABOUT)}"
        )


class ConvolvedReader(nn.Module):
    """Add to every step of the input of a Transformer a convolution over the last steps: layer(W x + conv(W x))."""

    def __init__(self, read: Projected) -> None:
        super().__init__()
        self.read, self.conv = read, ShortConv(read.hidden_size, TAPS, active=False)

    def forward(self, x: Tensor) -> tuple[Tensor, object]:
        u = self.read.project(x)
        return self.read.layer(u + self.conv(u, None, None, None)[0])

"""Other published designs on the tasks they were made for: NTM, Performer and Linformer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from research.studies.data.symbols import ABOUT, COPY, PIXEL_ROWS
from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, Condition, TrialSettings
from research.studies.support.contenders import layer, rates
from research.studies.support.symbol_trials import SymbolTrials, describe_conditions, read_symbols
from seqloom.attention import LinformerAttention
from seqloom.layers.transformer.layer import Projected, Transformer

HEADS = 4
ROWS = 128  # of the NTM's memory: more than the longest sequence to copy
RANKS = {13: 6, 196: 32}  # of Linformer, by steps: its projections have up to half of the parameters
NTM, DENSE = "ntm", "dense attention"
CELLS = (NTM, "lstm", "gru", "attn_rnn")
ATTENTIONS = {DENSE: "dense", "performer": "performer", "linformer": "linformer", "linear attention": "linear"}


class Designs(SymbolTrials[TrialSettings], name="designs"):
    """NTM on copying past its training length; Performer and Linformer against dense attention on 196 pixels."""

    full = replace(
        EXPLORATORY,
        conditions=(
            read_symbols("copy, 12 symbols", COPY, 2_500, 13, (13, 25, 49, 97), models=CELLS, against=NTM, main=25),
            read_symbols(
                *("196 pixels", PIXEL_ROWS, 1_000, 196),
                models=tuple(ATTENTIONS),
                against=DENSE,
                budget=100_000,
                precision="bfloat16",
            ),
        ),
        models=(*CELLS, *ATTENTIONS),
        budget=60_000,
        test=4_096,
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(
            read_symbols("copy, 6 symbols", COPY, 300, 7, (7, 13), models=CELLS, against=NTM),
            read_symbols("copy with attention", COPY, 250, 13, models=tuple(ATTENTIONS), against=DENSE),
        ),
        models=(NTM, "lstm", "attn_rnn", *ATTENTIONS),
    )

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model == NTM:
            return layer(NTM, symbols, hidden, start, condition.task["T"], rows=ROWS)
        if model not in ATTENTIONS:
            return layer(model, symbols, hidden, start, condition.task["T"])
        kind, steps = ATTENTIONS[model], condition.task["T"]
        attention = partial(LinformerAttention, rank=RANKS[steps], max_length=steps) if kind == "linformer" else kind
        return Projected(Transformer(hidden, HEADS, attention=attention, position="sinusoidal"), symbols)

    def can_stack(self, model: str) -> bool:
        return model == NTM

    def grid(self, model: str) -> list[tuple[float, str]]:
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def caption(self) -> str:
        ranks = ", ".join(f"{rank} for {steps} steps" for steps, rank in RANKS.items())
        return (
            f"{super().caption()}\ncopy: trained on 1 to (T - 1) / 2 symbols, tested on (T - 1) / 2; NTM: a memory of "
            f"{ROWS} rows. pixels: a bidirectional Transformer of two layers with sinusoidal positions, read out at "
            "the last pixel (196 pixels: means of 2 x 2 pixels of MNIST, bfloat16); "
            f"Linformer: rank {ranks}.\n{describe_conditions(self, ABOUT)}\n"
            "Transformer-XL is part of the study extensions, ODE-GRU of the study irregular."
        )

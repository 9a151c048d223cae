"""What the AttnRNN article proposes for later: a memory for Transformer-XL, a decoder's recurrence, several states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from research.studies.data.symbols import ABOUT, FIRST, TEXT
from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, Condition, TrialSettings
from research.studies.support.contenders import FUSED, layer, rates
from research.studies.support.symbol_trials import SymbolTrials, describe_conditions, read_symbols
from seqloom.layers.memory import MemoryTransformer, RecurrentMixer, TransformerXL
from seqloom.layers.transformer.layer import Projected, Transformer

HEADS, SEGMENT = 4, 8
XL, SEGMENTS, XL_ATTN, XL_GRU = "transformer-xl", "segments alone", "attn_rnn memory", "gru memory"
SELF, BY_ATTN, BY_GRU = "self-attention", "attn_rnn decoder", "gru decoder"
SLOTS = {"1 state": 1, "2 states": 2, "4 states": 4, "8 states": 8}
MEMORIES, DECODERS = (XL_ATTN, XL, SEGMENTS, XL_GRU), (BY_ATTN, SELF, BY_GRU)


def states(name: str, problem: str) -> Condition:
    """Return a condition for 1 to 8 states; the kernel for more than one computes in bfloat16."""
    return read_symbols(name, problem, 1_500, 64, models=tuple(SLOTS), against="1 state", precision="bfloat16")


class Extensions(SymbolTrials[TrialSettings], name="extensions"):
    """AttnRNN as the memory of Transformer-XL, as the recurrence of a decoder, and with 1 to 8 states."""

    full = replace(
        EXPLORATORY,
        conditions=(
            read_symbols(
                "memory: first symbol", FIRST, 1_500, 32, late=8, models=MEMORIES, against=XL_ATTN, budget=85_000
            ),
            read_symbols(
                "decoder: S3", "S3", 1_500, 40, (40, 64, 128, 256), late=8, models=DECODERS, against=BY_ATTN, grows=True
            ),
            states("states: 8 slots", "keyed 8"),
            states("states: recall", "recall"),
            read_symbols("decoder: text", TEXT, 1_500, 64, late=2, models=DECODERS, against=BY_ATTN),
            read_symbols("memory: text", TEXT, 1_500, 32, late=2, models=MEMORIES, against=XL_ATTN, budget=90_000),
        ),
        models=(*MEMORIES, *DECODERS, *SLOTS),
        budget=60_000,
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(
            read_symbols("memory: first symbol", FIRST, 100, 24, late=8, models=MEMORIES, against=XL_ATTN),
            read_symbols(
                "decoder: parity", "parity", 250, 10, (10, 40), late=8, models=DECODERS, against=BY_ATTN, grows=True
            ),
            read_symbols(
                "states: 4 slots", "keyed 4", 250, 24, models=("1 state", "2 states", "4 states"), against="1 state"
            ),
        ),
        models=(*MEMORIES, *DECODERS, "1 state", "2 states", "4 states"),
    )

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model in SLOTS:
            return layer("attn_rnn", symbols, hidden, start, condition.task["T"], slots=SLOTS[model])
        layers: dict[str, Callable[[], nn.Module]] = {
            XL: partial(TransformerXL, hidden, HEADS, segment=SEGMENT, memory=SEGMENT),
            SEGMENTS: partial(TransformerXL, hidden, HEADS, segment=SEGMENT, memory=0),
            XL_ATTN: partial(MemoryTransformer, hidden, HEADS, segment=SEGMENT, slots=1, cell="attn_rnn"),
            XL_GRU: partial(MemoryTransformer, hidden, HEADS, segment=SEGMENT, cell="gru"),
            SELF: partial(Transformer, hidden, HEADS, causal=True, position="rotary"),
            BY_ATTN: partial(Transformer, hidden, HEADS, causal=True, attention=RecurrentMixer),
            BY_GRU: partial(Transformer, hidden, HEADS, causal=True, attention=partial(RecurrentMixer, cell="gru")),
        }
        return Projected(layers[model](), symbols)

    def multiple(self, model: str) -> int:
        return FUSED if self.device == "cuda" and model in SLOTS else super().multiple(model)

    def can_stack(self, model: str) -> bool:
        return model in (*MEMORIES, SELF)

    def grid(self, model: str) -> list[tuple[float, str]]:
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def caption(self) -> str:
        precision = ", in bfloat16" if self.device == "cuda" else ""
        return (
            f"{super().caption()}\nmemory: Transformers of two layers that read segments of {SEGMENT} steps; "
            f"{XL}: each segment attends to the one before it; {SEGMENTS}: it does not; {XL_ATTN}, {XL_GRU}: it "
            "attends to the state of a recurrent cell that has read all segments before it. "
            f"decoder: causal Transformers of two layers; {BY_ATTN}, {BY_GRU}: a cell in place of the self-attention. "
            f"states: one layer of AttnRNN with so many states that share all weights (`slots`){precision}.\n"
            f"{describe_conditions(self, ABOUT)}"
        )

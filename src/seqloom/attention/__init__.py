"""Attention layers, one per file."""

from seqloom.attention.dense import Attention
from seqloom.attention.linear import LinearAttention
from seqloom.attention.linformer import LinformerAttention
from seqloom.attention.local import LocalAttention
from seqloom.attention.parts import Heads
from seqloom.attention.pattern import Pattern
from seqloom.attention.performer import PerformerAttention
from seqloom.attention.score import SCORES, AdditiveScore, ConcatScore, DotScore, GeneralScore, attend

ATTENTIONS: dict[str, type[Heads]] = {
    "dense": Attention,
    "local": LocalAttention,
    "linear": LinearAttention,
    "performer": PerformerAttention,
    "linformer": LinformerAttention,
}

__all__ = [
    "ATTENTIONS",
    "SCORES",
    "AdditiveScore",
    "Attention",
    "ConcatScore",
    "DotScore",
    "GeneralScore",
    "LinearAttention",
    "LinformerAttention",
    "LocalAttention",
    "Pattern",
    "PerformerAttention",
    "attend",
]

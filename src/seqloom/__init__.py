"""Sequence models from recurrence to attention: layers to import, and a lab to run.

Names are imported when they are first used, so that `seqloom --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from seqloom.attention import (
        Attention,
        LinearAttention,
        LinformerAttention,
        LocalAttention,
        Pattern,
        PerformerAttention,
    )
    from seqloom.cells import (
        AttnRNNCell,
        GRUCell,
        IndRNNCell,
        LNGRUCell,
        LNLSTMCell,
        LSTMCell,
        MinGRUCell,
        MinLSTMCell,
        NTMCell,
        ODEGRUCell,
        RNNAttentionCell,
        RNNCell,
    )
    from seqloom.core.cell import Cell
    from seqloom.core.init import Init
    from seqloom.kernels.runner import scan
    from seqloom.lab.estimators import SequenceClassifier as SequenceClassifier
    from seqloom.lab.estimators import SequenceRegressor as SequenceRegressor
    from seqloom.lab.estimators import SequenceTagger as SequenceTagger
    from seqloom.lab.explore.notebook import explore as explore
    from seqloom.lab.training.fit import fit as fit
    from seqloom.lab.training.run import Run as Run
    from seqloom.layers.dropouts import Dropouts
    from seqloom.layers.hybrid import ConvRNN, Hybrid, RNNThenAttention
    from seqloom.layers.linear.deltanet import DeltaNet
    from seqloom.layers.linear.deltaproduct import DeltaProduct
    from seqloom.layers.linear.gated_deltanet import GatedDeltaNet
    from seqloom.layers.linear.gla import GLA
    from seqloom.layers.linear.hgrn2 import HGRN2
    from seqloom.layers.linear.lru import LRU
    from seqloom.layers.linear.mamba2 import Mamba2
    from seqloom.layers.linear.mlstm import MLSTM
    from seqloom.layers.linear.published import load_published
    from seqloom.layers.linear.retnet import RetNet
    from seqloom.layers.linear.rg_lru import RGLRU
    from seqloom.layers.linear.rwkv7 import RWKV7
    from seqloom.layers.linear.s5 import S5
    from seqloom.layers.memory import MemoryTransformer, RecurrentMixer, TransformerXL
    from seqloom.layers.named import (
        GRU,
        LNGRU,
        LNLSTM,
        LSTM,
        NTM,
        ODEGRU,
        RNN,
        AttnRNN,
        IndRNN,
        MinGRU,
        MinLSTM,
        RNNAttention,
    )
    from seqloom.layers.readout import Readout
    from seqloom.layers.recurrent.layer import Recurrent
    from seqloom.layers.tcn import TCN
    from seqloom.layers.transformer.block import Block
    from seqloom.layers.transformer.layer import Transformer
    from seqloom.models.classify import Classify
    from seqloom.models.forecast import Forecast
    from seqloom.models.generate import Generate
    from seqloom.models.segments import SegmentForecast
    from seqloom.models.tag import Tag
    from seqloom.models.transcribe import Transcribe
    from seqloom.models.translate import Translate
    from seqloom.tools import intervene, measure, testing
    from seqloom.tools.compile_report import compile_report
    from seqloom.tools.convert import convert
    from seqloom.tools.explain import explain
    from seqloom.tools.onnx.export import export_onnx
    from seqloom.tools.trace import trace

# Names that need only torch. Those of the lab are left out, so that `from seqloom import *` works without its packages.
__all__ = [
    "GLA",
    "GRU",
    "HGRN2",
    "LNGRU",
    "LNLSTM",
    "LRU",
    "LSTM",
    "MLSTM",
    "NTM",
    "ODEGRU",
    "RGLRU",
    "RNN",
    "RWKV7",
    "S5",
    "TCN",
    "Attention",
    "AttnRNN",
    "AttnRNNCell",
    "Block",
    "Cell",
    "Classify",
    "ConvRNN",
    "DeltaNet",
    "DeltaProduct",
    "Dropouts",
    "Forecast",
    "GRUCell",
    "GatedDeltaNet",
    "Generate",
    "Hybrid",
    "IndRNN",
    "IndRNNCell",
    "Init",
    "LNGRUCell",
    "LNLSTMCell",
    "LSTMCell",
    "LinearAttention",
    "LinformerAttention",
    "LocalAttention",
    "Mamba2",
    "MemoryTransformer",
    "MinGRU",
    "MinGRUCell",
    "MinLSTM",
    "MinLSTMCell",
    "NTMCell",
    "ODEGRUCell",
    "Pattern",
    "PerformerAttention",
    "RNNAttention",
    "RNNAttentionCell",
    "RNNCell",
    "RNNThenAttention",
    "Readout",
    "Recurrent",
    "RecurrentMixer",
    "RetNet",
    "SegmentForecast",
    "Tag",
    "Transcribe",
    "Transformer",
    "TransformerXL",
    "Translate",
    "compile_report",
    "convert",
    "explain",
    "export_onnx",
    "intervene",
    "load_published",
    "measure",
    "scan",
    "testing",
    "trace",
]

_MODULES = {
    name: module
    for module, names in {
        "attention": "Attention LinearAttention LinformerAttention LocalAttention Pattern PerformerAttention",
        "cells": "AttnRNNCell GRUCell IndRNNCell LNGRUCell LNLSTMCell LSTMCell MinGRUCell MinLSTMCell NTMCell "
        "ODEGRUCell RNNAttentionCell RNNCell",
        "core.cell": "Cell",
        "core.init": "Init",
        "kernels.runner": "scan",
        "layers.dropouts": "Dropouts",
        "layers.hybrid": "ConvRNN Hybrid RNNThenAttention",
        "layers.linear.deltanet": "DeltaNet",
        "layers.linear.deltaproduct": "DeltaProduct",
        "layers.linear.gated_deltanet": "GatedDeltaNet",
        "layers.linear.gla": "GLA",
        "layers.linear.hgrn2": "HGRN2",
        "layers.linear.lru": "LRU",
        "layers.linear.mamba2": "Mamba2",
        "layers.linear.mlstm": "MLSTM",
        "layers.linear.published": "load_published",
        "layers.linear.retnet": "RetNet",
        "layers.linear.rg_lru": "RGLRU",
        "layers.linear.rwkv7": "RWKV7",
        "layers.linear.s5": "S5",
        "layers.memory": "MemoryTransformer RecurrentMixer TransformerXL",
        "layers.named": "AttnRNN GRU IndRNN LNGRU LNLSTM LSTM MinGRU MinLSTM NTM ODEGRU RNN RNNAttention",
        "layers.readout": "Readout",
        "layers.recurrent.layer": "Recurrent",
        "layers.tcn": "TCN",
        "layers.transformer.block": "Block",
        "layers.transformer.layer": "Transformer",
        "models.classify": "Classify",
        "models.forecast": "Forecast",
        "models.generate": "Generate",
        "models.segments": "SegmentForecast",
        "models.tag": "Tag",
        "models.transcribe": "Transcribe",
        "models.translate": "Translate",
        "tools": "intervene measure testing",
        "tools.convert": "convert",
        "tools.compile_report": "compile_report",
        "tools.explain": "explain",
        "tools.onnx.export": "export_onnx",
        "tools.trace": "trace",
    }.items()
    for name in names.split()
}
_LAB = {
    "Run": "lab.training.run",
    "SequenceClassifier": "lab.estimators",
    "SequenceRegressor": "lab.estimators",
    "SequenceTagger": "lab.estimators",
    "explore": "lab.explore.notebook",
    "fit": "lab.training.fit",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES and name not in _LAB:
        from seqloom.core import renamed

        if name in renamed.CLASSES:
            return renamed.rename_names(__name__, renamed.CLASSES, depth=3)(name)
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    from seqloom.core.errors import check_torch, require

    check_torch()
    if name in _LAB:
        module = require(f"seqloom.{_LAB[name]}", f"seqloom.{name}", "lab")
    else:
        module = importlib.import_module(f"seqloom.{_MODULES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LAB})


if "torch" in sys.modules:  # register the layers with torch.load; otherwise when the first layer is used
    importlib.import_module("seqloom.layers.named")

"""Sequence models from recurrence to attention: layers to import, and a lab to run.

Names are loaded when they are first used, so that `seqloom --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from seqloom import measure, testing
    from seqloom.attention import (
        Attention,
        LinearAttention,
        LinformerAttention,
        LocalAttention,
        Pattern,
        PerformerAttention,
    )
    from seqloom.cell import Cell
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
    from seqloom.convert import convert
    from seqloom.estimators import SequenceClassifier as SequenceClassifier
    from seqloom.estimators import SequenceRegressor as SequenceRegressor
    from seqloom.estimators import SequenceTagger as SequenceTagger
    from seqloom.explain import explain
    from seqloom.init import Init
    from seqloom.lab.fit import fit as fit
    from seqloom.layers.dropouts import Dropouts
    from seqloom.layers.hybrid import ConvRNN, Hybrid, RNNAttend
    from seqloom.layers.memory import MemoryTransformer, Recurrence, TransformerXL
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
    from seqloom.layers.recurrent import Recurrent
    from seqloom.layers.tcn import TCN
    from seqloom.layers.transformer import Transformer
    from seqloom.layers.transformer_block import Block
    from seqloom.models.classify import Classify
    from seqloom.models.forecast import Forecast
    from seqloom.models.generate import Generate
    from seqloom.models.segments import SegmentForecast
    from seqloom.models.tag import Tag
    from seqloom.models.transcribe import Transcribe
    from seqloom.models.translate import Translate
    from seqloom.run import Run as Run
    from seqloom.scan import scan
    from seqloom.trace import trace

# What needs torch alone; the names of the lab below are left out, so that `from seqloom import *` works without it.
__all__ = [
    "GRU",
    "LNGRU",
    "LNLSTM",
    "LSTM",
    "NTM",
    "ODEGRU",
    "RNN",
    "TCN",
    "Attention",
    "AttnRNN",
    "AttnRNNCell",
    "Block",
    "Cell",
    "Classify",
    "ConvRNN",
    "Dropouts",
    "Forecast",
    "GRUCell",
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
    "MemoryTransformer",
    "MinGRU",
    "MinGRUCell",
    "MinLSTM",
    "MinLSTMCell",
    "NTMCell",
    "ODEGRUCell",
    "Pattern",
    "PerformerAttention",
    "RNNAttend",
    "RNNAttention",
    "RNNAttentionCell",
    "RNNCell",
    "Readout",
    "Recurrence",
    "Recurrent",
    "SegmentForecast",
    "Tag",
    "Transcribe",
    "Transformer",
    "TransformerXL",
    "Translate",
    "convert",
    "explain",
    "measure",
    "scan",
    "testing",
    "trace",
]

_MODULES = {
    "Attention": "attention",
    "AttnRNN": "layers.named",
    "AttnRNNCell": "cells",
    "Block": "layers.transformer_block",
    "Cell": "cell",
    "Classify": "models.classify",
    "ConvRNN": "layers.hybrid",
    "Dropouts": "layers.dropouts",
    "Forecast": "models.forecast",
    "GRU": "layers.named",
    "GRUCell": "cells",
    "Generate": "models.generate",
    "Hybrid": "layers.hybrid",
    "IndRNN": "layers.named",
    "IndRNNCell": "cells",
    "Init": "init",
    "LNGRU": "layers.named",
    "LNGRUCell": "cells",
    "LNLSTM": "layers.named",
    "LNLSTMCell": "cells",
    "LSTM": "layers.named",
    "LSTMCell": "cells",
    "LinearAttention": "attention",
    "LinformerAttention": "attention",
    "LocalAttention": "attention",
    "MemoryTransformer": "layers.memory",
    "MinGRU": "layers.named",
    "MinGRUCell": "cells",
    "MinLSTM": "layers.named",
    "MinLSTMCell": "cells",
    "NTM": "layers.named",
    "NTMCell": "cells",
    "ODEGRU": "layers.named",
    "ODEGRUCell": "cells",
    "Pattern": "attention",
    "PerformerAttention": "attention",
    "RNN": "layers.named",
    "RNNAttend": "layers.hybrid",
    "RNNAttention": "layers.named",
    "RNNAttentionCell": "cells",
    "RNNCell": "cells",
    "Readout": "layers.readout",
    "Recurrence": "layers.memory",
    "Recurrent": "layers.recurrent",
    "SegmentForecast": "models.segments",
    "TCN": "layers.tcn",
    "Tag": "models.tag",
    "Transcribe": "models.transcribe",
    "Transformer": "layers.transformer",
    "TransformerXL": "layers.memory",
    "Translate": "models.translate",
    "convert": "convert",
    "explain": "explain",
    "measure": "",  # a module itself
    "scan": "scan",
    "testing": "",  # a module itself
    "trace": "trace",
}
_LAB = {
    "Run": "run",
    "SequenceClassifier": "estimators",
    "SequenceRegressor": "estimators",
    "SequenceTagger": "estimators",
    "fit": "lab.fit",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name in _LAB or name in _MODULES:
        from seqloom.errors import check_torch, require

        check_torch()
    if name in _LAB:
        value = getattr(require(f"seqloom.{_LAB[name]}", f"seqloom.{name}", "lab"), name)
    elif name in _MODULES:
        module = importlib.import_module(f"seqloom.{_MODULES[name] or name}")
        value = getattr(module, name) if _MODULES[name] else module
    else:
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LAB})


class _Package(ModuleType):
    """Importing a submodule sets its name here; where a function has that name, the function is what people mean."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _MODULES.get(name):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if "torch" in sys.modules:  # register the layers with torch.load; without torch, wait until a layer is used
    importlib.import_module("seqloom.layers.named")

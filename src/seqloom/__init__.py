"""Sequence models from recurrence to attention: layers to import, and a lab to run.

Names are loaded when they are first used, so that `seqloom --help` need not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

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
    from seqloom.lab.training.fit import fit as fit
    from seqloom.lab.training.run import Run as Run
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
    from seqloom.tools import measure, testing
    from seqloom.tools.convert import convert
    from seqloom.tools.explain import explain
    from seqloom.tools.trace import trace

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
    "Block": "layers.transformer.block",
    "Cell": "core.cell",
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
    "Init": "core.init",
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
    "Recurrent": "layers.recurrent.layer",
    "SegmentForecast": "models.segments",
    "TCN": "layers.tcn",
    "Tag": "models.tag",
    "Transcribe": "models.transcribe",
    "Transformer": "layers.transformer.layer",
    "TransformerXL": "layers.memory",
    "Translate": "models.translate",
    "convert": "tools.convert",
    "explain": "tools.explain",
    "measure": "tools",
    "scan": "kernels.runner",
    "testing": "tools",
    "trace": "tools.trace",
}
_LAB = {
    "Run": "lab.training.run",
    "SequenceClassifier": "lab.estimators",
    "SequenceRegressor": "lab.estimators",
    "SequenceTagger": "lab.estimators",
    "fit": "lab.training.fit",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _LAB:
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


if "torch" in sys.modules:  # register the layers with torch.load; without torch, wait until a layer is used
    importlib.import_module("seqloom.layers.named")

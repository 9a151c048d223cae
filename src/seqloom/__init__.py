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
    from seqloom.estimators import SequenceClassifier, SequenceRegressor, SequenceTagger
    from seqloom.explain import explain
    from seqloom.init import Init
    from seqloom.lab.fit import fit
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
    from seqloom.run import Run
    from seqloom.scan import scan
    from seqloom.trace import trace

_LAYERS = (
    *("RNN", "LSTM", "GRU", "AttnRNN", "LNGRU", "LNLSTM", "IndRNN"),
    *("MinGRU", "MinLSTM", "NTM", "ODEGRU", "RNNAttention"),
)
_WHERE = {
    **dict.fromkeys(("Attention", "LocalAttention", "LinearAttention", "Pattern"), "attention"),
    **dict.fromkeys(("PerformerAttention", "LinformerAttention"), "attention"),
    "Cell": "cell",
    "Dropouts": "layers.dropouts",
    "Init": "init",
    "Block": "layers.transformer_block",
    **dict.fromkeys(("ConvRNN", "Hybrid", "RNNAttend"), "layers.hybrid"),
    **dict.fromkeys(("MemoryTransformer", "Recurrence", "TransformerXL"), "layers.memory"),
    "Readout": "layers.readout",
    "TCN": "layers.tcn",
    "Transformer": "layers.transformer",
    **{
        name: f"models.{name.lower()}"
        for name in ("Classify", "Forecast", "Generate", "Tag", "Transcribe", "Translate")
    },
    "SegmentForecast": "models.segments",
    "Recurrent": "layers.recurrent",
    "convert": "convert",
    "explain": "explain",
    "fit": "lab.fit",
    "Run": "run",
    **dict.fromkeys(("SequenceClassifier", "SequenceRegressor", "SequenceTagger"), "estimators"),
    "measure": "",  # a module itself
    "scan": "scan",
    "testing": "",
    "trace": "trace",
    **dict.fromkeys(_LAYERS, "layers.named"),
    **{f"{name}Cell": "cells" for name in _LAYERS},
}
__all__ = sorted(_WHERE)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    where = _WHERE[name]
    module = importlib.import_module(f"seqloom.{where or name}")
    value = getattr(module, name) if where else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


class _Package(ModuleType):
    """Importing a submodule sets its name here; where a function has that name, the function is what people mean."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _WHERE.get(name):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""Recurrent with the cell filled in, by the names people know."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import seqloom.cells
from seqloom.core.init import Init
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.recurrent.layer import Recurrent


class _Named(Recurrent):
    cell = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.cell, *args, **kwargs)


class RNN(Recurrent):
    """torch.nn.RNN's arguments and results; cells/rnn.py has the equations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 3:  # torch has nonlinearity as the fourth
            kwargs["nonlinearity"] = args[3]
            args = args[:3] + args[4:]
        super().__init__("rnn", *args, **kwargs)
        self.nonlinearity = self.cells[0].nonlinearity


class LSTM(Recurrent):
    """torch.nn.LSTM's arguments and results; cells/lstm.py has the equations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 7:  # torch has proj_size as the eighth
            kwargs["proj_size"] = args[7]
            args = args[:7] + args[8:]
        super().__init__("lstm", *args, **kwargs)


class GRU(_Named):
    """torch.nn.GRU's arguments and results; cells/gru.py has the equations."""

    cell = "gru"


class AttnRNN(_Named):
    """The state and the input compete for attention; cells/attn_rnn.py has the equations."""

    cell = "attn_rnn"


class LNGRU(_Named):
    """GRU with layer normalisation; cells/ln_gru.py has the equations."""

    cell = "ln_gru"


class LNLSTM(_Named):
    """LSTM with layer normalisation; cells/ln_lstm.py has the equations."""

    cell = "ln_lstm"


class IndRNN(_Named):
    """Independent units; cells/indrnn.py has the equations."""

    cell = "indrnn"


class MinGRU(_Named):
    """Linear in its state, trained by a parallel scan; cells/min_gru.py has the equations."""

    cell = "min_gru"


class MinLSTM(_Named):
    """Linear in its state, trained by a parallel scan; cells/min_lstm.py has the equations."""

    cell = "min_lstm"


class NTM(_Named):
    """The Neural Turing Machine; cells/ntm.py has the equations."""

    cell = "ntm"


class ODEGRU(_Named):
    """A GRU in continuous time, for `timespans`; cells/ode_gru.py has the equations."""

    cell = "ode_gru"


class RNNAttention(_Named):
    """An RNN that looks back at its own outputs; cells/rnn_attention.py has the equations."""

    cell = "rnn_attention"


# What a saved layer is made of, so that torch.load(file) takes a whole model without weights_only=False. `Recurrent`
# itself is not among them: its constructor can load a cell from a file.
NAMED = (RNN, LSTM, GRU, AttnRNN, LNGRU, LNLSTM, IndRNN, MinGRU, MinLSTM, NTM, ODEGRU, RNNAttention)
CELLS = [getattr(seqloom.cells, f"{layer.__name__}Cell") for layer in NAMED]
torch.serialization.add_safe_globals([*NAMED, *CELLS, Dropouts, Init, nn.ModuleList])

"""The cells, one per file. Importing this module fills `Cell.registry`."""

from importlib import import_module
from pkgutil import iter_modules

from seqloom.cells.attn_rnn import AttnRNNCell
from seqloom.cells.gru import GRUCell
from seqloom.cells.indrnn import IndRNNCell
from seqloom.cells.ln_gru import LNGRUCell
from seqloom.cells.ln_lstm import LNLSTMCell
from seqloom.cells.lstm import LSTMCell
from seqloom.cells.min_gru import MinGRUCell
from seqloom.cells.min_lstm import MinLSTMCell
from seqloom.cells.ntm import NTMCell
from seqloom.cells.ode_gru import ODEGRUCell
from seqloom.cells.rnn import RNNCell
from seqloom.cells.rnn_attention import RNNAttentionCell

__all__ = [
    "AttnRNNCell",
    "GRUCell",
    "IndRNNCell",
    "LNGRUCell",
    "LNLSTMCell",
    "LSTMCell",
    "MinGRUCell",
    "MinLSTMCell",
    "NTMCell",
    "ODEGRUCell",
    "RNNAttentionCell",
    "RNNCell",
]

for _module in iter_modules(__path__):  # so that a new file registers its cell
    import_module(f"{__name__}.{_module.name}")

"""Recurrent layers by the names people know. `Recurrent` explains the arguments.

Every signature is written out, so that editors and type checkers see it.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import nn

import seqloom.cells
from seqloom.cells.attn_rnn import CONTEXT
from seqloom.core.init import Init
from seqloom.layers.dropouts import Dropouts, Options
from seqloom.layers.recurrent.layer import Recurrent


class RNN(Recurrent):
    """torch.nn.RNN's arguments and results; cells/rnn.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("rnn", *given, nonlinearity=nonlinearity, **options)
        self.nonlinearity = nonlinearity


class LSTM(Recurrent):
    """torch.nn.LSTM's arguments and results; cells/lstm.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("lstm", *given, proj_size=proj_size, forget_bias=forget_bias, **options)


class GRU(Recurrent):
    """torch.nn.GRU's arguments and results; cells/gru.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        update_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("gru", *given, reset_after=reset_after, update_bias=update_bias, **options)


class AttnRNN(Recurrent):
    """The state and the input compete for attention; cells/attn_rnn.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        heads: int = 4,
        context: tuple[str, ...] = CONTEXT,
        norm: bool = True,
        gate_bias: float | None = None,
        slots: int = 1,
        initial: float = 1e-3,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__(
            "attn_rnn",
            *given,
            heads=heads,
            context=context,
            norm=norm,
            gate_bias=gate_bias,
            slots=slots,
            initial=initial,
            **options,
        )


class LNGRU(Recurrent):
    """GRU with layer normalisation; cells/ln_gru.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        update_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ln_gru", *given, update_bias=update_bias, **options)


class LNLSTM(Recurrent):
    """LSTM with layer normalisation; cells/ln_lstm.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ln_lstm", *given, forget_bias=forget_bias, **options)


class IndRNN(Recurrent):
    """Independent units; cells/indrnn.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("indrnn", *given, **options)


class MinGRU(Recurrent):
    """Linear in its state, trained by a parallel scan; cells/min_gru.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("min_gru", *given, **options)


class MinLSTM(Recurrent):
    """Linear in its state, trained by a parallel scan; cells/min_lstm.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("min_lstm", *given, forget_bias=forget_bias, **options)


class NTM(Recurrent):
    """The Neural Turing Machine; cells/ntm.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        rows: int = 32,
        width: int = 16,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ntm", *given, rows=rows, width=width, **options)


class ODEGRU(Recurrent):
    """A GRU in continuous time, for `timespans`; cells/ode_gru.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        substeps: int = 4,
        update_bias: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ode_gru", *given, substeps=substeps, update_bias=update_bias, **options)


class RNNAttention(Recurrent):
    """An RNN that looks back at its own outputs; cells/rnn_attention.py has the equations."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        window: int = 16,
        **options: Unpack[Options],
    ) -> None:
        given = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("rnn_attention", *given, window=window, **options)


# What a saved layer is made of, so that torch.load(file) takes a whole model without weights_only=False. `Recurrent`
# itself is not among them: its constructor can load a cell from a file.
NAMED = (RNN, LSTM, GRU, AttnRNN, LNGRU, LNLSTM, IndRNN, MinGRU, MinLSTM, NTM, ODEGRU, RNNAttention)
CELLS = [getattr(seqloom.cells, f"{layer.__name__}Cell") for layer in NAMED]
torch.serialization.add_safe_globals([*NAMED, *CELLS, Dropouts, Init, nn.ModuleList])

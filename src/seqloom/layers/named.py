"""Recurrent layers by name. Every signature is written out, so that editors and type checkers see it."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import nn
from torch.types import Device

from seqloom import cells
from seqloom.cells.attn_rnn import CONTEXT
from seqloom.core.init import Init
from seqloom.layers.dropouts import Dropouts, HeadsOptions, Options
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.whole import register_classes


class RNN(Recurrent):
    """Elman RNN with the arguments, results and parameter names of torch.nn.RNN; see `Recurrent` and `RNNCell`.

    Args:
        nonlinearity: "tanh" or "relu".

    Example:
        >>> seqloom.RNN(8, 16, nonlinearity="relu")(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

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
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("rnn", *common, nonlinearity=nonlinearity, **options)
        self.nonlinearity = nonlinearity


class LSTM(Recurrent):
    """LSTM with the arguments, results and parameter names of torch.nn.LSTM; see `Recurrent` and `LSTMCell`.

    Args:
        proj_size: Width of the outputs if they are projected, or 0.
        forget_bias: Initial bias of the forget gate; None for torch's.

    Example:
        >>> seqloom.LSTM(8, 16, forget_bias=1.0)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

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
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("lstm", *common, proj_size=proj_size, forget_bias=forget_bias, **options)


class GRU(Recurrent):
    """GRU with the arguments, results and parameter names of torch.nn.GRU; see `Recurrent` and `GRUCell`.

    Args:
        reset_after: Whether the reset gate acts after the recurrent product (torch) or before it (the paper).
        update_bias: Initial bias of the update gate; a high one keeps the state. None for torch's.

    Example:
        >>> seqloom.GRU(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        reset_after: bool = True,
        update_bias: float | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("gru", *common, reset_after=reset_after, update_bias=update_bias, **options)


class AttnRNN(Recurrent):
    """Recurrent layer whose state and input compete for attention; see `Recurrent` and `AttnRNNCell`.

    Args:
        heads: Attention heads; hidden_size must be a multiple.
        context: Rows that are attended to, some of "h", "x", "h+x" and "h*x".
        norm: Whether the candidate is h + o with layer normalisation, or just o.
        gate_bias: Initial bias of the gate; a low one keeps the state. None for the default.
        slots: Rows of the state.
        initial: Value of the first state.
        input_norm: Whether to normalise the projected input to the scale of the state, for inputs of any scale, such as
            word vectors.

    Example:
        >>> seqloom.AttnRNN(8, 16, heads=2)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        heads: int = 4,
        context: tuple[str, ...] = CONTEXT,
        norm: bool = True,
        gate_bias: float | None = None,
        slots: int = 1,
        initial: float = 1e-3,
        input_norm: bool = False,
        **options: Unpack[Options],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        own: dict[str, Any] = dict(heads=heads, context=context, norm=norm, gate_bias=gate_bias, slots=slots)
        super().__init__("attn_rnn", *common, **own, initial=initial, input_norm=input_norm, **options)


class LNGRU(Recurrent):
    """GRU with layer normalisation; see `Recurrent` and `LNGRUCell`.

    Args:
        update_bias: Initial bias of the update gate; a high one keeps the state.

    Example:
        >>> seqloom.LNGRU(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        update_bias: float | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ln_gru", *common, update_bias=update_bias, **options)


class LNLSTM(Recurrent):
    """LSTM with layer normalisation; see `Recurrent` and `LNLSTMCell`.

    Args:
        forget_bias: Initial bias of the forget gate.

    Example:
        >>> seqloom.LNLSTM(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ln_lstm", *common, forget_bias=forget_bias, **options)


class IndRNN(Recurrent):
    """RNN whose units each see only their own past; see `Recurrent` and `IndRNNCell`.

    Example:
        >>> seqloom.IndRNN(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("indrnn", *common, **options)


class MinGRU(Recurrent):
    """Minimal GRU, linear in its state and trained by a parallel scan; see `Recurrent` and `MinGRUCell`.

    Args:
        positive: Keep candidates above 0, as the paper does to work in log space.

    Example:
        >>> seqloom.MinGRU(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        positive: bool = False,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("min_gru", *common, positive=positive, **options)


class MinLSTM(Recurrent):
    """Minimal LSTM, linear in its state and trained by a parallel scan; see `Recurrent` and `MinLSTMCell`.

    Args:
        forget_bias: Initial bias of the forget gate.
        positive: Keep candidates above 0, as the paper does to work in log space.

    Example:
        >>> seqloom.MinLSTM(8, 16)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
        positive: bool = False,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("min_lstm", *common, forget_bias=forget_bias, positive=positive, **options)


class NTM(Recurrent):
    """Neural Turing Machine: an LSTM with a memory that it reads and writes; see `Recurrent` and `NTMCell`.

    Args:
        rows: Rows of the memory.
        width: Width of a row.

    Example:
        >>> seqloom.NTM(8, 16, rows=4, width=3)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        rows: int = 32,
        width: int = 16,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ntm", *common, rows=rows, width=width, **options)


class ODEGRU(Recurrent):
    """GRU in continuous time, for `timespans` between steps; see `Recurrent` and `ODEGRUCell`.

    Args:
        substeps: Steps of the solver between two inputs.
        update_bias: Initial bias of the update gate; a high one keeps the state.

    Example:
        >>> seqloom.ODEGRU(8, 16)(torch.randn(5, 3, 8), timespans=torch.rand(5, 3))[0].shape  # (T, B, D), (T, B)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        substeps: int = 4,
        update_bias: float | None = None,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("ode_gru", *common, substeps=substeps, update_bias=update_bias, **options)


class RNNAttention(Recurrent):
    """RNN that attends to its own last outputs; see `Recurrent` and `RNNAttentionCell`.

    Args:
        window: Number of past outputs to attend to.

    Example:
        >>> seqloom.RNNAttention(8, 16, window=4)(torch.randn(5, 3, 8))[0].shape  # (T, B, D) -> (T, B, H)
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        window: int = 16,
        **options: Unpack[HeadsOptions],
    ) -> None:
        common = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__("rnn_attention", *common, window=window, **options)


# Classes that torch.load reads with weights_only=True. Not `Recurrent`: its constructor can load a cell from a file.
NAMED = (RNN, LSTM, GRU, AttnRNN, LNGRU, LNLSTM, IndRNN, MinGRU, MinLSTM, NTM, ODEGRU, RNNAttention)
CELLS = [getattr(cells, f"{layer.__name__}Cell") for layer in NAMED]
register_classes([*NAMED, *CELLS, Dropouts, Init, nn.ModuleList])

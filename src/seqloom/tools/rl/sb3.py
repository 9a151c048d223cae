"""A recurrent policy for sb3-contrib's RecurrentPPO, with any cell; needs `pip install 'seqloom[rl]'`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.errors import require
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.rl.flat import FlatRecurrent, starts_first_only

require("sb3_contrib", "seqloom.tools.rl.sb3", "rl")
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy  # noqa: E402

Pair = tuple[Tensor, Tensor]


class PairedRecurrent(FlatRecurrent):
    """Divide the state into the two tensors (1, B, S / 2) that RecurrentPPO stores; those of an LSTM are h and c."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__(layer)
        self.input_size = layer.input_size
        self.num_layers, self.hidden_size = 1, (self.state_size + 1) // 2  # RecurrentPPO reads them
        self.is_pair = self.shapes == [(1, self.hidden_size)] * 2  # as of one layer of LSTM: needs no conversion

    def run(self, x: Tensor, states: Pair, starts: Tensor) -> tuple[Tensor, Pair]:
        """Run rollouts that follow each other in one batch.

        Args:
            x: (B * T, D), all steps of the first row first.
            states: Two tensors (1, B, S / 2).
            starts: (B * T,), 1 where a step is the first of an episode.

        Returns:
            The outputs (B * T, H) and the states after the last step.
        """
        rows = states[0].shape[1]
        x, starts = x.reshape(rows, -1, self.input_size), starts.reshape(rows, -1).bool()
        if self.is_pair and self.starts_at_zero and starts_first_only(starts):
            first = starts[:, 0].view(1, rows, 1)
            y, (h, c) = self.layer(x, (states[0].masked_fill(first, 0), states[1].masked_fill(first, 0)))
            return y.flatten(0, 1), (h, c)
        flat = torch.cat([s[0] for s in states], -1)[:, : self.state_size]
        y, end = self(x, flat, starts)
        if self.state_size % 2:
            end = torch.nn.functional.pad(end, (0, 1))
        first, second = end.unsqueeze(0).chunk(2, -1)
        return y.flatten(0, 1), (first, second)


class RecurrentPolicy(RecurrentActorCriticPolicy):
    """Play with any recurrent cell under sb3-contrib's RecurrentPPO.

    It takes the arguments of sb3-contrib's own policy and replaces its LSTMs. Where that policy calls the LSTM once for
    every step, this one runs all episodes of a minibatch in one call.

    Args:
        *args: Observation space, action space and schedule, which RecurrentPPO gives.
        cell: The name of a cell ("gru", "attn_rnn"), a subclass of `Cell`, or "path/to/file.py:MyCell".
        lstm_hidden_size: Units of each layer, of any cell.
        n_lstm_layers: Number of stacked layers.
        lstm_kwargs: Further arguments of `Recurrent`, such as `init` or `heads`.
        **settings: Further arguments of sb3-contrib's policy: `net_arch`, `shared_lstm`, `enable_critic_lstm`,
            `features_extractor_class` (NatureCNN for images, CombinedExtractor for dictionaries), and others.

    Example::

        from sb3_contrib import RecurrentPPO
        from seqloom.tools.rl.sb3 import RecurrentPolicy

        model = RecurrentPPO(RecurrentPolicy, "CartPole-v1", policy_kwargs={"cell": "gru", "lstm_hidden_size": 64})
        model.learn(10_000)
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # of another package
        cell: str | type[Cell] = "gru",
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        own = {"num_layers": n_lstm_layers, **(lstm_kwargs or {}), "batch_first": True}
        find_cell(cell)
        size = Recurrent(cell, 2, lstm_hidden_size, **own).output_size  # the heads above read it
        super().__init__(*args, lstm_hidden_size=size, **settings)
        self.own_settings = {
            "cell": cell,
            "lstm_hidden_size": lstm_hidden_size,
            "n_lstm_layers": n_lstm_layers,
            "lstm_kwargs": lstm_kwargs,
            "shared_lstm": self.shared_lstm,
            "enable_critic_lstm": self.enable_critic_lstm,
        }
        self.lstm_actor = PairedRecurrent(Recurrent(cell, self.features_dim, lstm_hidden_size, **own))
        if self.enable_critic_lstm:
            self.lstm_critic = PairedRecurrent(Recurrent(cell, self.features_dim, lstm_hidden_size, **own))
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        first: torch.optim.Optimizer = getattr(self, "optimizer")  # noqa: B009  # of the parameters that were replaced
        rate = first.param_groups[0]["lr"]
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate, **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(features: Tensor, lstm_states: Pair, episode_starts: Tensor, lstm: PairedRecurrent) -> Any:  # noqa: ANN401
        return lstm.run(features, lstm_states, episode_starts)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.own_settings}

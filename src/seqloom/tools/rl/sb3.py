"""A recurrent policy for sb3-contrib's RecurrentPPO, with any cell; needs `pip install 'seqloom[rl]'`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError, require
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.onnx.export import export_onnx
from seqloom.tools.rl.flat import FlatRecurrent, starts_first_only

require("sb3_contrib", "seqloom.tools.rl.sb3", "rl")
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy  # noqa: E402
from stable_baselines3.common.preprocessing import preprocess_obs  # noqa: E402

Pair = tuple[Tensor, Tensor]


class PairedRecurrent(FlatRecurrent):
    """Divide the state into the two tensors (1, B, S / 2) that RecurrentPPO stores; those of an LSTM are h and c."""

    def __init__(self, layer: Recurrent) -> None:
        super().__init__(layer)
        self.input_size = layer.input_size
        self.num_layers, self.hidden_size = 1, (self.state_size + 1) // 2  # RecurrentPPO reads them
        self.is_pair = self.shapes == [(1, self.hidden_size)] * 2  # as of one layer of LSTM: needs no conversion

    def run(self, x: Tensor, states: Pair, starts: Tensor) -> tuple[Tensor, Pair]:
        """Run concatenated rollouts in one batch.

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
    """A policy with any recurrent cell for sb3-contrib's RecurrentPPO.

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


def copy_weights(source: RecurrentActorCriticPolicy, target: RecurrentPolicy) -> None:
    """Copy the weights of sb3-contrib's own policy to a policy with `cell="lstm"`, which then acts identically.

    Args:
        source: The policy of an agent of sb3-contrib, of the same sizes.
        target: A policy with `cell="lstm"`; its optimiser is reset.

    Raises:
        RuntimeError: If the sizes differ.

    Example::

        old = RecurrentPPO.load("old.zip")
        new = RecurrentPPO(RecurrentPolicy, env, policy_kwargs={"cell": "lstm", "lstm_hidden_size": 256})
        copy_weights(old.policy, new.policy)
    """
    layers = ("lstm_actor", "lstm_critic")
    weights = {}
    for name, value in source.state_dict().items():
        layer, _, rest = name.partition(".")
        weights[f"{layer}.layer.{rest}" if layer in layers else name] = value
    target.load_state_dict(weights)


class _Step(nn.Module):
    """One step of a policy's actor, with its state as one tensor."""

    def __init__(self, policy: RecurrentPolicy) -> None:
        super().__init__()
        self.space, self.normalize_images = policy.observation_space, policy.normalize_images
        self.features, self.memory = policy.pi_features_extractor, policy.lstm_actor
        self.head = nn.Sequential(policy.mlp_extractor.policy_net, policy.action_net)

    def forward(self, seen: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(preprocess_obs(seen, self.space, normalize_images=self.normalize_images))
        y, state = self.memory(features.unsqueeze(1), state, starts.unsqueeze(1))
        return self.head(y.squeeze(1)), state


def export_policy(policy: RecurrentPolicy, file: Path | str) -> None:
    """Write one step of a policy to an ONNX file, for any number of games; needs `pip install 'seqloom[onnx]'`.

    The inputs are seen (B, ...), the observations; state (B, S), zeros at first; and starts (B,), 1 where an episode
    starts, which empties the state. The outputs are scores, from which actions are chosen, and new_state (B, S).
    Scores are the logits of discrete actions (the largest is the best action), or the means of continuous ones.

    Args:
        policy: The policy of an agent: `model.policy`.
        file: The file to write.

    Raises:
        UserError: If observations are dictionaries, or the extra `onnx` is not installed.

    Example::

        export_policy(model.policy, "policy.onnx")
    """
    space = policy.observation_space
    if space.shape is None:
        raise UserError(f"observation_space={space}: only observations of one array can be exported")
    training, device = policy.training, policy.device
    step, rows = _Step(policy.cpu()).eval(), Dim("rows", min=1, max=4096)
    seen = torch.as_tensor(np.stack([space.sample(), space.sample()]))
    example = (seen, torch.zeros(2, policy.lstm_actor.state_size), torch.ones(2))
    try:
        export_onnx(
            step,
            example,
            file,
            ({0: rows}, {0: rows}, {0: rows}),
            input_names=["seen", "state", "starts"],
            output_names=["scores", "new_state"],
        )
    finally:
        policy.to(device).train(training)

"""A recurrent layer that reads and writes keys of a TensorDict, for TorchRL; needs `pip install 'seqloom[torchrl]'`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqloom.core.errors import InputError, require
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.rl.flat import FlatRecurrent

require("tensordict", "seqloom.tools.rl.tensordicts", "torchrl")
from tensordict import TensorDictBase  # noqa: E402
from tensordict.nn import TensorDictModuleBase  # noqa: E402

if TYPE_CHECKING:
    from torchrl.envs import TensorDictPrimer


class RecurrentModule(TensorDictModuleBase):
    """Run a recurrent layer over single steps while acting and over rollouts while learning.

    Input of shape (D,) or (B, D) is a step, (B, T, D) are rollouts. A TensorDict of shape (T,) whose dimension is named
    "time", as rollouts of one environment of TorchRL are, is a rollout too.

    The state is one tensor of size S per row, whatever the cell. In a rollout it is read only at the first step; the
    steps at which `is_init` is True start from the layer's initial state.

    Args:
        layer: A recurrent layer that reads forwards.
        in_key: The key of the input.
        out_key: The key of the outputs.
        state_key: The key of the state. The state after a step is written to ("next", state_key).
        init_key: The key of the flags that mark the first step of an episode, (B, 1) or (B, T, 1).

    Example::

        from tensordict import TensorDict
        from seqloom.tools.rl.tensordicts import RecurrentModule

        memory = RecurrentModule(seqloom.GRU(3, 8, batch_first=True))
        step = memory(TensorDict({"observation": torch.randn(2, 3)}, batch_size=[2]))
        step["embed"]  # (2, 8)
        step["next", "recurrent_state"]  # (2, 8)
    """

    def __init__(
        self,
        layer: Recurrent,
        in_key: str = "observation",
        out_key: str = "embed",
        state_key: str = "recurrent_state",
        init_key: str = "is_init",
    ) -> None:
        super().__init__()
        self.memory = FlatRecurrent(layer)
        self.in_keys = [in_key, state_key, init_key]
        self.out_keys = [out_key, ("next", state_key)]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Return the transform that carries the state through an environment of TorchRL.

        Example::

            from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv

            env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker(), memory.make_tensordict_primer()))
        """
        require("torchrl", "make_tensordict_primer", "torchrl")
        from torchrl.data import Unbounded
        from torchrl.envs import TensorDictPrimer

        return TensorDictPrimer({self.in_keys[1]: Unbounded(self.memory.state_size)})

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the outputs and the state; a missing state is 0, and missing flags are False.

        Args:
            tensordict: Its input is (D,), (B, D) or (B, T, D); its state has S in place of D.

        Returns:
            The same TensorDict. The state of a rollout is that after the last step, at every step.
        """
        in_key, state_key, init_key = self.in_keys
        out_key, next_key = self.out_keys
        x = tensordict.get(in_key)
        shape = x.shape[:-1]
        if x.dim() not in (1, 2, 3):
            raise InputError(f"{in_key} must be (B, D) for a step or (B, T, D) for rollouts, got {tuple(x.shape)}")
        is_rollout = x.dim() == 3 or (x.dim() == 2 and list(tensordict.names or ())[-1:] == ["time"])
        rows = 1 if x.dim() == 1 or (is_rollout and x.dim() == 2) else shape[0]
        x = x.reshape(rows, -1, x.shape[-1])
        state, starts = tensordict.get(state_key, None), tensordict.get(init_key, None)
        size = self.memory.state_size
        state = x.new_zeros(rows, size) if state is None else state.reshape(rows, -1, size)[:, 0]
        y, end = self.memory(x, state, None if starts is None else starts.reshape(x.shape[:2]))
        tensordict.set(out_key, y.reshape(*shape, -1))
        tensordict.set(next_key, end.unsqueeze(1).expand(-1, x.shape[1], -1).reshape(*shape, size))
        return tensordict

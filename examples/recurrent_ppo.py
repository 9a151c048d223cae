"""Train a GRU with sb3-contrib's RecurrentPPO on a game that only memory wins.

    pip install 'seqloom[rl]'
    python examples/recurrent_ppo.py [--cell lstm] [--frames 12000]

The game is POPGym's RepeatPrevious: a deck of 52 cards is dealt one by one, and the agent names the suit of the card
that it saw `back` steps ago. All answers right give 1 in an episode, all wrong -1, guessing about -0.5.
"""

import argparse

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from seqloom.core.errors import UserError
from seqloom.tools.rl.sb3 import RecurrentPolicy


class RepeatPrevious(gymnasium.Env):
    """Observation: the suit as one of four, and 1 when an answer counts."""

    def __init__(self, back: int = 1, cards: int = 52) -> None:
        self.back, self.cards = back, cards
        self.observation_space = gymnasium.spaces.Box(0, 1, (5,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)

    def observe(self) -> np.ndarray:
        seen = np.zeros(5, np.float32)
        seen[self.suits[self.time]] = 1
        seen[4] = self.time >= self.back
        return seen

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.suits, self.time = self.np_random.permutation(np.arange(self.cards) % 4), 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = 0.0
        if self.time >= self.back:
            right = action == self.suits[self.time - self.back]
            reward = (1 if right else -1) / (self.cards - 1 - self.back)
        self.time += 1
        return self.observe(), reward, self.time == self.cards - 1, False, {}


def make(policy: str | type, copies: int = 16, seed: int = 0, **settings: object) -> RecurrentPPO:
    """Return an agent for copies of the game; a rollout is one episode of each."""
    games = VecMonitor(DummyVecEnv([RepeatPrevious] * copies))
    sizes = dict(n_steps=51, batch_size=51 * copies // 2, n_epochs=10, learning_rate=3e-3, gamma=0.5)
    return RecurrentPPO(policy, games, seed=seed, device="cpu", policy_kwargs=settings, **sizes)


def main(cell: str = "gru", frames: int = 12_000) -> float:
    """Train, and return the mean reward of the last hundred episodes."""
    torch.set_num_threads(1)  # the tensors are small
    model = make(RecurrentPolicy, cell=cell, lstm_hidden_size=64)
    while model.num_timesteps < frames:
        model.learn(51 * 16 * 3, reset_num_timesteps=False)
        reward = float(np.mean([episode["r"] for episode in model.ep_info_buffer]))
        print(f"{model.num_timesteps} frames: reward {reward:.3f}")
    return reward


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", default="gru", help="the name of a cell, see seqloom list cells")
    parser.add_argument("--frames", type=int, default=12_000)
    try:
        main(**vars(parser.parse_args()))
    except UserError as error:  # such as an unknown cell
        parser.error(str(error))

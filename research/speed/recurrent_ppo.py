"""Train RecurrentPPO with sb3-contrib's LSTM and with ours from the same weights: python -m research recurrent_ppo.

The game of examples/recurrent_ppo.py (52 cards, 16 copies), one thread, the same sizes, seeds and minibatches. Both
sides take turns, rollout by rollout. Frames per second count processor time of everything (game, rollouts, update), so
that other work on the machine does not matter; the first update of each side warms up and is left out. The curve has
the mean reward of the episodes of each rollout. `--frames` is for each side and seed; `--own` more frames with ours
alone. `--defaults` takes RecurrentPPO's own sizes: rollouts of 128 steps in 8 copies, minibatches of 128 frames.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from research.record import PROCESSOR, Stopwatch, build_parser, print_row, write_record

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from recurrent_ppo import RepeatPrevious
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from seqloom.tools.rl.sb3 import RecurrentPolicy, copy_weights

OWN = dict(n_steps=51, batch_size=16 * 51 // 2, n_epochs=10, learning_rate=3e-3, gamma=0.5)


class Side:
    """One agent, its processor time and its rewards."""

    def __init__(self, policy: Any, seed: int, defaults: bool, **more: Any) -> None:
        self.copies = 8 if defaults else 16
        games = VecMonitor(DummyVecEnv([RepeatPrevious] * self.copies))
        sizes = {} if defaults else OWN
        self.model = RecurrentPPO(policy, games, seed=seed, device="cpu", policy_kwargs=more, **sizes)
        self.frames = self.copies * self.model.n_steps
        self.update, self.rollout, self.rewards = [], [], []
        self.state = None

    def train(self) -> None:
        """Make one rollout and one update with this side's own stream of random numbers."""
        if self.state is not None:
            torch.set_rng_state(self.state[0])
            np.random.set_state(self.state[1])
        else:
            self.model.set_random_seed(self.model.seed)
        collect, times = self.model.collect_rollouts, []

        def timed(*args: Any, **settings: Any) -> bool:
            start = Stopwatch(PROCESSOR)
            result = collect(*args, **settings)
            times.append(start.seconds)
            return result

        self.model.collect_rollouts = timed
        start = Stopwatch(PROCESSOR)
        self.model.learn(self.frames, reset_num_timesteps=False)
        self.update.append(start.seconds - times[0])
        self.rollout.append(times[0])
        self.model.collect_rollouts = collect
        self.rewards.append(
            float(np.mean([episode["r"] for episode in list(self.model.ep_info_buffer)[-self.copies :]]))
        )
        self.state = (torch.get_rng_state(), np.random.get_state())

    def summarise(self) -> dict[str, Any]:
        """Return frames per second without the first rollout, and the curve."""
        update, rollout = sum(self.update[1:]), sum(self.rollout[1:])
        frames = self.frames * (len(self.update) - 1)
        return {
            "frames_per_s": round(frames / (update + rollout)),
            "update_s": round(update, 2),
            "rollout_s": round(rollout, 2),
            "rewards": [round(reward, 3) for reward in self.rewards],
        }


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--frames", type=int, default=8_000)
    parser.add_argument("--own", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--units", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in args.seeds:
        sides = {
            "sb3-contrib": Side("MlpLstmPolicy", seed, args.defaults, lstm_hidden_size=args.units),
            "seqloom": Side(RecurrentPolicy, seed, args.defaults, lstm_hidden_size=args.units, cell="lstm"),
        }
        copy_weights(sides["sb3-contrib"].model.policy, sides["seqloom"].model.policy)
        for count in range(0, args.frames + args.own, sides["seqloom"].frames):
            for name, side in sides.items():
                if count < args.frames or name == "seqloom":
                    side.train()
        results = {name: side.summarise() for name, side in sides.items()}
        ratio = results["seqloom"]["frames_per_s"] / results["sb3-contrib"]["frames_per_s"]
        rows += [
            {"seed": seed, "policy": name, "units": args.units, "defaults": args.defaults} | result
            for name, result in results.items()
        ]
        for row in rows[-2:]:
            print_row(row)
        print_row({"seed": seed, "ratio": round(ratio, 2)})
    write_record(args.json, rows=rows)

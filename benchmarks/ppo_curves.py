"""Record learning curves of RecurrentPPO with sb3-contrib's LSTM and with ours, one training per call.

    python benchmarks/ppo_curves.py --policy sb3-contrib --seed 0 --file curves/sb3-contrib-0.jsonl
    python benchmarks/ppo_curves.py --policy seqloom --seed 0 --file curves/seqloom-0.jsonl
    python benchmarks/ppo_curves.py --collect curves --json record.json --svg curves.svg

The game is RepeatPrevious of examples/recurrent_ppo.py in 8 copies. Both policies take RecurrentPPO's own sizes (rollouts
of 128 steps, minibatches of 128 frames, 10 epochs), the same seeds and the same first weights. A line of the file is one
rollout with its update: frames, wall-clock and processor seconds since the start, and the mean reward of the episodes that
ended in it. A training stops after `--frames` or `--seconds`, whichever comes first.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import build_parser, describe_run, print_row

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from recurrent_ppo import RepeatPrevious
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from seqloom.tools.rl.sb3 import RecurrentPolicy

COPIES = 8


def build_model(policy: str, args: Any) -> RecurrentPPO:
    """Return an agent with the first weights of sb3-contrib's policy."""
    games = VecMonitor(DummyVecEnv([lambda: RepeatPrevious(args.back, args.cards)] * COPIES))
    settings = dict(seed=args.seed, device="cpu", learning_rate=args.rate, gamma=args.gamma)
    sizes = {"lstm_hidden_size": args.units}
    model = RecurrentPPO("MlpLstmPolicy", games, policy_kwargs=sizes, **settings)
    if policy == "seqloom":
        weights = model.policy.state_dict()
        model = RecurrentPPO(RecurrentPolicy, games, policy_kwargs={**sizes, "cell": "lstm"}, **settings)
        names = {name.replace("lstm_actor.", "lstm_actor.layer.").replace("lstm_critic.", "lstm_critic.layer."): value
                 for name, value in weights.items()}
        model.policy.load_state_dict(names)
    model.set_random_seed(args.seed)
    return model


class Curve(BaseCallback):
    """Write a line after every update; stop when the time is over."""

    def __init__(self, file: Path, seconds: float) -> None:
        super().__init__()
        self.file, self.limit = file, seconds
        self.episodes: list[float] = []
        self.wall, self.processor = time.perf_counter(), time.process_time()
        self.rollout_s, self.row = 0.0, {}

    def _on_step(self) -> bool:
        self.episodes += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return time.perf_counter() - self.wall < self.limit

    def _on_rollout_start(self) -> None:
        self.write()
        self.began = time.process_time()

    def _on_rollout_end(self) -> None:
        self.rollout_s += time.process_time() - self.began
        self.row = {"frames": self.num_timesteps, "reward": round(float(np.mean(self.episodes)), 4)}
        self.episodes = []

    def _on_training_end(self) -> None:
        self.write()

    def write(self) -> None:
        """Append the last rollout, whose update is over now."""
        if self.row:
            self.row |= {
                "seconds": round(time.perf_counter() - self.wall, 3),
                "processor_s": round(time.process_time() - self.processor, 3),
                "rollout_s": round(self.rollout_s, 3),
            }
            with self.file.open("a") as lines:
                lines.write(json.dumps(self.row) + "\n")
            self.row = {}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--policy", choices=["sb3-contrib", "seqloom"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--back", type=int, default=1)
    parser.add_argument("--cards", type=int, default=52)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--units", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(args.policy, args)
    model.learn(args.frames, callback=Curve(args.file, args.seconds))
    print(args.file.read_text().splitlines()[-1])


if __name__ == "__main__":
    main()

"""Record learning curves of RecurrentPPO with sb3-contrib's LSTM and with ours, one training per call.

    python -m research ppo_curves --policy sb3-contrib --seed 0 --file curves/sb3-contrib-0.jsonl
    python -m research ppo_curves --policy seqloom --seed 0 --file curves/seqloom-0.jsonl
    python -m research ppo_curves --collect curves --json record.json

`python -m research generate` draws the newest record.

The game is RepeatPrevious of examples/recurrent_ppo.py in 8 copies. Both policies take RecurrentPPO's own sizes
(rollouts of 128 steps, minibatches of 128 frames, 10 epochs), the same seeds and the same first weights. The first line
of a file says what ran, each further one is a rollout with its update: frames, wall-clock and processor seconds since
the start, and the mean reward of the episodes that ended in it. A training stops after `--frames` or `--seconds`.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from research.record import PROCESSOR, Stopwatch, build_parser, describe_run, format_record, print_row

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from recurrent_ppo import RepeatPrevious
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from seqloom.tools.rl.sb3 import RecurrentPolicy, copy_weights

COPIES = 8
LEARNED = 0.9  # the reward at which the game counts as learned; the best is 1, guessing gives -0.5


def build_model(args: Any) -> RecurrentPPO:
    """Return an agent with the first weights of sb3-contrib's policy."""
    games = VecMonitor(DummyVecEnv([lambda: RepeatPrevious(args.back, args.cards)] * COPIES))
    settings = dict(seed=args.seed, device="cpu", learning_rate=args.rate, gamma=args.gamma)
    sizes = {"lstm_hidden_size": args.units}
    model = RecurrentPPO("MlpLstmPolicy", games, policy_kwargs=sizes, **settings)
    if args.policy == "seqloom":
        theirs = model.policy
        own = {**sizes, "cell": "lstm", "lstm_kwargs": {"kernel": args.kernel}}
        model = RecurrentPPO(RecurrentPolicy, games, policy_kwargs=own, **settings)
        copy_weights(theirs, model.policy)
    model.set_random_seed(args.seed)
    return model


class Curve(BaseCallback):
    """Write a line after every update; stop when the time is over."""

    def __init__(self, file: Path, seconds: float) -> None:
        super().__init__()
        self.file, self.limit = file, seconds
        self.episodes: list[float] = []
        self.wall, self.processor = Stopwatch(), Stopwatch(PROCESSOR)
        self.rollout_s = self.began = 0.0
        self.row: dict[str, float] = {}

    def _on_step(self) -> bool:
        self.episodes += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return self.wall.seconds < self.limit

    def _on_rollout_start(self) -> None:
        self.write()
        self.began = Stopwatch(PROCESSOR)

    def _on_rollout_end(self) -> None:
        self.rollout_s += self.began.seconds
        self.row = {"frames": self.num_timesteps, "reward": round(float(np.mean(self.episodes)), 4)}
        self.episodes = []

    def _on_training_end(self) -> None:
        self.write()

    def write(self) -> None:
        """Append the last rollout, whose update is over now."""
        if self.row:
            self.row |= {
                "seconds": round(self.wall.seconds, 3),
                "processor_s": round(self.processor.seconds, 3),
                "rollout_s": round(self.rollout_s, 3),
            }
            with self.file.open("a") as lines:
                lines.write(json.dumps(self.row) + "\n")
            self.row = {}


def summarise(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a file says of its run, and its training as a row of the record.

    Frames per second leave out the first rollout, which warms up. The last reward is the mean of ten rollouts.
    """
    about, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    if len(lines) < 2:
        raise SystemExit(f"{file}: {len(lines)} rollouts, expected at least 2; let the training run longer")
    first, last = lines[0], lines[-1]
    frames = last["frames"] - first["frames"]
    learned = next((line for line in lines if line["reward"] >= LEARNED), None)
    row = {
        **about.pop("training"),
        "frames": last["frames"],
        "seconds": last["seconds"],
        "frames_per_s": round(frames / (last["seconds"] - first["seconds"]), 1),
        "frames_per_processor_s": round(frames / (last["processor_s"] - first["processor_s"]), 1),
        "rollout_share": round(last["rollout_s"] / last["processor_s"], 3),
        "last_reward": round(float(np.mean([line["reward"] for line in lines[-10:]])), 4),
        "learned_at": learned and [learned["frames"], learned["seconds"]],
        "curve": [[line["frames"], line["seconds"], line["reward"]] for line in lines],
    }
    return about, row


def collect(folder: Path, json_file: Path | None) -> None:
    """Print every training of a folder and write them as one record."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"--collect: {folder} has no .jsonl files; record trainings with --file first")
    abouts, rows = zip(*map(summarise, files), strict=True)
    for row in rows:
        print_row({key: value for key, value in row.items() if key != "curve"})
    if json_file:
        json_file.write_text(format_record({**abouts[0], "learned": LEARNED, "rows": list(rows)}), encoding="utf-8")


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--collect", type=Path, metavar="FOLDER", help="make a record of these files instead")
    parser.add_argument("--policy", choices=["sb3-contrib", "seqloom"], default="seqloom")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--file", type=Path, default=Path("curve.jsonl"))
    parser.add_argument("--back", type=int, default=1)
    parser.add_argument("--cards", type=int, default=52)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--kernel", default="auto", help="of our LSTM")
    args = parser.parse_args()
    if args.collect:
        collect(args.collect, args.json)
        return
    torch.set_num_threads(1)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    names = ("policy", "seed", "back", "cards", "rate", "gamma", "units", "kernel")
    packages = {name: version(name) for name in ("sb3-contrib", "stable-baselines3", "gymnasium")}
    about = describe_run(packages=packages, training={name: getattr(args, name) for name in names})
    args.file.write_text(json.dumps(about) + "\n", encoding="utf-8")
    build_model(args).learn(args.frames, callback=Curve(args.file, args.seconds))

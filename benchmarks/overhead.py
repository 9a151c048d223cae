"""What the lab's loop costs over a loop written by hand: the same model, data, optimiser and clipping.

    python benchmarks/overhead.py [--steps 400] [--rounds 5]

Both train in turns and the fastest round of each counts. The lab's loop also checks every number,
keeps a schedule, shows progress, and writes its run; validations and tests are left out of both.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from seqloom.models.build import build
from seqloom.task import Split
from seqloom.tasks.registry import open_task
from seqloom.train import train
from seqloom.train_settings import Train
from seqloom.training.optimise import optimiser

CASES = {
    "small": ("pattern", {"steps": 32}, {"hidden": 32, "embedding": 32}),
    "middling": ("pattern", {"steps": 128}, {"hidden": 128, "embedding": 128}),
    "transformer": ("pattern", {"steps": 32}, {"hidden": 32, "embedding": 32, "model": "transformer"}),
}


def by_hand(task, settings: Train) -> float:
    torch.manual_seed(settings.seed)
    model = build(task, settings).model
    model.train()
    steps = optimiser(model, settings)
    began = time.perf_counter()
    for number, batch in enumerate(task.batches("train", batch=settings.batch, seed=settings.seed)):
        if number == settings.steps:
            break
        loss = nn.functional.cross_entropy(model(batch.x, batch.lengths), batch.y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        steps.step()
        steps.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def by_lab(task, settings: Train, folder: Path) -> float:
    with contextlib.redirect_stderr(io.StringIO()):
        train(task, settings, folder)
    return json.loads((folder / "last/state.json").read_text())["seconds"]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--steps", type=int, default=400)
    flags.add_argument("--rounds", type=int, default=5)
    given = flags.parse_args()
    torch.set_flush_denormal(True)
    for name, (task_name, options, more) in CASES.items():
        task = open_task(task_name, **options)
        task.splits = {"train": Split(None, "")}  # nothing to validate or test on
        settings = Train(steps=given.steps, validate_every=given.steps, batch=32, device="cpu", **more)
        hand, lab = [], []
        for number in range(given.rounds):
            with tempfile.TemporaryDirectory() as folder:
                hand.append(by_hand(task, settings))
                lab.append(by_lab(task, settings, Path(folder) / str(number)))
        each = [1000 * min(times) / given.steps for times in (hand, lab)]
        print(f"{name}: {each[0]:.3f} ms a step by hand, {each[1]:.3f} ms here: {100 * (each[1] / each[0] - 1):+.1f}%")


if __name__ == "__main__":
    main()

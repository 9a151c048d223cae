"""Measure the overhead of the lab's training loop over one written by hand, with the same model, data and optimiser.

    python -m research overhead [--steps 400] [--rounds 5] [--cases small] [--json results.json]

Both train in turns, and the fastest round of each counts, by the clock and by processor time. The lab's loop also
checks every number, keeps a schedule, shows progress and writes one checkpoint; neither validates or tests. On a busy
machine this says little, so single steps on one batch are also timed in turns: medians of the thread's time.
"""

import contextlib
import io
import statistics
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn

from research.record import PROCESSOR, THREAD, Stopwatch, build_parser, measure, take_plain_step, write_record
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Split
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.loop import Training
from seqloom.lab.training.model import build
from seqloom.lab.training.optimiser import build_optimiser
from seqloom.lab.training.step import Stepper
from seqloom.lab.training.train import train

CASES = {
    "small": ("pattern", {"steps": 32}, {"hidden": 32, "embedding": 32}),
    "middling": ("pattern", {"steps": 128}, {"hidden": 128, "embedding": 128}),
    "transformer": ("pattern", {"steps": 32}, {"hidden": 32, "embedding": 32, "model": "transformer"}),
}


def start_clocks():
    return Stopwatch(), Stopwatch(PROCESSOR)


def by_hand(task, settings):
    torch.manual_seed(settings.seed)
    model = build(task, settings).model
    model.train()
    steps = build_optimiser(model, settings)
    clocks = start_clocks()
    for number, batch in enumerate(task.batches("train", batch=settings.batch, seed=settings.seed)):
        if number == settings.steps:
            break
        take_plain_step(nn.functional.cross_entropy(model(batch.x, batch.lengths), batch.y), steps, settings.clip)
    return [clock.seconds for clock in clocks]


def by_lab(task, settings, folder):
    spent = []

    def time_epoch(self, epoch=Training._train_epoch):
        clocks = start_clocks()
        epoch(self)
        spent.append([clock.seconds for clock in clocks])

    whole, Training._train_epoch = Training._train_epoch, time_epoch
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            train(task, settings, folder)
    finally:
        Training._train_epoch = whole
    return [sum(times) for times in zip(*spent, strict=True)]


def single(task, settings):
    """Return the seconds of each step, by hand and by the lab, in turns."""
    model = build(task, settings).model.train()
    steps = build_optimiser(model, settings)
    lab = Stepper(build(task, settings).train(), settings, ProcessGroup())
    batch = next(iter(task.batches("train", batch=settings.batch)))

    def hand(number):
        take_plain_step(nn.functional.cross_entropy(model(batch.x, batch.lengths), batch.y), steps, settings.clip)

    times = [], []
    for number in range(settings.steps):
        for seconds, one in zip(times, (hand, lambda n: lab.step([batch], n, settings.lr)), strict=True):
            seconds.append(measure(partial(one, number), clock=THREAD))
    return times


def main():
    parser = build_parser(__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    results = {}
    for name in args.cases.split(","):
        task_name, options, more = CASES[name]
        task = open_task(task_name, **options)
        task.splits = {"train": Split(None, "")}  # nothing to validate or test on
        training = TrainSettings(steps=args.steps, validate_every=args.steps, batch=32, device="cpu", **more)
        hand, lab = [], []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                hand.append(by_hand(task, training))
                lab.append(by_lab(task, training, Path(folder) / "run"))
        results[name] = {}
        for i, which in enumerate(("clock", "processor")):
            a, b = (1000 * min(times[i] for times in rounds) / args.steps for rounds in (hand, lab))
            results[name][which] = {"by_hand_ms": round(a, 4), "lab_ms": round(b, 4), "over": round(b / a - 1, 4)}
            print(f"{name}, {which}: {a:.3f} ms a step by hand, {b:.3f} ms here: {100 * (b / a - 1):+.1f}%", flush=True)
        a, b = (1000 * statistics.median(times) for times in single(task, training))
        results[name]["single steps"] = {"by_hand_ms": round(a, 4), "lab_ms": round(b, 4), "over": round(b / a - 1, 4)}
        print(f"{name}, single steps: {a:.3f} ms by hand, {b:.3f} ms here: {100 * (b / a - 1):+.1f}%", flush=True)
    settings = {"steps": args.steps, "rounds": args.rounds, "cases": args.cases, "threads": torch.get_num_threads()}
    write_record(args.json, settings=settings, found=results)

"""Shared by the quality scripts: one training, and its record."""

import argparse
import copy
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from research.record import RESULTS, Stopwatch, build_parser, write_record
from seqloom.lab.training.update import Update


def flags(about: str | None, layers: list[str]) -> argparse.ArgumentParser:
    parser = build_parser(about, record=False)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data set's folder")
    parser.add_argument("--layers", nargs="+", default=layers, help="names of layers/registry.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a short check with little data and training")
    parser.add_argument("--out", type=Path, help="the JSON to write; by default one in research/results/<date>")
    return parser


def fit(
    model: nn.Module,
    epochs: Iterable[Iterable[Callable[[], Tensor]]],
    steps: int,
    lr: float,
    score: Callable[[], float],
    title: str,
) -> list[float]:
    """Train with AdamW, warm-up, cosine decay and clipping; leave the model at its best epoch by `score`.

    An epoch is a series of functions that return the loss of one batch. A higher score is better.
    """
    update = Update(model.parameters(), torch.optim.AdamW(model.parameters(), lr, weight_decay=1e-4), clip=1.0)
    warm, done = max(1, steps // 20), 0
    scores: list[float] = []
    best: dict[str, Tensor] = {}
    for number, epoch in enumerate(epochs, 1):
        model.train()
        start, losses = Stopwatch(), []
        for batch in epoch:
            loss = batch()
            share = min((done + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, done / steps))))
            update.take_step(loss, lr * share)
            done += 1
            losses.append(loss.detach())
        seconds = start.seconds
        model.eval()
        scores.append(score())
        if scores[-1] >= max(scores):
            best = copy.deepcopy(model.state_dict())
        loss = float(torch.stack(losses).mean())
        print(f"{title} epoch {number}: loss {loss:.4f} validation {scores[-1]:.4f} ({seconds:.1f} s)", file=sys.stderr)
    model.load_state_dict(best)
    model.eval()
    return scores


def summary(values: list[float]) -> dict[str, Any]:
    """Summarise one number per seed."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_deviation": spread, "n": len(values), "values": values}


def write(name: str, args: argparse.Namespace, settings: dict[str, Any], trainings: list[dict[str, Any]]) -> None:
    """Write the record of a study and print its table."""
    keys = sorted({(t["task"], t["layer"]) for t in trainings})
    table = [
        {"task": task, "layer": layer, "gate": rows[0]["gate"]}
        | {metric: summary([row["test"][metric] for row in rows]) for metric in rows[0]["test"]}
        for task, layer in keys
        if (rows := [t for t in trainings if (t["task"], t["layer"]) == (task, layer)])
    ]
    kind = torch.cuda.get_device_name().split()[-1].lower() if args.device == "cuda" else "cpu"
    file = args.out or RESULTS / f"{datetime.now(UTC):%Y-%m-%d}" / f"{kind}-{name}{'-quick' * args.quick}.json"
    results = {"study": name, "device": args.device, "settings": settings, "table": table, "trainings": trainings}
    write_record(file, **results)
    for row in table:
        scores = ", ".join(f"{metric} {row[metric]['mean']:.2f}" for metric in row if isinstance(row[metric], dict))
        print(f"{row['task']} {row['layer']}: {scores} (gate: {row['gate']})")
    print(file)

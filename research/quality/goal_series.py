"""The goal on series: ETTh1, 96 hours ahead."""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality.goal_recipe import Batch, Training
from research.quality.goal_size import Size
from research.studies.data.place import find
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.segments import SegmentForecast

MONTH = 30 * 24  # hours; 12 months for training, 4 for validation, 4 for test, as in the literature
LOOKBACK, HORIZON = 720, 96


@cache
def read_hours(device: torch.device) -> dict[str, Tensor]:
    """Return the seven series (hours, 7), scaled to the training part; later parts begin with the look-back."""
    (file,) = find("ett", "ETTh1.csv.gz")
    rows = list(csv.reader(io.StringIO(gzip.decompress(file.read_bytes()).decode())))[1:]
    x = torch.tensor([[float(v) for v in row[1:]] for row in rows], dtype=torch.float64)
    begin = x[: 12 * MONTH]
    x = ((x - begin.mean(0)) / begin.std(0, correction=0)).float().to(device)
    ends = {"train": (LOOKBACK, 12 * MONTH), "valid": (12 * MONTH, 16 * MONTH), "test": (16 * MONTH, 20 * MONTH)}
    return {name: x[first - LOOKBACK : last] for name, (first, last) in ends.items()}


def forecast_hours(
    seed: int, size: Size, *, segment: int, dropout: float, batch: int, lr: float, epochs: int = 10, hidden: int = 512
) -> Training:
    """Forecast all series by segments (SegRNN) with the mean absolute error as the loss, and keep the best weights."""
    data, d, B = read_hours(size.device), size.units(hidden), size.batch(batch)
    train = data["train"]
    count = len(train) - LOOKBACK - HORIZON + 1
    window = torch.arange(LOOKBACK + HORIZON, device=size.device)

    def draw(random: torch.Generator) -> Batch:
        first = torch.randint(count, (B, 1), generator=random, device=size.device)
        rows = train[first + window]
        return rows[:, :LOOKBACK], rows[:, LOOKBACK:]

    def score(model: nn.Module, split: str) -> dict[str, float]:
        return score_together([model], split)

    def score_together(models: list[nn.Module], split: str) -> dict[str, float]:
        rows = data[split].unfold(0, LOOKBACK + HORIZON, 1).transpose(1, 2)[: size.rows(100_000)]
        total = torch.zeros(2, device=size.device)
        for part in rows.split(512):
            forecast = torch.stack([model(part[:, :LOOKBACK]) for model in models]).mean(0)
            error = forecast - part[:, LOOKBACK:]
            total += torch.stack([error.square().sum(), error.abs().sum()])
        mse, mae = (total / (len(rows) * HORIZON * rows.shape[2])).tolist()
        return {"mse": mse, "mae": mae, "windows": len(rows)}

    def build() -> nn.Module:
        layer = Recurrent("gru", d, d, batch_first=True)
        return SegmentForecast(layer, HORIZON, train.shape[1], segment, scale="last", dropout=dropout)

    settings = {"model": "gru", "hidden": d, "lookback": LOOKBACK, "segment": segment, "batch": B, "epochs": epochs}
    settings |= {"dropout": dropout, "loss": "mean absolute error", "kept": "best validation", "precision": "tf32"}
    return Training(
        "etth1", f"gru, segments of {segment}, batches of {batch}, lr {lr:g}, dropout {dropout}", seed, build, draw,
        lambda model, b: F.l1_loss(model(b[0]), b[1]), score, size.steps(epochs * count // batch), lr, settings,
        ema=0.99, score_every=0.04, keep="mse", lower=True, together=score_together,
    )  # fmt: skip


def etth1(seed: int, size: Size) -> Training:
    """Follow SegRNN's own settings for this series."""
    return forecast_hours(seed, size, segment=24, dropout=0.1, batch=64, lr=3e-4)


def etth1_long(seed: int, size: Size) -> Training:
    return forecast_hours(seed, size, segment=48, dropout=0.5, batch=256, lr=1e-3)

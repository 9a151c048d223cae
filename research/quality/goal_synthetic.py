"""Goals on generated problems: copying after 1,000 steps and adding in 10,000."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality.goal_recipe import Batch, Training
from research.quality.goal_size import Size
from seqloom.core.init import Init
from seqloom.layers.recurrent.layer import Recurrent

SYMBOLS, KINDS = 10, 8  # copied symbols of so many kinds; ids 0 .. 7, then the blank and the sign


class StepReader(nn.Module):
    """A recurrent layer in bfloat16 and a head in float32, after every step or after the last."""

    def __init__(self, layer: Recurrent, outputs: int, every: bool, size: Size) -> None:
        super().__init__()
        self.layer, self.every, self.size = layer, every, size
        self.head = nn.Linear(layer.output_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        with self.size.low():
            y, last = self.layer(x)
        return self.head(y.float() if self.every else last[-1].float())


def copy(seed: int, size: Size, delay: int = 1_000) -> Training:
    """Copy ten symbols after a delay that grows to 1,000 steps; the answers weigh as much as the blanks."""
    delay, B, H = size.length(delay), size.batch(64), size.units(128)
    T, blank, sign = delay + 2 * SYMBOLS, KINDS, KINDS + 1
    longest = torch.ones((), device=size.device)  # the delay so far

    def place(data: Tensor, delays: Tensor) -> Batch:
        x = torch.full((len(data), T), blank, device=size.device)
        x[:, :SYMBOLS] = data
        x.scatter_(1, SYMBOLS - 1 + delays.unsqueeze(1), sign)
        y = torch.full((len(data), T), -1, device=size.device)  # after the answers nothing is asked
        at = torch.arange(T, device=size.device) - (SYMBOLS + delays).unsqueeze(1)
        y = torch.where(at < 0, blank, y)
        y.scatter_(1, (SYMBOLS + delays).unsqueeze(1) + torch.arange(SYMBOLS, device=size.device), data)
        return F.one_hot(x, KINDS + 2).float(), y

    def draw(random: torch.Generator) -> Batch:
        data = torch.randint(KINDS, (B, SYMBOLS), generator=random, device=size.device)
        share = torch.rand(B, generator=random, device=size.device)
        share[: B // 2] = 1.0  # half of the rows have the longest delay
        return place(data, (share * longest).long().clamp(1, delay))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(model(x).flatten(0, 1), y.clamp(min=0).flatten(), reduction="none").view(y.shape)
        answers, blanks = ((y >= 0) & (y < blank)).float(), (y == blank).float()
        return (losses * answers).sum() / answers.sum() + (losses * blanks).sum() / blanks.sum()

    def grow(share: float) -> None:
        longest.fill_(float(delay) ** min(1.0, share / 0.4))

    def score(model: nn.Module, split: str) -> dict[str, float]:
        n, total, right = size.rows(1_000 if split == "valid" else 10_000), 0.0, 0
        random = torch.Generator(size.device).manual_seed(1 if split == "valid" else 2)
        for rows in torch.randint(KINDS, (n, SYMBOLS), generator=random, device=size.device).split(500):
            x, y = place(rows, torch.full((len(rows),), delay, device=size.device))
            scores = model(x)
            total += float(F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="sum"))
            right += int((scores[:, -SYMBOLS:].argmax(-1) == rows).sum())
        return {"loss": total / (n * T), "accuracy": right / (n * SYMBOLS), "longest": float(longest)}

    def build() -> nn.Module:
        init = Init(chrono=3 * delay // 2)
        return StepReader(Recurrent("attn_rnn", KINDS + 2, H, batch_first=True, init=init), KINDS + 1, True, size)

    settings = {"model": "attn_rnn", "hidden": H, "batch": B, "delay": delay, "chrono": 3 * delay // 2}
    return Training(
        "copy", "attn_rnn", seed, build, draw, loss, score, size.steps(30_000), 3e-3,
        settings | {"loss": "mean of the answers + mean of the blanks", "precision": "bf16"},
        ema=0.999, betas=(0.9, 0.99), grow=grow, score_every=0.05,
    )  # fmt: skip


def adding(seed: int, size: Size, length: int = 10_000) -> Training:
    """Add the two marked numbers of 10,000."""
    T, B, H = size.length(length), size.batch(64), size.units(128)

    def make(n: int, random: torch.Generator) -> Batch:
        v = torch.rand(n, T, generator=random, device=size.device)
        first = torch.randint(T, (n, 1), generator=random, device=size.device)
        further = torch.randint(1, T, (n, 1), generator=random, device=size.device)
        m = torch.zeros_like(v).scatter_(1, torch.cat([first, (first + further) % T], 1), 1.0)
        return torch.stack([v, m], -1), (m * v).sum(1, keepdim=True)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def score(model: nn.Module, split: str) -> dict[str, float]:
        n, total, share = size.rows(500 if split == "valid" else 5_000), 0.0, size.rows(250)
        random = torch.Generator(size.device).manual_seed(1 if split == "valid" else 2)
        for _ in range(n // share):
            x, y = make(share, random)
            total += float(F.mse_loss(model(x), y, reduction="sum"))
        return {"mse": total / n}

    def build() -> nn.Module:
        return StepReader(Recurrent("attn_rnn", 2, H, batch_first=True, init=Init(chrono=T)), 1, False, size)

    settings = {"model": "attn_rnn", "hidden": H, "batch": B, "length": T, "chrono": T, "precision": "bf16"}
    return Training(
        "adding", "attn_rnn", seed, build, lambda random: make(B, random), loss, score, size.steps(3_000), 5e-3,
        settings, ema=0.99,
    )  # fmt: skip

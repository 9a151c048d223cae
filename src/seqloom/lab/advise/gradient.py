"""How far back a trained model looks: the gradient of its loss with respect to the input, against distance.

    g(d) = mean over examples of |dL_t / dx_(t - d)| / sum over d' of |dL_t / dx_(t - d')|

for the loss at a step t drawn at random (a sequence that is tagged, continued or written), or of the whole
sequence at its last step. The model is small and trained for a moment: it shows what is easy to find.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.lab.advise.curve import Curve, spread
from seqloom.lab.advise.sample import Sample
from seqloom.lab.advise.trial import Training, quiet
from seqloom.lab.data.task import Batch
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.settings import TrainSettings
from seqloom.models.embed import Embed

STEPS = 20, 300  # of training, at least and at most
ROWS = 96  # examples that gradients are taken of
LONGEST = 600
NOISE = 0.01  # of the largest: less is nothing
BOTH_WAYS = ("tag", "translate", "transcribe")
AT_A_STEP = ("tag", "generate", "translate", "transcribe")


def gradient(sample: Sample, seconds: float, device: torch.device, seed: int = 0) -> tuple[Curve, int]:
    """The curve, and how many steps the model was trained for."""
    ahead = sample.task.kind in BOTH_WAYS
    settings = TrainSettings(
        model="bi_gru" if ahead else "gru",
        hidden=32,
        embedding=32,
        lr=5e-3,
        segment=0,
        dropout=0.0,
        batch=32,
        seed=seed,
    )
    end = time.perf_counter() + seconds
    with quiet(seed, device):
        training = Training(sample, settings, device)
        training.until(end - 0.2 * seconds, *STEPS)
        far = min(int(np.quantile(sample.lengths, 0.95)) - 1, LONGEST)
        sums = np.zeros((2 * far + 1, 2))  # of norms and of how many, at far + d
        rows = np.arange(sample.fit, len(sample))[:ROWS]
        for part in np.array_split(rows, max(1, len(rows) // 32)):
            _add(sums, training.model, sample.batch(part.tolist()).to(device), far, np.random.default_rng(seed))
            if time.perf_counter() > end + seconds:
                break
    return _curve(sums, far, ahead), training.steps


def _add(sums: Any, model: ForTask, batch: Batch, far: int, random: np.random.Generator) -> None:
    t, loss, x = _loss(model, batch, random)
    (found,) = torch.autograd.grad(loss, x)
    norms = found.flatten(2).norm(dim=-1).double().cpu().numpy()  # (B, T)
    norms /= np.maximum(norms.sum(1, keepdims=True), 1e-30)  # what is learned well has a small loss, and counts as much
    d = t[:, None] - np.arange(norms.shape[1])
    real = (np.arange(norms.shape[1]) < batch.lengths.cpu().numpy()[:, None]) & (np.abs(d) <= far)
    np.add.at(sums, far + d[real], np.stack([norms[real], np.ones(real.sum())], 1))


def _loss(model: ForTask, batch: Batch, random: np.random.Generator) -> tuple[Any, Tensor, Tensor]:
    """The steps (B,) that the loss is read at, the loss, and the vectors that went in."""
    seen: list[Tensor] = []
    if batch.x.is_floating_point():
        batch.x.requires_grad_()
        seen.append(batch.x)
    embeds = [m for m in model.modules() if isinstance(m, Embed)]
    hook = embeds[0].register_forward_hook(lambda *a: seen.append(a[2])) if embeds else None
    scores, _ = model.scores(batch)
    if hook is not None:
        hook.remove()
    if not isinstance(model, _at_a_step()):
        return batch.lengths.cpu().numpy() - 1, model.row_losses(scores, batch).sum(), seen[0]
    logits, y = (scores[0], scores[0].argmax(-1)) if isinstance(scores, tuple) else (scores, batch.y)
    assert isinstance(y, Tensor)
    known = [np.flatnonzero(row) for row in (y >= 0).cpu().numpy()]
    most = batch.lengths.tolist() if logits.shape[1] == batch.x.shape[1] else [logits.shape[1]] * len(y)
    t = np.array([random.choice(k[k < n]) if (k < n).any() else 0 for k, n in zip(known, most, strict=True)])
    at = torch.arange(len(t)), torch.from_numpy(t)
    return t, F.cross_entropy(logits[at].float(), y[at].clamp(min=0), reduction="sum"), seen[0]


def _at_a_step() -> tuple[type[ForTask], ...]:
    from seqloom.lab.training import for_task

    return tuple(getattr(for_task, f"For{kind.capitalize()}") for kind in AT_A_STEP)


def _curve(sums: Any, far: int, ahead: bool) -> Curve:
    """The mean around each of some distances; what is below NOISE of the largest is nothing."""
    before = spread(far)
    distances = [*(-d for d in reversed(before[1:])), *before] if ahead else before
    edges = [-far - 1, *((a + b) / 2 for a, b in pairwise(distances)), far + 1]
    at = np.arange(-far, far + 1)
    means = []
    for low, high in pairwise(edges):
        norms, n = sums[(at > low) & (at <= high)].sum(0)
        means.append(float(norms / n) if n else 0.0)
    largest = max(means, default=0.0)
    return Curve(tuple(distances), tuple(m if m > NOISE * largest else 0.0 for m in means))

"""How far back a trained model looks: the gradient of its loss with respect to the input, by distance.

    g(d) = mean over examples of |dL_t / dx_(t - d)| / sum over d' of |dL_t / dx_(t - d')|

for the loss at a random step t (tagging, generation, translation, transcription), or of the whole sequence at its
last step. The model is small and trained for a few seconds: it shows which dependencies are easy to find.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.lab.advise.curve import DistanceCurve, space_distances
from seqloom.lab.advise.quick_training import QuickTraining, isolate_training
from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.data.task import Batch
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.models.embed import Embed

TRAINING_STEPS = 20, 300  # minimum and maximum
GRADIENT_ROWS = 96  # examples whose gradients are computed
LONGEST_DISTANCE = 600
NOISE = 0.01  # share of the largest value below which a value counts as 0


def measure_gradient(sample: Sample, seconds: float, device: torch.device, seed: int = 0) -> tuple[DistanceCurve, int]:
    """Return the gradient by distance, and how many steps the model was trained for."""
    kind = kind_of(sample.task)
    ahead = kind.padding is not None and not kind.continues_text
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
    with isolate_training(seed, device):
        training = QuickTraining(sample, settings, device)
        training.train_until(end - 0.2 * seconds, *TRAINING_STEPS)
        far = min(int(np.quantile(sample.lengths, 0.95)) - 1, LONGEST_DISTANCE)
        sums = np.zeros((2 * far + 1, 2))  # sum and count of norms at far + d
        rows = np.arange(sample.fit, len(sample))[:GRADIENT_ROWS]
        for part in np.array_split(rows, max(1, len(rows) // 32)):
            batch = sample.batch(part.tolist()).to(device)
            t, loss, x = _loss(training.model, batch, np.random.default_rng(seed), kind.padding is not None)
            _add_norms(sums, t, loss, x, batch.lengths, far)
            if time.perf_counter() > end + seconds:
                break
    return _curve(sums, far, ahead), training.steps


def _add_norms(sums: Array, t: Array, loss: Tensor, x: Tensor, lengths: Tensor, far: int) -> None:
    (grad,) = torch.autograd.grad(loss, x)
    norms = grad.flatten(2).norm(dim=-1).double().cpu().numpy()  # (B, T)
    norms /= np.maximum(norms.sum(1, keepdims=True), 1e-30)  # examples with a small loss count equally
    d = t[:, None] - np.arange(norms.shape[1])
    real = (np.arange(norms.shape[1]) < lengths.cpu().numpy()[:, None]) & (np.abs(d) <= far)
    np.add.at(sums, far + d[real], np.stack([norms[real], np.ones(real.sum())], 1))


def _loss(model: ForTask, batch: Batch, random: np.random.Generator, at_a_step: bool) -> tuple[Any, Tensor, Tensor]:
    """Return the steps (B,) at which the loss is taken, the loss, and the input vectors.

    The loss is that of a random step if targets are sequences (`at_a_step`), otherwise that of the row.
    """
    inputs: list[Tensor] = []
    if batch.x.is_floating_point():
        batch.x.requires_grad_()
        inputs.append(batch.x)
    embeds = [m for m in model.modules() if isinstance(m, Embed)]
    hook = embeds[0].register_forward_hook(lambda *a: inputs.append(a[2])) if embeds else None
    scores, _ = model.scores(batch)
    if hook is not None:
        hook.remove()
    if not at_a_step:
        return batch.lengths.cpu().numpy() - 1, model.row_losses(scores, batch).sum(), inputs[0]
    logits, y = (scores[0], scores[0].argmax(-1)) if isinstance(scores, tuple) else (scores, batch.y)
    assert isinstance(y, Tensor)
    known = [np.flatnonzero(row) for row in (y >= 0).cpu().numpy()]
    most = batch.lengths.tolist() if logits.shape[1] == batch.x.shape[1] else [logits.shape[1]] * len(y)
    t = np.array([random.choice(k[k < n]) if (k < n).any() else 0 for k, n in zip(known, most, strict=True)])
    at = torch.arange(len(t)), torch.from_numpy(t)
    return t, F.cross_entropy(logits[at].float(), y[at].clamp(min=0), reduction="sum"), inputs[0]


def _curve(sums: Array, far: int, ahead: bool) -> DistanceCurve:
    """Average the norms around each distance; values below NOISE of the largest become 0."""
    before = space_distances(far)
    distances = [*(-d for d in reversed(before[1:])), *before] if ahead else before
    edges = [-far - 1, *((a + b) / 2 for a, b in pairwise(distances)), far + 1]
    at = np.arange(-far, far + 1)
    means = []
    for low, high in pairwise(edges):
        norms, n = sums[(at > low) & (at <= high)].sum(0)
        means.append(float(norms / n) if n else 0.0)
    largest = max(means, default=0.0)
    return DistanceCurve(tuple(distances), tuple(m if m > NOISE * largest else 0.0 for m in means))

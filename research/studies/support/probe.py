"""Linear probes: how much of a symbol can be read from a vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.lab.training.update import Update

PENALTIES = (1e-4, 1e-2, 1e-1)  # of the squared weights; the best on validation rows is used
STEPS, RATE = 100, 0.1  # of Adam on all rows; the loss is convex, and whitened features make its steps few
MIN_SHARE = 1e-10  # of the largest variance: directions with less are left out


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy and cross-entropy (nats) on test rows of one probe per place: (places,) each."""

    accuracy: Tensor
    nats: Tensor


def fit_probes(features: Tensor, labels: Tensor, classes: int, train: int, valid: int) -> ProbeResult:
    """Fit one softmax regression for each place, and score it on the rows that it was not fitted to.

    Args:
        features: (places, rows, F).
        labels: (rows,), from 0 to classes - 1.
        classes: Number of classes, K.
        train: Rows to fit the weights to: the first ones.
        valid: Rows to choose the penalty with: the next ones. The others are test rows.

    Returns:
        The scores on the test rows.
    """
    scaled = _whiten(features, train)
    places, R = len(features), len(PENALTIES)
    with torch.inference_mode(False), torch.enable_grad():
        scaled, labels = scaled.clone(), labels.clone()
        W = scaled.new_zeros(places, scaled.shape[2], R * classes).requires_grad_()
        b = scaled.new_zeros(places, 1, R * classes).requires_grad_()
        penalty = scaled.new_tensor(PENALTIES).view(1, 1, R, 1)
        optimiser = torch.optim.Adam([W, b], RATE)
        update = Update([W, b], optimiser)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
        for _ in range(STEPS):
            losses = _losses(scaled[:, :train], labels[:train], W, b, classes)
            size = (W.unflatten(2, (R, classes)).square() * penalty).sum()
            update.take_step(losses.mean(1).sum() + size)
            schedule.step()
    with torch.no_grad():
        chosen = _losses(scaled[:, train : train + valid], labels[train : train + valid], W, b, classes).mean(1)
        best = chosen.argmin(1)  # (places,)
        test, answers = scaled[:, train + valid :], labels[train + valid :]
        logits = torch.baddbmm(b, test, W).unflatten(2, (R, classes))
        logits = logits[torch.arange(places, device=best.device), :, best]  # (places, rows, K)
        nats = F.cross_entropy(logits.flatten(0, 1), answers.repeat(places), reduction="none").view(places, -1).mean(1)
        return ProbeResult((logits.argmax(-1) == answers).double().mean(1), nats)


def _whiten(features: Tensor, train: int) -> Tensor:
    """Return features (places, rows, F) without correlations and with variance 1 on the first `train` rows."""
    x = features.double()
    x = x - x[:, :train].mean(1, keepdim=True)
    own = x[:, :train]
    variances, directions = torch.linalg.eigh(own.transpose(1, 2) @ own / train)  # (places, F), (places, F, F)
    least = (MIN_SHARE * variances.amax(1, keepdim=True)).clamp(min=1e-30)  # constant features have none
    scales = torch.where(variances > least, variances.clamp(min=1e-30).rsqrt(), 0.0)
    return ((x @ directions) * scales.unsqueeze(1)).float()


def _losses(x: Tensor, y: Tensor, W: Tensor, b: Tensor, classes: int) -> Tensor:
    """Return cross-entropies (places, rows, penalties)."""
    logits = torch.baddbmm(b, x, W).unflatten(2, (-1, classes))  # (places, rows, R, K)
    right = logits.gather(3, y.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)).squeeze(3)
    return torch.logsumexp(logits, 3) - right

"""Convert scores to a class: calibrated probabilities, a threshold, and abstention.

    p = softmax((z - log w) / T)         z: scores of the model, w: class weights of its training
    T                                    minimises the log loss of the validation rows (Guo et al. 2017)
    class = argmax z                     with a reject option, argmax p
            positive if p(positive) >= t with a threshold t for two classes
    no class                             if p(class) < reject

Dividing by w undoes what class weights do to the probabilities of a model (King and Zeng 2001).
A run stores its decision in decision.json; a run without that file takes the class of highest probability.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.stats.metrics import Array

FILE, FORMAT = "decision.json", 1
FEWEST_ROWS = 30  # validation rows that are needed to fit a temperature
LOWEST, HIGHEST = 0.05, 20.0  # temperatures
GOALS = ("recall", "precision", "accuracy")


@dataclass(frozen=True)
class Decision:
    """The conversion of scores to probabilities and a class."""

    positive: int = 1  # the class that counts as positive, of two
    temperature: float = 1.0  # T
    weights: tuple[float, ...] = ()  # the class weights w of the training; empty for none
    # Minimum probability of the positive class to predict it; None for the class of highest score.
    threshold: float | None = None
    reject: float = 0.0  # minimum probability of a class to predict it; 0 to predict always
    facts: dict[str, Any] = field(default_factory=dict)  # the results on the validation rows, for the report

    def calibrate(self, z: Tensor) -> Tensor:
        """Return the log of unnormalised probabilities, (..., K)."""
        if self.weights:
            z = z - torch.tensor(self.weights, dtype=z.dtype, device=z.device).log()
        return z if self.temperature == 1.0 else z / self.temperature

    def choose(self, calibrated: Tensor) -> Tensor:
        """Return the class of each row of calibrated scores (..., K)."""
        if self.threshold is not None:
            is_positive = calibrated.float().softmax(-1)[..., self.positive] >= self.threshold
            return torch.where(is_positive, self.positive, 1 - self.positive)
        if self.weights and not self.reject:
            w = torch.tensor(self.weights, dtype=calibrated.dtype, device=calibrated.device).log()
            return (calibrated * self.temperature + w).argmax(-1)
        return calibrated.argmax(-1)


def save(folder: Path, decision: Decision) -> None:
    """Write the decision of a run to its folder."""
    checkpoint.write_file(folder / FILE, sealed.dumps({"format": FORMAT, **asdict(decision)}))


def load(folder: Path, classes: int | None = None) -> Decision:
    """Read the decision of a run; the default if it has none.

    Args:
        classes: The number of classes that the decision must fit; not checked by default.

    Raises:
        DamagedError: If the file was changed, or does not fit.
    """
    file = folder / FILE
    if not file.is_file():
        return Decision()
    record = sealed.loads(file.read_bytes(), file, FORMAT)
    with sealed.interpret(file):
        record.pop("format")
        decision = TypeAdapter(Decision).validate_python(record)
        if not (decision.positive >= 0 and 0 <= decision.reject <= 1 and 0 <= (decision.threshold or 0.0) <= 1):
            raise UserError("a class or a probability is out of range")
        if not all(0 < value < math.inf for value in (decision.temperature, *decision.weights)):
            raise UserError("the temperature and the class weights are positive numbers")
        if classes is not None and len(decision.weights) not in (0, classes):
            raise UserError(f"{len(decision.weights)} class weights do not fit {classes} classes")
        has_threshold = decision.threshold is not None
        if classes is not None and (decision.positive >= max(2, classes) or (has_threshold and classes != 2)):
            raise UserError(f"a positive class or a threshold does not fit {classes} classes")
        return decision


def parse_goal(text: str, setting: str, goals: Sequence[str]) -> tuple[str, float]:
    """Parse "recall=0.9" or "0.9" into a goal, "" for a plain number, and its value.

    Raises:
        UserError: If it is neither, or the number is not between 0 and 1.
    """
    match = re.fullmatch(r"(?:(\w+)=)?([\d.]+(?:e-?\d+)?)", text.strip().lower())
    names = [f"{goal}=0.9" for goal in goals]
    expected = f"write a number between 0 and 1, or {' or '.join(names)}"
    if text.strip().lower() == "f1" and "precision" in goals:
        return "f1", 1.0
    if match is None or (match[1] or goals[0]) not in goals:
        raise UserError(f"{setting}={text}: {expected}")
    try:
        value = float(match[2])
    except ValueError:
        raise UserError(f"{setting}={text}: {expected}") from None
    if not 0 <= value <= 1:
        raise UserError(f"{setting}={text}: {expected}")
    return match[1] or "", value


def parse_text(threshold: str | None, reject: str | None) -> tuple[str, float]:
    """Parse whichever of the two is given, as `parse_goal` does."""
    if threshold is not None:
        return parse_goal(threshold, "threshold", GOALS[:2])
    return parse_goal(reject or "0", "reject", GOALS[2:])


def check_threshold(text: str, classes: int | None) -> None:
    """Raise a UserError if a threshold cannot be parsed or there are not two classes."""
    parse_goal(text, "threshold", GOALS[:2])
    if classes != 2:
        what = "this task has none" if classes is None else f"this task has {classes}"
        raise UserError(f"threshold={text} is for two classes; {what}")


def check_reject(text: str, classes: int | None) -> None:
    """Raise a UserError if a reject option cannot be parsed or the task has no classes."""
    parse_goal(text, "reject", GOALS[2:])
    if classes is None:
        raise UserError(f"reject={text} is for tasks that predict a class")


def fit_decision(decision: Decision, z: Tensor, y: Tensor, threshold: str = "", reject: str = "") -> Decision:
    """Fit the temperature, and choose threshold and reject option, on validation rows.

    Args:
        decision: The positive class and the class weights.
        z: Scores of the model, (N, K).
        y: Classes (N,); rows with y < 0 are left out.
        threshold: "recall=0.9", "precision=0.9", "f1", a number, or "" for the class of highest score.
        reject: "accuracy=0.9", a probability, or "" to predict always.
    """
    z, y = z[y >= 0].double(), y[y >= 0]
    if len(y) >= FEWEST_ROWS:
        before = log_loss(replace(decision, temperature=1.0), z, y)
        decision = replace(decision, temperature=_fit_temperature(decision, z, y))
        facts = {"log_loss_before": before, "log_loss": log_loss(decision, z, y), "rows": len(y)}
        decision = replace(decision, facts=facts)
    p = decision.calibrate(z).softmax(-1).numpy() if len(y) else np.zeros((0, z.shape[1]))
    if threshold:
        decision = _set_threshold(decision, p[:, decision.positive], (y == decision.positive).numpy(), threshold)
    if reject:
        decision = _set_reject(decision, p, y.numpy(), reject)
    return decision


def log_loss(decision: Decision, z: Tensor, y: Tensor) -> float:
    """Return the mean log loss of calibrated scores."""
    return float(torch.nn.functional.cross_entropy(decision.calibrate(z), y))


def _fit_temperature(decision: Decision, z: Tensor, y: Tensor) -> float:
    from scipy.optimize import minimize_scalar

    def loss(log_t: float) -> float:
        return log_loss(replace(decision, temperature=math.exp(log_t)), z, y)

    if not torch.isfinite(z).all() or bool((decision.calibrate(z).argmax(-1) == y).all()):
        return 1.0  # without a wrong row, the loss falls to 0 with T, whatever the true probabilities are
    found = minimize_scalar(loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded")
    best = math.exp(float(found.x))
    return round(best, 4) if loss(math.log(best)) < loss(0.0) else 1.0


def _set_threshold(decision: Decision, p: Array, is_positive: Array, text: str) -> Decision:
    goal, value = parse_goal(text, "threshold", GOALS[:2])
    if not goal:
        return replace(decision, threshold=value)
    if not is_positive.any():
        return decision
    chosen = _choose_threshold(p, is_positive, goal, value)
    said = p >= chosen
    facts = {
        "goal": text,
        "positives": int(is_positive.sum()),
        "recall": float((said & is_positive).sum() / is_positive.sum()),
        "precision": float((said & is_positive).sum() / max(1, said.sum())),
    }
    return replace(decision, threshold=chosen, facts=decision.facts | facts)


def _choose_threshold(p: Array, is_positive: Array, goal: str, value: float) -> float:
    """Return the highest threshold that reaches a recall, the lowest that reaches a precision, or that of best F1."""
    levels, tp, said = _count_from_levels(p, is_positive)
    recall, precision = tp / is_positive.sum(), tp / said
    if goal == "recall":
        k = int(np.flatnonzero(recall >= value)[-1])
    elif goal == "precision":
        reached = np.flatnonzero(precision >= value)
        k = int(reached[0]) if len(reached) else int(precision.argmax())
    else:
        k = int((2 * tp / (said + is_positive.sum())).argmax())
    return float(levels[k] if k == 0 else (levels[k - 1] + levels[k]) / 2)


def _count_from_levels(p: Array, is_counted: Array) -> tuple[Array, Array, Array]:
    """Return the distinct values of p, ascending, and how many counted rows and rows are at least as large as each."""
    levels, order = np.unique(p), np.argsort(p, kind="stable")
    at = np.searchsorted(p[order], levels)
    return levels, is_counted[order][::-1].cumsum()[::-1][at], len(p) - at


def _set_reject(decision: Decision, p: Array, y: Array, text: str) -> Decision:
    """Set the probability below which no class is predicted."""
    goal, value = parse_goal(text, "reject", GOALS[2:])
    best = p.max(1) if len(p) else np.zeros(0)
    right = p.argmax(1) == y if len(p) else np.zeros(0, dtype=bool)
    chosen = value
    if goal and len(p):
        levels, right_rows, rows = _count_from_levels(best, right)
        reached = np.flatnonzero(right_rows / rows >= value)
        k = int(reached[0]) if len(reached) else len(levels) - 1
        chosen = 0.0 if k == 0 else float((levels[k - 1] + levels[k]) / 2)
    keeps = best >= chosen
    facts = {"reject_goal": text, "kept": float(keeps.mean()) if len(best) else 1.0}
    if keeps.any():
        facts["accuracy_of_kept"] = float(right[keeps].mean())
    return replace(decision, reject=chosen, facts=decision.facts | facts)


def explain_decision(names: Sequence[str], decision: Decision) -> list[str]:
    """Describe in sentences the chosen threshold or reject option, and its results on the validation rows."""
    text, facts = [], decision.facts
    if decision.threshold is not None:
        sentence = f"{names[decision.positive]} is predicted from a probability of {decision.threshold:.3g}."
        if "goal" in facts:
            sentence += (
                f" It was chosen for {facts['goal']} on the validation rows, of which {facts['positives']:,} are of "
                f"this class: recall {facts['recall']:.1%}, precision {facts['precision']:.1%}."
            )
        text.append(sentence)
    if decision.reject:
        sentence = f"Below a probability of {decision.reject:.3g} there is no prediction."
        if "accuracy_of_kept" in facts:
            sentence += (
                f" On the validation rows {facts['kept']:.1%} are kept, and {facts['accuracy_of_kept']:.1%} of them "
                "are right."
            )
        text.append(sentence)
    if decision.weights:
        text.append("Classes were weighted in training; the probabilities are corrected for it.")
    return text

"""What a checkpoint holds of a `Stepper`: facts for JSON, tensors by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.lab.training import optimiser
from seqloom.lab.training.checkpoint import load_weights, weights_of
from seqloom.lab.training.step import Stepper


def stepper_facts(stepper: Stepper) -> dict[str, Any]:
    averaged = stepper.average.steps if stepper.average else 0
    return {"parts": stepper.parts, "scaler": stepper.scaler.state_dict(), "averaged": averaged}


def stepper_tensors(stepper: Stepper, carried: Sequence[dict[int, Any]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights of the model as it is used, and what else training needs; `carried` of each process."""
    weights = weights_of(stepper.model)
    state = optimiser.optimiser_state(stepper.optimiser, stepper.model)
    training = {f"optimiser/{key}": tensor for key, tensor in state.items()}
    if stepper.average:
        training |= {f"weights/{name}": w for name, w in weights.items()}
        weights = stepper.average.weights
    for rank, states in enumerate(carried):
        training |= {f"carried/{rank}/{key}": tensor for key, tensor in _named(states).items()}
    return weights, training


def restore_stepper(
    stepper: Stepper, facts: dict[str, Any], weights: dict[str, Tensor], training: dict[str, Tensor]
) -> None:
    """Put back what `facts_of` and `tensors_of` took."""
    stepper.parts = facts["parts"]
    stepper.scaler.load_state_dict(facts["scaler"])
    if stepper.average:
        stepper.average.steps = facts["averaged"]
        for name, w in weights.items():
            stepper.average.weights[name].copy_(w)
        weights = _under("weights/", training)
    load_weights(stepper.model, weights)
    optimiser.restore_optimiser(stepper.optimiser, stepper.model, _under("optimiser/", training))
    stepper.carried = _states(_under(f"carried/{stepper.processes.rank}/", training), stepper.device)


def _under(start: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}


def _named(states: dict[int, Any]) -> dict[str, Tensor]:
    """ "part/number" -> tensor; a state that is one tensor, and no tuple, has no number."""
    found = {}
    for part, state in states.items():
        if isinstance(state, Tensor):
            found[f"{part}/"] = state
        else:
            found |= {f"{part}/{i}": tensor for i, tensor in enumerate(state or ())}
    return found


def _states(named: dict[str, Tensor], device: torch.device) -> dict[int, Any]:
    """What `_named` took apart; a file does not keep the order of its tensors."""
    found: dict[int, Any] = {}
    for key, tensor in sorted(named.items(), key=lambda item: int(item[0].partition("/")[2] or 0)):
        part, _, number = key.partition("/")
        here = tensor.to(device)
        found[int(part)] = (*found.get(int(part), ()), here) if number else here
    return found

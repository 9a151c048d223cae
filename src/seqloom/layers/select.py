"""Some rows of a layer's state, in any order: what a search does when it drops and copies hypotheses."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def select(layer: nn.Module, state: Any, rows: Tensor) -> Any:
    """The state of these rows of the batch; `rows` (N,) are row numbers, which may repeat.

    A layer with a `select(state, rows)` of its own is asked, as all of seqloom are; states of torch's layers are
    (layers, B, ...), one tensor or a tuple of them. None, the state before the first step, stays None.
    """
    if state is None:
        return None
    own = getattr(layer, "select", None)
    if callable(own):
        return own(state, rows)
    if isinstance(state, Tensor):
        return state.index_select(1, rows)
    return tuple(s.index_select(1, rows) for s in state)

"""The input of a scan, and one step of it: shared by the reference loop and the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import resolve
from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.masks import make_mask
from seqloom.core.plurals import count


@dataclass(frozen=True, eq=False)
class ScanJob:
    """The input of a scan: one batch of sequences for one cell in one direction."""

    x: Tensor  # (B, T, D)
    state: State
    lengths: Tensor | None = None  # (B,): a row's steps from its length on are padding
    reset: Tensor | None = None  # (B, T) bool: reset the state before these steps
    dt: Tensor | None = None  # (B, T): time since the previous step, for cells with a `dt` argument
    mask: Tensor | None = None  # (B, H): recurrent dropout, drawn once per sequence
    keep: tuple[Tensor, ...] = ()  # zoneout: (B, T, ...) for each state, the share of the old value that is kept
    layers: int = 1  # that may run as one stack, which affects only the choice of their kernel

    @property
    def is_plain(self) -> bool:
        """Whether the job has only x, state and lengths."""
        return self.reset is None and self.dt is None and self.mask is None and not self.keep

    def resolve(self) -> ScanJob:
        """Return the job with input and state in plain memory, which kernels can read by address."""
        x, state = resolve(self.x, "input"), tuple(resolve(s, "the initial state") for s in self.state)
        if x is self.x and all(a is b for a, b in zip(state, self.state, strict=True)):
            return self
        return replace(self, x=x, state=state)

    def reverse(self) -> ScanJob:
        """Return the job with every sequence reversed within its length; padding stays in place."""
        change = {
            "x": reverse_steps(self.x, self.lengths),
            "keep": tuple(reverse_steps(k, self.lengths) for k in self.keep),
        }
        for field in ("reset", "dt"):
            value: Tensor | None = getattr(self, field)
            if value is not None:  # describes the gap between t-1 and t, which belongs to t-1 in reverse
                real = (
                    value if self.lengths is None else torch.where(self.valid_steps(), value, torch.zeros_like(value))
                )
                change[field] = reverse_steps(_shift_back(real), self.lengths)
        return replace(self, **change)  # type: ignore[arg-type]

    def take_part(self, x: Tensor, state: State, begin: int) -> ScanJob:
        """Return the job of the steps from `begin` on, whose input is x and whose first state is `state`."""

        def cut(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.narrow(1, begin, x.shape[1])

        left = None if self.lengths is None else (self.lengths - begin).clamp(0, x.shape[1])
        keep = tuple(k.narrow(1, begin, x.shape[1]) for k in self.keep)
        return replace(self, x=x, state=state, lengths=left, reset=cut(self.reset), dt=cut(self.dt), keep=keep)

    def valid_steps(self) -> Tensor:
        """Return (B, T): True at real steps, False at padding."""
        assert self.lengths is not None
        return make_mask(self.lengths, self.x.shape[1])

    def per_step(self) -> dict[str, Tensor]:
        """Return all tensors but x that are indexed by step, by name and time first: (T, B, ...)."""
        parts = {"reset": self.reset, "dt": self.dt}
        if self.lengths is not None:
            valid = self.valid_steps()
            parts |= {"valid": valid, "reset": None if self.reset is None else self.reset & valid}
        parts |= {f"keep_{i}": k for i, k in enumerate(self.keep)}
        return {name: t.transpose(0, 1) for name, t in parts.items() if t is not None}


def advance(
    cell: Cell, x: Tensor, state: State, now: dict[str, Tensor], start: State, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    """Run one step of a scan: reset, the cell's step, zoneout, and padding.

    Args:
        cell: The cell.
        x: (B, P), projected.
        state: The state before the step.
        now: This step's part of `ScanJob.per_step()`.
        start: The state after a reset.
        mask: (B, H), recurrent dropout.

    Returns:
        The output, 0 in rows that have ended, and the state, unchanged in those rows.
    """
    if "reset" in now:
        state = reset_rows(now["reset"], start, state)
    extra = {"mask": mask} if mask is not None else {}
    if "dt" in now:
        extra["dt"] = now["dt"]
    try:
        result = cell.step(x, state, **extra)
    except ValueError as error:
        if "values to unpack" not in str(error):
            raise
        raise UserError(
            f"{type(cell).__name__}.step cannot unpack its {count(len(state), 'state')}: {error}; the tuple that "
            "initial_state(x) returns must have one tensor for each state that step unpacks"
        ) from error
    if not _is_output_and_state(result, len(state)):
        raise UserTypeError(
            f"{type(cell).__name__}.step must return an output and a tuple of {count(len(state), 'state')}, "
            f"such as `return {_write_return(len(state))}`; it returned "
            f"{_describe(result)}"
        )
    y, after = result
    if "keep_0" in now:
        after = tuple(
            torch.lerp(a, s, now[f"keep_{i}"].to(a.dtype)) for i, (a, s) in enumerate(zip(after, state, strict=True))
        )
        y = cell.output(after)
    after = tuple(
        a.to(s.dtype) for a, s in zip(after, state, strict=True)
    )  # under autocast the state keeps full precision
    if "valid" in now:
        after = tuple(torch.where(expand_like(now["valid"], a), a, s) for a, s in zip(after, state, strict=True))
        y = torch.where(expand_like(now["valid"], y), y, torch.zeros_like(y))
    return y, after


def _is_output_and_state(result: object, states: int) -> bool:
    if not isinstance(result, tuple) or len(result) != 2:
        return False
    return isinstance(result[1], (tuple, list)) and len(result[1]) == states


def _write_return(states: int) -> str:
    """Format the return type of a step with `states` states, as Python would write it."""
    names = ["h"] if states == 1 else [f"state_{i}" for i in range(states)]
    return f"y, ({names[0]},)" if states == 1 else f"y, ({', '.join(names)})"


def _describe(result: object) -> str:
    """Return the types of a value as Python would write it: `(Tensor, Tensor)`."""
    if not isinstance(result, (tuple, list)):
        return type(result).__name__
    parts = ", ".join(map(_describe, result))
    return f"({parts},)" if len(result) == 1 else f"({parts})"


def reset_rows(flags: Tensor, start: State, state: State) -> State:
    """Return the state with the rows whose flag is set replaced by `start`."""
    return tuple(torch.where(expand_like(flags, s), s0, s) for s0, s in zip(start, state, strict=True))


def expand_like(flags: Tensor, s: Tensor) -> Tensor:
    """Append dimensions of size 1 to flags (B,) until it has as many as s."""
    return flags[(...,) + (None,) * (s.dim() - flags.dim())]


def zero_padding(y: Tensor, lengths: Tensor | None) -> Tensor:
    """Set y (B, T, ...) to 0 from each row's length on."""
    if lengths is None:
        return y
    past = torch.arange(y.shape[1], device=y.device) >= lengths.unsqueeze(1)
    return y.masked_fill(expand_like(past, y), 0)


def reverse_steps(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the real steps of each row of x (B, T, ...); padding stays in place."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    last = lengths.unsqueeze(1) - 1
    index = torch.where(t <= last, last - t, t)
    return x.gather(1, expand_like(index, x).expand(x.shape))


def clone_part(part: Tensor) -> Tensor:
    """Copy a slice of a tensor, so that a state neither keeps all outputs alive nor changes with them."""
    return part.clone(memory_format=torch.contiguous_format)


def _shift_back(flags: Tensor) -> Tensor:
    """Shift (B, T) by one step towards the past; the last step gets 0."""
    return torch.cat([flags[:, 1:], torch.zeros_like(flags[:, :1])], 1)

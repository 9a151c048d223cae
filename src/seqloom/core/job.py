"""What a scan is asked to do, and one step of it: shared by the reference loop and the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import resolve
from seqloom.core.masks import make_mask


@dataclass(frozen=True, eq=False)
class ScanJob:
    """One cell over one batch of sequences, in one direction."""

    x: Tensor  # (B, T, D)
    state: State
    lengths: Tensor | None = None  # (B,): steps at and after a row's length do not happen
    reset: Tensor | None = None  # (B, T) bool: the state starts anew before these steps
    dt: Tensor | None = None  # (B, T): time since the step before, for cells that know time
    mask: Tensor | None = None  # (B, H): recurrent dropout, one draw a sequence
    keep: tuple[Tensor, ...] = ()  # zoneout: (B, T, ...) for each state, the share that stays

    @property
    def is_plain(self) -> bool:
        """Nothing asked beyond x, state and lengths."""
        return self.reset is None and self.dt is None and self.mask is None and not self.keep

    def resolve(self) -> ScanJob:
        """Return the same with input and state in plain memory, which kernels read by address."""
        x, state = resolve(self.x, "input"), tuple(resolve(s, "the initial state") for s in self.state)
        if x is self.x and all(a is b for a, b in zip(state, self.state, strict=True)):
            return self
        return replace(self, x=x, state=state)

    def reverse(self) -> ScanJob:
        """The same sequences read from their ends; what lies past a length stays where it is."""
        change = {
            "x": reverse_steps(self.x, self.lengths),
            "keep": tuple(reverse_steps(k, self.lengths) for k in self.keep),
        }
        for field in ("reset", "dt"):
            value: Tensor | None = getattr(self, field)
            if value is not None:  # between t-1 and t, so it belongs to t-1 on the way back
                real = (
                    value if self.lengths is None else torch.where(self.valid_steps(), value, torch.zeros_like(value))
                )
                change[field] = reverse_steps(_ahead(real), self.lengths)
        return replace(self, **change)  # type: ignore[arg-type]

    def valid_steps(self) -> Tensor:
        """(B, T): the steps that happen."""
        assert self.lengths is not None
        return make_mask(self.lengths, self.x.shape[1])

    def per_step(self) -> dict[str, Tensor]:
        """Everything but x that a step has a part of, time first."""
        parts = {"reset": self.reset, "dt": self.dt}
        if self.lengths is not None:
            valid = self.valid_steps()
            parts |= {"valid": valid, "reset": None if self.reset is None else self.reset & valid}
        parts |= {f"keep_{i}": k for i, k in enumerate(self.keep)}
        return {name: t.transpose(0, 1) for name, t in parts.items() if t is not None}


def advance(
    cell: Cell, x: Tensor, state: State, now: dict[str, Tensor], start: State, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    """One step of a scan: reset, the cell's own step, zoneout, and rows that have ended."""
    if "reset" in now:
        state = reset_rows(now["reset"], start, state)
    extra = {"mask": mask} if mask is not None else {}
    if "dt" in now:
        extra["dt"] = now["dt"]
    y, after = cell.step(x, state, **extra)
    if "keep_0" in now:
        after = tuple(
            torch.lerp(a, s, now[f"keep_{i}"].to(a.dtype)) for i, (a, s) in enumerate(zip(after, state, strict=True))
        )
        y = cell.output(after)
    after = tuple(a.to(s.dtype) for a, s in zip(after, state, strict=True))  # autocast: carried in full precision
    if "valid" in now:
        after = tuple(torch.where(expand_like(now["valid"], a), a, s) for a, s in zip(after, state, strict=True))
        y = torch.where(expand_like(now["valid"], y), y, torch.zeros_like(y))
    return y, after


def reset_rows(flags: Tensor, start: State, state: State) -> State:
    """The state, begun anew in the rows whose flag is set."""
    return tuple(torch.where(expand_like(flags, s), s0, s) for s0, s in zip(start, state, strict=True))


def expand_like(flags: Tensor, s: Tensor) -> Tensor:
    """(B,) with as many dimensions as s."""
    return flags[(...,) + (None,) * (s.dim() - flags.dim())]


def zero_padding(y: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, ...) with 0 past each row's length."""
    if lengths is None:
        return y
    past = torch.arange(y.shape[1], device=y.device) >= lengths.unsqueeze(1)
    return y.masked_fill(expand_like(past, y), 0)


def reverse_steps(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, ...) with each row's real steps in reverse order."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    last = lengths.unsqueeze(1) - 1
    index = torch.where(t <= last, last - t, t)
    return x.gather(1, expand_like(index, x).expand(x.shape))


def clone_part(part: Tensor) -> Tensor:
    """A part of a tensor in memory of its own: a state outlives the outputs, and no change to them reaches it."""
    return part.clone(memory_format=torch.contiguous_format)


def _ahead(flags: Tensor) -> Tensor:
    """(B, T) moved one step back in time; nothing comes after the last."""
    return torch.cat([flags[:, 1:], torch.zeros_like(flags[:, :1])], 1)

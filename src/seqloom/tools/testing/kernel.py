"""What a kernel must do: the same as the loop."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import loop as any_loop
from seqloom.kernels.registry import Code, find_kernel

SHAPES = ((1, 1, 3, 4), (2, 1, 5, 12), (1, 40, 8, 8), (5, 9, 7, 20), (9, 33, 16, 36), (7, 64, 32, 64))  # B, T, D, H
WISHES = ("reset", "mask", "keep")
DRAWS = 8  # of weights and input, in rows of a batch: a single distance is a matter of luck
MORE = 4  # times as many before a kernel is found to be wrong


def check_kernel(
    kernel: Code | str,
    cell: str | type[Cell],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **settings: Any,
) -> None:
    """A kernel gives what the reference loop gives: outputs, last state and every gradient.

    It may be at most twice as far from the loop in float64 as the loop in its own type, where a last bit is allowed to
    both: root mean squares of one draw of weights and input, and the geometric mean over draws, since a draw that
    magnifies every rounding would hide the others; four times as many where the first ones say that it is too far.
    Short, long, odd, ragged, strided, twice; memory left unwritten is NaN here. Resets, recurrent dropout and zoneout
    are checked, alone and all at once, where the kernel takes them. A kernel that is not in the registry may say in
    `hidden_multiple` of what its hidden size must be a multiple.
    """
    known = find_kernel(kernel) if isinstance(kernel, str) else None
    code: Any = kernel if known is None else known.code
    multiple = getattr(known or code, "hidden_multiple", 1)
    limit = 3 if dtype == torch.float64 else 2  # float64 is itself as far from the truth as the loop: 2 + 1
    generator, strict = torch.random.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then holds NaN
    try:
        for (B, T, D, H), ragged, wishes in _jobs():
            shape = (B, T, D, -(-H // multiple) * multiple)
            where = f"B={shape[0]} T={shape[1]} D={shape[2]} H={shape[3]} ragged={ragged} {' '.join(wishes)}".rstrip()
            ratios: dict[str, list[float]] = defaultdict(list)
            draws = max(4, DRAWS // shape[0])
            for seed in range(MORE * draws):
                if seed == draws and not _far(ratios, limit):
                    break
                torch.manual_seed(seed)
                one = find_cell(cell)(*shape[2:], **settings).to(device)
                if "reset" in wishes:
                    one.learn_initial_state()
                for name, ratio in _ratios(code, one, _job(one, shape, ragged, wishes), dtype, where).items():
                    ratios[name].append(ratio)
            for name, mean in _far(ratios, limit).items():
                raise AssertionError(f"{name} is {mean:.1f} times as far from float64 as the loop, {where}")
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.random.set_rng_state(generator)


def _far(ratios: dict[str, list[float]], limit: float) -> dict[str, float]:
    """Geometric means over the draws so far, of what is too far."""
    means = {name: math.exp(sum(map(math.log, found)) / len(found)) for name, found in ratios.items()}
    return {name: mean for name, mean in means.items() if not mean <= limit}


def _jobs() -> Iterator[tuple[tuple[int, ...], bool, tuple[str, ...]]]:
    for shape in SHAPES:
        for ragged in (False, True):
            yield shape, ragged, ()
            if shape == SHAPES[3]:
                yield from ((shape, ragged, wishes) for wishes in (WISHES, *((wish,) for wish in WISHES)))


def _job(cell: Cell, shape: tuple[int, ...], ragged: bool, wishes: tuple[str, ...]) -> ScanJob:
    B, T, D, _ = shape
    device = next(cell.parameters()).device
    x = torch.randn(T, B, D).transpose(0, 1).to(device)  # strided
    job = ScanJob(x, cell.start(x), (torch.arange(B) * T // max(1, B - 1)).to(device) if ragged else None)
    if "reset" in wishes:
        job = replace(job, reset=(torch.rand(B, T) < 0.2).to(device))
    if "mask" in wishes and "mask" in cell.takes:
        job = replace(job, mask=2.0 * torch.randint(2, (B, cell.output_size)).to(device))
    if "keep" in wishes:  # some units stay, some do not, some by half
        share = (torch.randint(3, (B, T, *s.shape[1:])).to(device) / 2 for s in job.state)
        job = replace(job, keep=tuple(share))
    return job


def _ratios(code: Code, cell: Cell, job: ScanJob, dtype: torch.dtype, where: str) -> dict[str, float]:
    """Distances from float64 of the kernel over those of the loop, each in units of its type's rounding."""
    own = copy.deepcopy(cell).to(dtype)
    reason = code.why_not(own, _typed(own, job, dtype))
    if reason is not None and not job.is_plain:
        return {}
    assert reason is None, f"the kernel does not take {where}: {reason}"
    low = torch.finfo(dtype).bits < 32
    if low:  # the kernel is given rounded numbers, and is right about these
        cell, job = own, replace(job, x=job.x.to(dtype))
    exact = everything(any_loop.run, copy.deepcopy(cell).double(), job, torch.float64)
    like = dtype if low else torch.float32  # of float64's own rounding nothing exact is known
    loop = everything(any_loop.run, cell, job, like)
    found, again = (everything(code.run, own, job, dtype) for _ in range(2))
    ratios = {}
    for name, true in exact.items():
        assert torch.equal(found[name], again[name]), f"{name} differs between two calls, {where}"
        size = max(float(true.norm()), 1e-30)  # a last bit of every number; some gradients are 0
        far = float((found[name].double() - true).norm()) / torch.finfo(dtype).eps
        near = float((loop[name].double() - true).norm()) / torch.finfo(like).eps
        ratios[name] = max(far, size) / math.hypot(near, size)
    return ratios


def _typed(cell: Cell, job: ScanJob, dtype: torch.dtype) -> ScanJob:
    """The job in another type, from a first state of its own."""
    x = job.x.detach().to(dtype).requires_grad_()
    state = tuple((s.detach() + 0.1).requires_grad_() for s in cell.start(x))
    mask = None if job.mask is None else job.mask.to(dtype)
    return replace(job, x=x, state=state, mask=mask, keep=tuple(k.to(dtype) for k in job.keep))


def everything(run: Any, cell: Cell, job: ScanJob, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What a scan gives, and the gradients of a loss that weighs every output differently."""
    job = _typed(cell, job, dtype)
    y, last = run(cell, job)
    loss = sum(
        (t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).view(t.shape)).sum() for t in (y, *last)
    )
    leaves = {"dx": job.x, **{f"dstate {i}": s for i, s in enumerate(job.state)}}
    leaves |= {f"d{name}": p for name, p in cell.named_parameters()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {"y": y, **{f"state {i}": s for i, s in enumerate(last)}}
    found |= {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, gradients, strict=True)}
    return {name: t.detach() for name, t in found.items()}

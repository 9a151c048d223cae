"""Check a kernel against the reference loop."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels import loop as any_loop
from seqloom.kernels.registry import KernelCode, find_kernel

SHAPES = ((1, 1, 3, 4), (2, 1, 5, 12), (1, 40, 8, 8), (5, 9, 7, 20), (9, 33, 16, 36), (7, 64, 32, 64))  # B, T, D, H
OPTIONS = ("reset", "mask", "keep")
DRAWS = 8  # draws of random weights and inputs, counted in rows of a batch, since a single error varies
MORE = 4  # times as many draws before a kernel fails


def check_kernel(
    kernel: KernelCode | str,
    cell: str | type[Cell],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **settings: Any,  # noqa: ANN401  # forwarded to the cell
) -> None:
    """Check that a kernel matches the reference loop: outputs, last state and all gradients.

    The kernel's error against the float64 loop may be at most twice that of the loop in its own type, plus one bit: the
    root mean square for one draw of weights and input, and the geometric mean over draws. A kernel whose error is too
    large is checked with four times as many draws. Inputs are short, long, odd, ragged and strided; every call is
    repeated, and memory that the kernel does not write holds NaN. Resets, recurrent dropout and zoneout are checked if
    it supports them.

    Args:
        kernel: A kernel's name, or a module or object with `run(cell, job)` and `why_not(cell, job)`. One that is not
            in the registry may have `hidden_multiple`, which its hidden size must be a multiple of.
        cell: A cell's name or class.
        dtype: Type of weights and input.
        device: Device to run on.
        **settings: Settings of the cell.

    Raises:
        AssertionError: With the reason, if a check fails.

    Example:
        >>> seqloom.testing.check_kernel("min_gru_parallel", "min_gru")
    """
    known = find_kernel(kernel) if isinstance(kernel, str) else None
    code: Any = kernel if known is None else known.code
    multiple = getattr(known or code, "hidden_multiple", 1)
    limit = 3 if dtype == torch.float64 else 2  # float64 is itself as far from the truth as the loop: 2 + 1
    generator, strict = torch.random.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then holds NaN
    try:
        for (B, T, D, H), ragged, options in _jobs():
            shape = (B, T, D, -(-H // multiple) * multiple)
            where = f"B={shape[0]} T={shape[1]} D={shape[2]} H={shape[3]} ragged={ragged} {' '.join(options)}".rstrip()
            ratios: dict[str, list[float]] = defaultdict(list)
            draws = max(4, DRAWS // shape[0])
            for seed in range(MORE * draws):
                if seed == draws and not _far(ratios, limit):
                    break
                torch.manual_seed(seed)
                one = find_cell(cell)(*shape[2:], **settings).to(device)
                if "reset" in options:
                    one.learn_initial_state()
                for name, ratio in _ratios(code, one, _job(one, shape, ragged, options), dtype, where).items():
                    ratios[name].append(ratio)
            for name, mean in _far(ratios, limit).items():
                raise AssertionError(f"{name} is {mean:.1f} times as far from float64 as the loop, {where}")
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.random.set_rng_state(generator)


def _far(ratios: dict[str, list[float]], limit: float) -> dict[str, float]:
    """Return the geometric means over draws that exceed the limit, by name."""
    means = {name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in ratios.items()}
    return {name: mean for name, mean in means.items() if not mean <= limit}


def _jobs() -> Iterator[tuple[tuple[int, ...], bool, tuple[str, ...]]]:
    for shape in SHAPES:
        for ragged in (False, True):
            yield shape, ragged, ()
            if shape == SHAPES[3]:
                yield from ((shape, ragged, options) for options in (OPTIONS, *((option,) for option in OPTIONS)))


def _job(cell: Cell, shape: tuple[int, ...], ragged: bool, options: tuple[str, ...]) -> ScanJob:
    B, T, D, _ = shape
    device = next(cell.parameters()).device
    x = torch.randn(T, B, D).transpose(0, 1).to(device)  # strided
    job = ScanJob(x, cell.start(x), (torch.arange(B) * T // max(1, B - 1)).to(device) if ragged else None)
    if "reset" in options:
        job = replace(job, reset=(torch.rand(B, T) < 0.2).to(device))
    if "mask" in options and "mask" in cell.takes:
        job = replace(job, mask=2.0 * torch.randint(2, (B, cell.output_size)).to(device))
    if "keep" in options:  # units that keep their state, change it, or mix both
        share = (torch.randint(3, (B, T, *s.shape[1:])).to(device) / 2 for s in job.state)
        job = replace(job, keep=tuple(share))
    return job


def _ratios(code: KernelCode, cell: Cell, job: ScanJob, dtype: torch.dtype, where: str) -> dict[str, float]:
    """Return the kernel's errors against float64 relative to the loop's, each in units of its type's rounding."""
    own = copy.deepcopy(cell).to(dtype)
    reason = code.why_not(own, _convert_job(own, job, dtype))
    if reason is not None and not job.is_plain:
        return {}
    assert reason is None, f"the kernel does not take {where}: {reason}"
    low = torch.finfo(dtype).bits < 32
    if low:  # compare on the rounded values that the kernel receives
        cell, job = own, replace(job, x=job.x.to(dtype))
    exact = run_with_gradients(any_loop.run, copy.deepcopy(cell).double(), job, torch.float64)
    like = dtype if low else torch.float32  # there is no more precise reference for float64
    loop = run_with_gradients(any_loop.run, cell, job, like)
    results, again = (run_with_gradients(code.run, own, job, dtype) for _ in range(2))
    ratios = {}
    for name, true in exact.items():
        assert torch.equal(results[name], again[name]), f"{name} differs between two calls, {where}"
        size = max(float(true.norm()), 1e-30)  # one bit of every value; some gradients are 0
        far = float((results[name].double() - true).norm()) / torch.finfo(dtype).eps
        near = float((loop[name].double() - true).norm()) / torch.finfo(like).eps
        ratios[name] = max(far, size) / math.hypot(near, size)
    return ratios


def _convert_job(cell: Cell, job: ScanJob, dtype: torch.dtype) -> ScanJob:
    """Return the job in another type, with a new first state."""
    x = job.x.detach().to(dtype).requires_grad_()
    state = tuple((s.detach() + 0.1).requires_grad_() for s in cell.start(x))
    mask = None if job.mask is None else job.mask.to(dtype)
    return replace(job, x=x, state=state, mask=mask, keep=tuple(k.to(dtype) for k in job.keep))


def run_with_gradients(
    run: Callable[[Cell, ScanJob], tuple[Tensor, State]], cell: Cell, job: ScanJob, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return outputs, last state and the gradients of a loss that weights every output differently, by name."""
    job = _convert_job(cell, job, dtype)
    y, last = run(cell, job)
    loss: Any = sum(
        (t * torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).view(t.shape)).sum() for t in (y, *last)
    )
    leaves = {"dx": job.x, **{f"dstate {i}": s for i, s in enumerate(job.state)}}
    leaves |= {f"d{name}": p for name, p in cell.named_parameters()}
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    results = {"y": y, **{f"state {i}": s for i, s in enumerate(last)}}
    results |= {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, gradients, strict=True)}
    return {name: t.detach() for name, t in results.items()}

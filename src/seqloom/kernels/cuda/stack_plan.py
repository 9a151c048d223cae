"""Choose the prepared call of a stack of cells on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.kernels.cuda.attn_rnn.plan import AttnRNNPlan, why_not_plan
from seqloom.kernels.cuda.attn_rnn.scan import AttnRNNKernel
from seqloom.kernels.cuda.gated.kernels import Gated
from seqloom.kernels.cuda.gated.plan import GatedPlan
from seqloom.kernels.cuda.gated.plan import why_not_plan as why_not_gated
from seqloom.kernels.kernel_plan import KernelPlan, StackPlan
from seqloom.kernels.registry import Kernel
from seqloom.kernels.stack import Stack


def prepare_stack(
    stack: Stack,
    kernels: Sequence[Kernel],
    weights: list[Tensor],
    amp: torch.dtype | None,
    dropout: float,
    has_lengths: bool,
) -> StackPlan | KernelPlan:
    """Return the plan of calls on a GPU that are not a single call of torch.

    Args:
        stack: The cells, and the form of the input.
        kernels: The kernel of each cell.
        weights: All weights of the stack.
        amp: The type that autocast computes in; None without autocast.
        dropout: Share of the outputs of every layer but the last that is dropped.
        has_lengths: Whether rows may be shorter than the input.
    """
    codes, backend = [kernel.code for kernel in kernels], kernels[0].backend
    attn_rnn = [code for code in codes if isinstance(code, AttnRNNKernel)]
    is_plain = amp is None and not dropout and not has_lengths and stack.ways == 1
    if is_plain and len(attn_rnn) == len(codes) and not why_not_plan(stack.cells, weights):
        return AttnRNNPlan(stack, attn_rnn, weights, backend)
    gated = [code for code in codes if isinstance(code, Gated)]
    if len(gated) == len(codes) and not why_not_gated(stack.cells):
        return GatedPlan(stack, gated, weights, backend, amp, dropout)
    return KernelPlan(stack, kernels, None if amp is None else (weights[0].dtype, amp), dropout)

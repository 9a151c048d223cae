"""Random draws of the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to draw a token. The settings apply in this order.

    Args:
        temperature: Divides the logits: below 1 the distribution is sharper, above 1 flatter.
        top_k: Draw from the k most likely tokens; 0 for all.
        top_p: Draw from the fewest most likely tokens whose probabilities reach p; 1 for all (Holtzman et al. 2020,
            arXiv 1904.09751).
        seed: The same seed draws the same tokens on the same device; None draws from torch's generator.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UserError(
                f"temperature must be above 0, got {self.temperature}; for the most likely token use top_k=1"
            )
        if self.top_k < 0:
            raise UserError(f"top_k must be at least 1, or 0 for all tokens, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def generator(self, device: torch.device) -> torch.Generator | None:
        """Return the random generator for one text; None for torch's."""
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution (..., V) that logits (..., V) are drawn from."""
        numbers = torch.finfo(logits.dtype)
        temperature = min(max(self.temperature, numbers.tiny), numbers.max)  # 0 and infinity would make it NaN,
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # and -inf in all places too
        if 0 < self.top_k < logits.shape[-1]:
            best, place = logits.topk(self.top_k)
            logits = torch.full_like(logits, -torch.inf).scatter(-1, place, best)
        p = logits.softmax(-1)
        if self.top_p < 1:
            ordered, place = p.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered  # sum of the more likely ones
            p = torch.zeros_like(p).scatter(-1, place, ordered * (before < self.top_p))
            p = p / p.sum(-1, keepdim=True)
        return p

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw ids (...) from logits (..., V).

        Among exponential variables with rates p, the one at i is the smallest with probability p_i. Unlike
        torch.multinomial, this does not synchronise with a GPU.
        """
        p = self.probabilities(logits)
        return (p / torch.empty_like(p).exponential_(generator=generator)).argmax(-1)

"""How much a training towards a goal does, and where."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Size:
    """How much to train; `tiny` is a check that everything runs."""

    device: torch.device
    tiny: bool

    def steps(self, full: int) -> int:
        return 6 if self.tiny else full

    def units(self, full: int) -> int:
        return 16 if self.tiny else full

    def batch(self, full: int) -> int:
        return 4 if self.tiny else full

    def rows(self, full: int) -> int:
        return min(full, 32) if self.tiny else full

    def length(self, full: int) -> int:
        return max(24, full // 100) if self.tiny else full

    def low(self) -> torch.autocast:
        """Return a context for bfloat16 products on a GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

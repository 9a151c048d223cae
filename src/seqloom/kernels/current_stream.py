"""Which stream of a GPU a call runs on: memory that is kept for later calls must be ready there."""

from __future__ import annotations

import torch


def find_stream(device: torch.device) -> int | None:
    """Return the number of the current stream, 0 on a CPU; None while a graph is captured, whose memory is its own."""
    if device.type != "cuda":
        return 0
    if torch.cuda.is_current_stream_capturing():
        return None
    number: int = torch._C._cuda_getCurrentRawStream(device.index)
    return number

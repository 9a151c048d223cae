"""Find the current CUDA stream, so that buffers kept between calls are reused only on the stream that wrote them."""

from __future__ import annotations

import torch


def find_stream(device: torch.device) -> int | None:
    """Return the handle of the current stream, 0 on a CPU; None during graph capture, which has separate memory."""
    if device.type != "cuda":
        return 0
    if torch.cuda.is_current_stream_capturing():
        return None
    number: int = torch._C._cuda_getCurrentRawStream(device.index)
    return number

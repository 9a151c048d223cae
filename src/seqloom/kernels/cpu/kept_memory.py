"""Memory that is kept between calls and reused.

A training step frees the memory of its backward pass, and the C library immediately returns large blocks to the
operating system. In the next step every page must be requested again, which takes half of the time of both passes of
small cells (Linux with glibc).
"""

from __future__ import annotations

import math
import os
from threading import Lock

import torch
from torch import Tensor

from seqloom.core.memory import IS_POISONED, empty_like, new_empty, poison

LEAST_BYTES = 1 << 17  # the C library itself keeps smaller blocks (glibc: M_MMAP_THRESHOLD)
MOST_BYTES = 1 << 30  # bytes of all blocks together
SHARE_OF_MACHINE = 32  # and at most 1 / this of the machine's memory
DEFAULT_BYTES = 1 << 28  # if the amount of memory is unknown
ROUNDING = 8  # sizes are rounded up by less than 1 / this, so that batches of other lengths can reuse a block

_count_uses = getattr(torch._C, "_storage_Use_Count", None)  # private to torch; without it, nothing is kept


def _limit() -> int:
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return DEFAULT_BYTES
    return min(MOST_BYTES, machine // SHARE_OF_MACHINE)


def _round_up(size: int) -> int:
    step = max(1, (1 << (size.bit_length() - 1)) // ROUNDING)
    return -(-size // step) * step


class KeptMemory:
    """Blocks of memory that are reused as soon as no tensor refers to them.

    Args:
        limit: Maximum number of bytes to keep; the least recently used blocks are dropped first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.forget()

    def forget(self) -> None:
        """Forget all blocks."""
        self.bytes = 0
        self.pieces: list[tuple[int, torch.UntypedStorage]] = []  # bytes and memory; the latest one last
        self.lock = Lock()

    def allocate(self, like: Tensor, *shape: int) -> Tensor:
        """Return an uninitialised contiguous CPU tensor with the dtype of another tensor."""
        size = like.element_size() * math.prod(shape)
        if size < LEAST_BYTES or not like.is_cpu or _count_uses is None:
            return new_empty(like, shape)
        size = _round_up(size)
        with self.lock:
            piece = self._find(size)
            if piece is None:
                piece = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()
                self.bytes += size
            self.pieces.append((size, piece))
            while self.bytes > self.limit:
                self.bytes -= self.pieces.pop(0)[0]
            strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            kept = like.new_empty(0).set_(piece, 0, shape, strides)
        return poison(kept) if IS_POISONED else kept

    def allocate_like(self, like: Tensor) -> Tensor:
        """Return an uninitialised contiguous tensor with the type and the shape of another one."""
        if like.numel() * like.element_size() < LEAST_BYTES:
            return empty_like(like, memory_format=torch.contiguous_format)
        return self.allocate(like, *like.shape)

    def _find(self, size: int) -> torch.UntypedStorage | None:
        """Remove a block of this size that no tensor refers to, and return it."""
        assert _count_uses is not None
        for i in range(len(self.pieces) - 1, -1, -1):
            kept, piece = self.pieces[i]
            if kept != size or _count_uses(piece._cdata) > 1:
                continue
            del self.pieces[i]
            if piece.nbytes() == size and not piece.is_shared():
                return piece
            self.bytes -= size  # a tensor was resized, or other processes may still read it
        return None


kept_memory = KeptMemory(_limit())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kept_memory.forget)  # another thread may have held the lock

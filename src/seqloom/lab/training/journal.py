"""metrics.jsonl: one JSON object a line, only ever appended to, and cut back to a checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from seqloom.core.errors import require


class Journal:
    """Lines for a person and for programs; with `board`, TensorBoard files beside it."""

    def __init__(self, path: Path, keep: int = 0, board: bool = False) -> None:
        """`keep` bytes stay; what was written after them is done again."""
        if path.exists():
            keep = min(keep, path.stat().st_size)
            with path.open("rb+") as file:
                whole = file.read(keep).rfind(b"\n") + 1
                file.truncate(whole)
        self.file = path.open("ab")
        self.board = _board(path.parent / "tensorboard") if board else None

    def write(self, **facts: Any) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
        self.file.write(json.dumps(plain, allow_nan=False).encode() + b"\n")
        self.file.flush()
        if self.board is not None:
            split = facts.get("split", "train")
            for name, value in facts.items():
                if isinstance(value, float) and name != "seconds":
                    self.board.add_scalar(f"{split}/{name}", value, facts.get("step", 0))

    def size(self) -> int:
        """Bytes, all of them on the disk."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path) -> Any:
    require("tensorboard", "tensorboard=True")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))

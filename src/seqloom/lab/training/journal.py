"""metrics.jsonl: one JSON object per line; only appended to, and truncated to a checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.core.errors import require

if TYPE_CHECKING:  # an optional package
    from torch.utils.tensorboard import SummaryWriter


class Journal:
    """The writer of metrics.jsonl; with `board`, also of TensorBoard files."""

    def __init__(self, path: Path, keep: int = 0, board: bool = False) -> None:
        """Open the file and truncate it to `keep` bytes; the rest will be written again."""
        if path.exists():
            keep = min(keep, path.stat().st_size)
            with path.open("rb+") as file:
                file.truncate(file.read(keep).rfind(b"\n") + 1)
        self.file = path.open("ab")
        self.board = _open_board(path.parent / "tensorboard") if board else None

    def write(self, **facts: object) -> None:
        """Append a line; NaN and infinity become null."""
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
        self.file.write(json.dumps(plain, allow_nan=False).encode() + b"\n")
        self.file.flush()
        if self.board is not None:
            split = facts.get("split", "train")
            for name, value in facts.items():
                if isinstance(value, float) and name != "seconds":
                    self.board.add_scalar(f"{split}/{name}", value, facts.get("step", 0))

    def size(self) -> int:
        """Flush the file to disk and return its size in bytes."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def _open_board(folder: Path) -> SummaryWriter:
    require("tensorboard", "tensorboard=True")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))

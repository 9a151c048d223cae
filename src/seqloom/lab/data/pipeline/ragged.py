"""Rows of different lengths in one flat array on disk, with the offset of each row."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LARGE = 256 << 20  # bytes; the pages of larger files are released now and then
ROWS_HELD = 128  # rows read before a release; each may load a megabyte if the system maps files in large pages


class Ragged:
    """Rows values[offsets[i] : offsets[i + 1]], read from disk on access."""

    def __init__(self, values: Array, offsets: Array) -> None:
        self.values, self.offsets = values, offsets
        self.lengths: Array = np.diff(offsets)
        self._rows_read = 0

    @staticmethod
    def from_lengths(values: Array, lengths: Array) -> Ragged:
        """Make rows from consecutive values and the length of each row."""
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.lengths)

    def pad(self, rows: Array, fill: float = 0) -> tuple[Array, Array]:
        """Gather rows into (B, T) or (B, T, D) with `fill` at the end, and return it with lengths (B,)."""
        lengths = self.lengths[rows]
        steps = np.arange(int(lengths.max(initial=0)))
        real = steps < lengths[:, None]  # (B, T)
        out = np.full((*real.shape, *self.values.shape[1:]), fill, dtype=self.values.dtype)
        out[real] = self.values[(self.offsets[rows][:, None] + steps)[real]]
        self.release(len(rows))
        return out, lengths

    def release(self, rows: int) -> None:
        """Count rows as read and release the pages of a large file now and then.

        The pages would otherwise count as memory of this process.
        """
        self._rows_read += rows
        if self._rows_read > ROWS_HELD and isinstance(self.values, np.memmap) and self.values.nbytes > LARGE:
            self._rows_read = 0
            self.values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    @staticmethod
    def open(folder: Path, name: str) -> Ragged:
        """Open rows that a `Writer` wrote."""
        facts = json.loads((folder / f"{name}.json").read_text())
        shape, kind = tuple(facts["shape"]), np.dtype(facts["dtype"])
        is_empty = 0 in shape
        values = np.empty(shape, kind) if is_empty else np.memmap(folder / f"{name}.bin", kind, "r", shape=shape)
        return Ragged(values, np.load(folder / f"{name}.offsets.npy"))


class RaggedWriter:
    """Append rows to name.bin; `close` writes what `Ragged.open` needs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.file = folder / f"{name}.bin"
        self.file.touch()
        self.lengths: list[Array] = []
        self.shape: tuple[int, ...] = ()
        self.dtype = "int32"

    def add(self, values: Array, lengths: Array) -> None:
        """Append values (sum of lengths, ...) of rows with lengths (rows,)."""
        self.shape, self.dtype = values.shape[1:], values.dtype.str
        with self.file.open("ab") as file:
            values.tofile(file)
        self.lengths.append(np.asarray(lengths, dtype=np.int64))

    def close(self) -> None:
        lengths = np.concatenate(self.lengths) if self.lengths else np.empty(0, np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        np.save(self.folder / f"{self.name}.offsets.npy", offsets)
        facts = {"shape": [int(offsets[-1]), *self.shape], "dtype": self.dtype}
        (self.folder / f"{self.name}.json").write_text(json.dumps(facts))

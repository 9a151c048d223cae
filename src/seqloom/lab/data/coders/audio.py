"""Recordings as log energies in bands that are equally spaced on the mel scale, 100 times a second.

m = 2595 log10(1 + f / 700)         mel of a frequency f
S = |STFT(x)|^2                     windows of 25 ms, every 10 ms
y = log(M S + 1e-6)                 M: triangles with corners equally spaced in m
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import polars as pl
import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.coder import Coder
from seqloom.lab.data.coders.series import StandardScale
from seqloom.lab.data.task import Features

Array = np.ndarray[Any, Any]
FITTED_ROWS = 2_000  # recordings that the scale is fitted on


class AudioCoder(Coder, key="audio"):
    """Encode recordings; those with a higher sampling rate than `rate` are resampled."""

    def __init__(self, column: str, mels: int, rate: int = 0, scale: Mapping[str, Any] | None = None) -> None:
        self.column, self.mels, self.rate = column, mels, rate
        self.scale = StandardScale(**(scale or {}))

    @property
    def space(self) -> Features:
        return Features(tuple(f"mel_{i + 1}" for i in range(self.mels)))

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        left, pieces = FITTED_ROWS, []
        for frame in frames:
            pieces.append(self._read(frame.head(left))[0])
            left -= min(left, len(frame))
            if not left:
                break
        self.scale = StandardScale.fit(pieces)
        self.scale.missing[:] = False

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        values, lengths = self._read(frame)
        return self.scale.encode(values), lengths

    def _read(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        frame = self._resample(frame)
        samples = frame[self.column].explode(empty_as_null=False, keep_nulls=False).cast(pl.Float32).to_numpy()
        sizes = frame[self.column].list.len().fill_null(0).to_list()
        energies = [self._compute_energies(x) for x in torch.from_numpy(samples.copy()).split(sizes)]
        lengths = np.array([len(e) for e in energies], dtype=np.int64)
        return torch.cat(energies).double().numpy() if energies else np.empty((0, self.mels)), lengths

    def _resample(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame whose recordings all have the coder's sampling rate, the lowest one in training."""
        has_rates = "rate" in frame.columns
        rates = [int(rate or 0) for rate in frame["rate"]] if has_rates else [self.rate] * len(frame)
        self.rate = self.rate or min(rates, default=0)
        if not all((self.rate, *rates)):
            raise UserError(f"column {self.column!r}: recordings need a sampling rate; give it in a column `rate`")
        if all(rate == self.rate for rate in rates):
            return frame
        from scipy.signal import resample_poly

        rows = []
        for samples, rate in zip(frame[self.column], rates, strict=True):
            x = np.asarray([] if samples is None else samples, dtype=np.float32)
            common = math.gcd(rate, self.rate)
            y = x if rate == self.rate or not len(x) else resample_poly(x, self.rate // common, rate // common)
            rows.append(pl.Series(y.astype(np.float32)))
        return frame.with_columns(pl.Series(self.column, rows, dtype=pl.List(pl.Float32)))

    def _compute_energies(self, x: torch.Tensor) -> torch.Tensor:
        """Compute log energies: (samples,) -> (T, mels)."""
        if not len(x):
            return torch.zeros(0, self.mels)
        window, hop = self.rate // 40, self.rate // 100
        n = 1 << (window - 1).bit_length()
        x = torch.nn.functional.pad(x, (0, max(0, n - len(x))))
        S = torch.stft(x, n, hop, window, torch.hann_window(window), center=False, return_complex=True)
        return torch.log(S.abs().square().T @ _triangles(self.mels, n, self.rate).T + 1e-6)

    def decode(self, row: object) -> NoReturn:
        raise UserError("a recording cannot be restored from its energies")


@lru_cache
def _triangles(mels: int, n: int, rate: int) -> torch.Tensor:
    """Return the weights of each frequency in each band (mels, n / 2 + 1)."""
    f = torch.linspace(0, rate / 2, n // 2 + 1, dtype=torch.float64)
    m = torch.linspace(_mel(20.0), _mel(rate / 2), mels + 2, dtype=torch.float64)
    corners = 700 * (10 ** (m / 2595) - 1)
    up = (f - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    down = (corners[2:, None] - f) / (corners[2:] - corners[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0).float()


def _mel(f: float) -> float:
    return float(2595 * np.log10(1 + f / 700))

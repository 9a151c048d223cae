"""Log-mel spectra of sound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.errors import InputError, UserError

ENERGY_FLOOR = 1e-6  # added to the energy, since silence has no logarithm


@dataclass(frozen=True)
class Mel:
    """Settings of a log-mel spectrum: sampling rate in Hz, mel bands, length and distance of windows in seconds."""

    rate: int = 16000
    bands: int = 40
    window: float = 0.025
    hop: float = 0.010

    def __post_init__(self) -> None:
        if self.rate < 1 or self.bands < 1 or self.hop * self.rate <= 0 or self.window * self.rate < 2:
            raise UserError(f"Mel needs a rate, bands, and a window and hop of whole samples, got {self}")

    @property
    def samples(self) -> tuple[int, int]:
        """Samples of a window and of a hop."""
        return round(self.window * self.rate), max(1, round(self.hop * self.rate))


def log_mel(wave: Tensor, mel: Mel = Mel()) -> Tensor:
    """Compute the log-mel spectrum of a wave.

        E_b = sum_f M_{b,f} |STFT(wave)_f|^2,    y_b = log(E_b + floor)

    M are triangles, evenly spaced on the mel scale m = 2595 log10(1 + f / 700).

    Args:
        wave: Samples, (N,) or (B, N), floating point.
        mel: Sampling rate, bands, window and hop.

    Returns:
        Frames (T, bands) or (B, T, bands), T = 1 + N // hop.

    Raises:
        InputError: If the wave is empty or has another shape or type.
    """
    if wave.dim() not in (1, 2) or not wave.is_floating_point() or not wave.shape[-1]:
        raise InputError(f"wave must be real samples (N,) or (B, N), got {wave.dtype} {tuple(wave.shape)}")
    window, hop = mel.samples
    size = 2 ** math.ceil(math.log2(window))
    shape = torch.hann_window(window, dtype=wave.dtype, device=wave.device)
    # constant padding, because reflection needs more samples than half a window
    spectrum = torch.stft(wave, size, hop, window, shape, center=True, pad_mode="constant", return_complex=True)
    energy = spectrum.abs().square().transpose(-1, -2)  # (..., T, 1 + size / 2)
    M = triangles(mel, size).to(wave)
    return torch.log(energy @ M.T + ENERGY_FLOOR)


def triangles(mel: Mel, size: int) -> Tensor:
    """Return each band's weights (bands, 1 + size / 2) over the frequencies of a Fourier transform of this size."""
    frequencies = torch.linspace(0, mel.rate / 2, size // 2 + 1, dtype=torch.float64)
    top = 2595 * math.log10(1 + mel.rate / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, mel.bands + 2, dtype=torch.float64) / 2595) - 1)
    low, middle, high = (corners[i : i + mel.bands].unsqueeze(1) for i in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0)

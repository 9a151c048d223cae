import math

import pytest
import torch

from seqloom.models.audio import ENERGY_FLOOR, Mel, log_mel, triangles


def test_frames_are_the_energies_of_windows_under_triangles():
    mel = Mel(rate=1000, bands=6, window=0.02, hop=0.01)
    wave = torch.randn(95, dtype=torch.float64)
    frames = log_mel(wave, mel)
    assert frames.shape == (1 + 95 // 10, 6)
    padded = torch.nn.functional.pad(wave, (16, 16))  # half a transform of 32 on either side
    window = torch.zeros(32, dtype=torch.float64)
    window[6:26] = 0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(20, dtype=torch.float64) / 20)
    energy = torch.fft.rfft(padded[40:72] * window).abs().square()
    torch.testing.assert_close(frames[4], torch.log(triangles(mel, 32) @ energy + ENERGY_FLOOR))


@pytest.mark.parametrize("pitch", [300.0, 1000.0, 3000.0])
def test_a_tone_is_loudest_in_the_band_that_holds_its_pitch(pitch):
    mel = Mel(rate=8000, bands=20)
    wave = torch.sin(2 * math.pi * pitch * torch.arange(8000) / 8000)
    place = 2595 * math.log10(1 + pitch / 700) / (2595 * math.log10(1 + 4000 / 700)) * 21  # in bands, from 1
    assert abs(float(log_mel(wave, mel)[50].argmax()) + 1 - place) < 1


def test_a_batch_matches_its_rows_and_silence_is_finite():
    wave = torch.randn(2, 4000)
    wave[1] = 0
    frames = log_mel(wave)
    torch.testing.assert_close(frames[0], log_mel(wave[0]))
    assert torch.isfinite(frames).all()
    assert log_mel(torch.randn(3)).shape == (1, 40)


def test_inputs_that_are_not_audio_are_refused():
    with pytest.raises(ValueError, match=r"real samples \(N,\) or \(B, N\), got torch.int16"):
        log_mel(torch.zeros(100, dtype=torch.int16))
    with pytest.raises(ValueError, match="rate=0"):
        Mel(rate=0)

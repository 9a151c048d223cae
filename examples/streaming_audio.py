"""Detect tones in a stream of audio, chunk by chunk, with the same result as on the whole recording.

    python examples/streaming_audio.py

A recording is noise with bursts of a tone; the model says for each frame of 10 ms whether the tone is on. It is trained
on whole recordings. Then a new one arrives in chunks of any size: the state goes from one call to the next.
"""

import argparse
import time
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom

RATE, FRAME = 8_000, 80  # samples a second, samples in a frame of 10 ms


class ToneDetector(nn.Module):
    """Frames (B, T, 80) -> logits (B, T). The layer sees the past only, so it can run on a stream."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.inner = nn.Linear(FRAME, 16)
        self.layer, self.head = seqloom.GRU(16, hidden_size, 2, batch_first=True), nn.Linear(hidden_size, 1)

    def forward(self, frames: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, state = self.layer(self.inner(frames).square(), state)
        return self.head(y).squeeze(-1), state

    @torch.inference_mode()
    def stream(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the logits of the frames that each chunk of samples (N,) completes."""
        state, rest = None, torch.empty(0)
        for chunk in chunks:
            samples = torch.cat([rest, chunk])
            whole = len(samples) // FRAME * FRAME
            rest = samples[whole:]  # an unfinished frame waits for the next chunk
            if whole:
                logits, state = self(samples[:whole].view(1, -1, FRAME), state)
                yield logits[0]


def make_audio(rows: int, frames: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return samples (B, T * 80) and whether the tone of 1 kHz is on in each frame (B, T)."""
    random = torch.Generator().manual_seed(seed)
    on = torch.randint(2, (rows, frames // 10 + 1), generator=random).repeat_interleave(10, 1)[:, :frames]
    tone = torch.sin(torch.arange(frames * FRAME) * 2 * torch.pi * 1_000 / RATE)
    noise = torch.randn(rows, frames * FRAME, generator=random)
    return 0.7 * noise + 0.5 * tone * on.repeat_interleave(FRAME, 1), on.float()


def main(steps: int = 60) -> float:
    """Train, stream a new recording, and return the largest difference from the whole at once."""
    torch.manual_seed(0)
    model = ToneDetector()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        audio, on = make_audio(16, 100, seed=step)
        loss = F.binary_cross_entropy_with_logits(model(audio.view(16, -1, FRAME))[0], on)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    audio, on = make_audio(1, 500, seed=-1)
    model.eval()
    with torch.inference_mode():
        whole = model(audio.view(1, -1, FRAME))[0][0]
    print(f"{100 * float(((whole > 0) == on[0]).float().mean()):.1f} % of the frames are right")
    for size in (FRAME, 777, 4_000):
        start = time.perf_counter()
        pieces = torch.cat(list(model.stream(audio[0].split(size))))
        spent = (time.perf_counter() - start) / len(pieces)
        difference = float((pieces - whole).abs().max())
        print(f"chunks of {size:4} samples: {1e6 * spent:4.0f} us a frame, largest difference {difference:.0e}")
        assert difference < 1e-4, "the stream must match the whole recording"
    return difference


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    main(**vars(parser.parse_args()))

"""Transcribe strings of 3 to 5 spoken digits by CTC. transcribe.py --data FOLDER [--quick]."""

import io
import random
import tarfile
import wave
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from research.quality import runs
from research.record import Stopwatch
from seqloom.layers.registry import make
from seqloom.models.audio import Mel, log_mel
from seqloom.models.transcribe import Transcribe
from seqloom.tools.measure import parameters

MEL = Mel(rate=8000, bands=40)
Recordings = dict[str, list[tuple[int, Tensor]]]  # speaker: digits and their samples
BEAM = 8


@dataclass(frozen=True)
class Settings:
    """Settings of every training. The digits of a string come from one speaker, with pauses of faint noise between."""

    hidden: int = 192
    depth: int = 2
    dropout: float = 0.3
    stack: int = 2
    fewest: int = 3
    most: int = 5
    pause: float = 0.2  # seconds, at most
    batch: int = 64
    epochs: int = 8
    steps: int = 150  # of an epoch; every batch is new
    lr: float = 2e-3
    validation: int = 1000  # strings
    test: int = 2000


QUICK = Settings(hidden=48, depth=1, dropout=0.1, epochs=2, steps=40, batch=16, validation=40, test=40)


def read(folder: Path) -> dict[str, Recordings]:
    """Recordings 0-4 of each digit and speaker are for the test, 5-9 for validation, the rest for training."""
    parts: dict[str, Recordings] = {part: defaultdict(list) for part in ("train", "dev", "test")}
    with tarfile.open(folder / "spoken_digits" / "recordings.tar.xz") as archive:
        for entry in archive:
            if not entry.name.endswith(".wav"):
                continue
            digit, speaker, index = Path(entry.name).stem.split("_")
            file = archive.extractfile(entry)
            assert file is not None
            with wave.open(io.BytesIO(file.read())) as sound:
                assert (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (MEL.rate, 2, 1), (
                    entry.name
                )
                samples = torch.frombuffer(bytearray(sound.readframes(sound.getnframes())), dtype=torch.int16)
            part = "test" if int(index) < 5 else "dev" if int(index) < 10 else "train"
            parts[part][speaker].append((int(digit), samples.float() / 32768))
    return parts


def without_speaker(parts: dict[str, Recordings], speaker: str) -> dict[str, Recordings]:
    """Move all recordings of one speaker to the test."""
    test = {speaker: [r for part in parts.values() for r in part[speaker]]}
    others = {part: {s: r for s, r in parts[part].items() if s != speaker} for part in ("train", "dev")}
    return others | {"test": test}


def strings(recordings: Recordings, count: int, draw: random.Random, settings: Settings) -> tuple[Tensor, ...]:
    """Draw a batch: waves (B, N), their lengths, digits + 1 (B, S), how many."""
    waves, digits = [], []
    for _ in range(count):
        spoken = draw.choices(
            recordings[draw.choice(sorted(recordings))], k=draw.randint(settings.fewest, settings.most)
        )
        pieces = []
        for _, samples in spoken:
            pause = torch.zeros(int(draw.uniform(0, settings.pause) * MEL.rate))
            pieces += [pause, samples * draw.uniform(0.7, 1.4)]
        waves.append(torch.cat(pieces))
        digits.append(torch.tensor([digit + 1 for digit, _ in spoken]))
    lengths, counts = torch.tensor([len(w) for w in waves]), torch.tensor([len(d) for d in digits])
    noise = 3e-4 * torch.randn(count, int(lengths.max()), generator=torch.Generator().manual_seed(draw.getrandbits(31)))
    batch = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True) + noise
    return batch, lengths, torch.nn.utils.rnn.pad_sequence(digits, batch_first=True), counts


def frames(waves: Tensor, lengths: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Return log-mel frames with mean 0 and deviation 1 per row, and how many are real."""
    x, steps = log_mel(waves.to(device), MEL), (1 + lengths // MEL.samples[1]).to(device)
    real = (torch.arange(x.shape[1], device=device) < steps.unsqueeze(1)).unsqueeze(-1)
    n = steps.view(-1, 1, 1)
    mean = (x * real).sum(1, keepdim=True) / n
    deviation = (((x - mean) * real).square().sum(1, keepdim=True) / n).sqrt()
    return (x - mean) / (deviation + 1e-3) * real, steps


def mask(x: Tensor) -> Tensor:
    """Hide a few bands and a few frames (Park et al. 2019, arXiv 1904.08779)."""
    B, T, F = x.shape
    for size, width, dim in ((T, 12, 1), (F, 6, 2)):
        start = torch.randint(0, size, (B, 1), device=x.device)
        hidden = torch.arange(size, device=x.device)
        hidden = (hidden >= start) & (hidden < start + torch.randint(0, width, (B, 1), device=x.device))
        x = x.masked_fill(hidden.unsqueeze(3 - dim), 0)
    return x


def edits(a: list[int], b: list[int]) -> int:
    """Return the edit distance from a to b (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def train(layer: str, seed: int, parts: dict[str, Recordings], settings: Settings, device: str, task: str) -> dict:
    """Train and test one model."""
    torch.manual_seed(seed)
    made = make(layer, MEL.bands * settings.stack, settings.hidden, num_layers=settings.depth)
    model = Transcribe(made, 10, stack=settings.stack, dropout=settings.dropout).to(device)
    draw = random.Random(seed)
    fixed = {  # the same strings for every seed and layer
        "dev": strings(parts["dev"], settings.validation, random.Random(1), settings),
        "test": strings(parts["test"], settings.test, random.Random(2), settings),
    }

    def loss() -> Tensor:
        waves, lengths, y, counts = strings(parts["train"], settings.batch, draw, settings)
        x, steps = frames(waves, lengths, device)
        return model.loss(mask(x), y.to(device), steps, counts)

    def epochs() -> Iterator[Iterator[partial[Tensor]]]:
        for _ in range(settings.epochs):
            yield (partial(loss) for _ in range(settings.steps))

    def error(part: str, beam: int | None = None) -> float:
        """Return the digit error in percent."""
        wrong = there = 0
        for waves, lengths, y, counts in zip(*(t.split(250) for t in fixed[part]), strict=True):
            x, steps = frames(waves, lengths, device)
            for decoded, digits, n in zip(model.decode(x, steps, beam), y.tolist(), counts.tolist(), strict=True):
                wrong, there = wrong + edits(decoded, digits[:n]), there + n
        return 100 * wrong / there

    start = Stopwatch()
    title = f"{task} {layer} seed {seed}"
    steps = settings.epochs * settings.steps
    validation = runs.fit(model, epochs(), steps, settings.lr, lambda: -error("dev"), title)
    return {
        "task": task,
        "layer": layer,
        "gate": "digit_error < 5",
        "seed": seed,
        "parameters": parameters(model),
        "seconds": start.seconds,
        "validation": [-value for value in validation],
        "test": {"digit_error": error("test"), f"digit_error_beam_{BEAM}": error("test", BEAM)},
    }


def main() -> None:
    flags = runs.flags(__doc__, ["bi_lstm", "bi_attn_rnn"])
    flags.add_argument("--without-speaker", metavar="NAME", help="test on this speaker, who is not trained on")
    arguments = flags.parse_args()
    settings, trainings = QUICK if arguments.quick else Settings(), []
    parts = read(arguments.data)
    task = "spoken digits, unheard recordings"
    if arguments.without_speaker:
        parts = without_speaker(parts, arguments.without_speaker)
        task = f"spoken digits, unheard {arguments.without_speaker}"
    for layer in arguments.layers:
        for seed in range(arguments.seeds):
            trainings.append(train(layer, seed, parts, settings, arguments.device, task))
            runs.write("transcribe", arguments, asdict(settings), trainings)

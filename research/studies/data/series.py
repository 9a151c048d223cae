"""Numeric series: spoken digits, the temperature of a transformer, motions."""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
import wave
from pathlib import Path

import torch
from torch import Tensor

from research.studies.data.place import find
from seqloom.models.audio import Mel, log_mel

SOUND = Mel(rate=8_000, bands=24, window=0.032, hop=0.016)
MONTH = 30 * 24  # hours

Parts = dict[str, tuple[Tensor, ...]]


def spoken_digits(steps: int, every: int = 1) -> Parts:
    """Return spoken digits as frames (N, steps, bands), class and length.

    Recordings 0-4 of each speaker and digit are for testing, 5-9 for validation; training takes every `every`-th.
    """
    (file,) = find("spoken_digits", "recordings.tar.xz")
    rows: dict[str, list[tuple[Tensor, int]]] = {"train": [], "valid": [], "test": []}
    with tarfile.open(file) as packed:
        for member in sorted((m for m in packed.getmembers() if m.name.endswith(".wav")), key=lambda m: m.name):
            digit, _, number = Path(member.name).stem.split("_")
            split = "test" if int(number) < 5 else "valid" if int(number) < 10 else "train"
            if split == "train" and int(number) % every:
                continue
            sound = packed.extractfile(member)
            assert sound is not None
            rows[split].append((_frames(sound.read())[:steps], int(digit)))
    sounds = torch.cat([x for x, _ in rows["train"]])
    mean, deviation = sounds.mean(0), sounds.std(0)
    return {split: _pad_rows([((x - mean) / deviation, y) for x, y in some], steps) for split, some in rows.items()}


def _frames(content: bytes) -> Tensor:
    with wave.open(io.BytesIO(content)) as sound:
        samples = bytearray(sound.readframes(sound.getnframes()))
    return log_mel(torch.frombuffer(samples, dtype=torch.int16).float() / 2**15, SOUND)


def motions(name: str, steps: int) -> tuple[Parts, int]:
    """Return a data set of the UCR/UEA archive, every fourth training row for validation, and its classes."""
    train, test = (_cases(file) for file in find("ucr_uea", f"{name}_TRAIN.ts.gz", f"{name}_TEST.ts.gz"))
    classes = sorted({label for _, label in train})
    every = torch.cat([x for x, _ in train])
    mean, deviation = every.mean(0), every.std(0)
    rows = [((x - mean) / deviation, classes.index(label)) for x, label in (*train, *test)]
    rows, tested = rows[: len(train)], rows[len(train) :]
    parts = {"train": [r for i, r in enumerate(rows) if i % 4], "valid": rows[::4], "test": tested}
    return {split: _pad_rows(some, steps) for split, some in parts.items()}, len(classes)


def _cases(file: Path) -> list[tuple[Tensor, str]]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        lines = [line.strip() for line in text]
    begin = next(i for i, line in enumerate(lines) if line.lower() == "@data") + 1
    cases = []
    for line in filter(None, lines[begin:]):
        *dimensions, label = line.split(":")
        cases.append((torch.tensor([[float(v) for v in d.split(",")] for d in dimensions]).T.contiguous(), label))
    return cases


def _pad_rows(rows: list[tuple[Tensor, int]], steps: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.zeros(len(rows), steps, rows[0][0].shape[1])
    for i, (row, _) in enumerate(rows):
        x[i, : len(row)] = row[:steps]
    lengths = torch.tensor([min(len(row), steps) for row, _ in rows])
    return x, torch.tensor([y for _, y in rows]), lengths


def temperature(past: int, ahead: int, every: int = 1) -> Parts:
    """Return windows of ETTh1: past (N, past, 7) and future (N, ahead, 7); training takes every `every`-th.

    Twelve months for training, four for validation, four for testing, standardised with the training months.
    Zhou et al. 2021, arXiv 2012.07436.
    """
    (file,) = find("ett", "ETTh1.csv.gz")
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        rows = [[float(value) for value in row[1:]] for row in list(csv.reader(text))[1:]]
    series = torch.tensor(rows)[: 20 * MONTH]
    known = series[: 12 * MONTH]
    series = (series - known.mean(0)) / known.std(0, correction=0)
    edges = {"train": (0, 12), "valid": (12, 16), "test": (16, 20)}
    parts: Parts = {}
    for split, (a, b) in edges.items():
        part = series[max(0, a * MONTH - past) : b * MONTH]
        windows = part.unfold(0, past + ahead, 1).transpose(1, 2)[:: every if split == "train" else 1]
        parts[split] = (windows[:, :past].contiguous(), windows[:, past:].contiguous())
    return parts

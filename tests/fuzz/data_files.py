"""Data files of every format, mutated: each opens, or is refused in one line that names it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import shutil
import wave
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from fuzz.mutation import mutate
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import open_task


@cache
def samples() -> dict[str, bytes]:
    """Return a small good file of every format, by name."""
    numbers = np.random.default_rng(0)
    rows = [
        {
            "text": f"word{i} is {'ab'[i % 2]} and more{i * 7 % 40}",
            "label": "ab"[i % 2],
            "x": [i * 0.5, 1.0, i % 3],
            "n": i * 1.5,
        }
        for i in range(40)
    ]
    frame = pl.DataFrame(rows)
    arrays = {"x": numbers.normal(size=(40, 5, 2)), "y": np.arange(40) % 2}
    head = "@problemName x\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 3\n"
    series = "\n".join(f"{i},{i + 1},{i * 2}:{'ab'[i % 2]}" for i in range(20))
    actual = {
        "a.csv": frame.select("text", "label", "n").write_csv().encode(),
        "a.tsv": frame.select("text", "label").write_csv(separator="\t").encode(),
        "a.jsonl": "\n".join(json.dumps({k: row[k] for k in ("text", "label")}) for row in rows).encode(),
        "series.jsonl": "\n".join(json.dumps({"x": row["x"], "label": row["label"]}) for row in rows).encode(),
        "a.parquet": written(frame.select("text", "label").write_parquet),
        "a.arrow": written(frame.select("text", "label").write_ipc),
        "a.npz": written(lambda file: np.savez(file, **arrays)),
        "packed.npz": written(lambda file: np.savez_compressed(file, **arrays)),
        "a.txt": "\n".join(f"{row['text']} and so on" for row in rows * 20).encode(),
        "a.conll": "\n\n".join(f"word{i}\tN\nruns{i % 7}\tV" for i in range(40)).encode(),
        "a.ts": f"{head}@classLabel true a b\n@data\n{series}".encode(),
        "sound_one.wav": written(_write_wav),
    }
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    for name in ("a.csv", "a.jsonl"):
        actual |= {name + suffix: pack(actual[name]) for suffix, pack in packers.items()}
    return actual


def written(write) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _write_wav(file) -> None:
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(1600))


def check(draw: random.Random, work: Path) -> str:
    """Open one mutated file and return "taken" or "refused".

    Raises:
        AssertionError: If it is refused with an unclear message. What else is raised is a bug.
    """
    name = draw.choice(sorted(samples()))
    folder = work / "case"
    folder.mkdir(parents=True)
    try:
        (folder / name).write_bytes(mutate(draw, samples()[name]))
        refused = ""
        try:
            task = open_task(folder / name)
            next(iter(task.batches("train", batch=4)))
        except UserError as error:
            refused = str(error)
        assert "\n" not in refused, refused
        assert not refused or name.split(".")[0] in refused or "data" in refused, refused
        return "refused" if refused else "taken"
    finally:
        shutil.rmtree(folder)

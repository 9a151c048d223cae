"""Small runs, and a client of an application that serves them, in one process."""

import csv
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

from fastapi.testclient import TestClient

import seqloom
from seqloom.lab.serve.app import build_app
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.runs import load_runs
from seqloom.lab.serve.settings import ServeSettings

TRAINING = {"steps": 2, "hidden": 8, "layers": 1}
WORDS = ["kettle", "teapot", "saucer", "spoon", "honey", "lemon", "ginger", "mint"]


def write_cups(file: Path) -> Path:
    rng = random.Random(3)
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["order", "drink"])
        for n in range(80):
            words = rng.choices(WORDS, k=rng.randint(3, 8))
            table.writerow([" ".join(words), "tea" if n % 2 else "infusion"])
    return file


def write_pulses(file: Path) -> Path:
    rng = random.Random(4)
    with file.open("w") as out:
        for n in range(80):
            pulse = [round(math.sin((0.2 + 0.3 * (n % 2)) * t) + rng.gauss(0, 0.1), 3) for t in range(12 + n % 5)]
            flow = [round(rng.gauss(0, 1), 3) for _ in pulse]
            out.write(json.dumps({"pulse": pulse, "flow": flow, "state": "calm" if n % 2 else "moved"}) + "\n")
    return file


def write_level(file: Path) -> Path:
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["day", "level"])
        for n in range(120):
            table.writerow([f"2025-{1 + n // 28:02d}-{1 + n % 28:02d}", round(2 + math.sin(n / 3), 3)])
    return file


def train_runs(here: Path) -> Path:
    """Train the runs cups (text), pulses (two series), level (forecast) and verse (language model)."""
    runs = here / "runs"
    seqloom.train(write_cups(here / "cups.csv"), out=runs / "cups", **TRAINING)
    columns = {"input": ("pulse", "flow"), "target": ("state",)}
    seqloom.train(write_pulses(here / "pulses.jsonl"), out=runs / "pulses", **columns, kind="classify", **TRAINING)
    seqloom.train(write_level(here / "level.csv"), out=runs / "level", kind="forecast", **TRAINING)
    verse = here / "verse.txt"
    verse.write_text("\n".join(" ".join(WORDS[n % 8 :] + WORDS[: n % 8]) for n in range(60)))
    seqloom.train(verse, out=runs / "verse", kind="generate", **TRAINING)
    return runs


def open_site(places, token=None, **settings):
    """Return what a server of these runs consists of; the client works inside `with`."""
    chosen, metrics = ServeSettings(**{"reload": 0.0, **settings}), Metrics()
    runs = load_runs([str(place) for place in places], chosen, metrics)
    app = build_app(runs, chosen, metrics, token)
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    return SimpleNamespace(app=app, client=client, runs=runs, metrics=metrics, state=app.state, settings=chosen)

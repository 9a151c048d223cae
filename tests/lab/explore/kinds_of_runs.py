"""One small run of every kind of task, trained for a few steps on data made here."""

import json
import math
import random
import struct
import wave

import polars as pl

import seqloom

TRAINING = dict(model="gru", steps=4, hidden=8, embedding=8, batch=8, dropout=0.0, device="cpu", validate_every=4)
WORDS = ["kettle", "teapot", "saucer", "spoon", "honey", "lemon", "ginger", "mint"]


def make_texts(rows=60):
    draw = random.Random(3)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(rows)]


def make_text(folder):
    texts = make_texts()
    label = ["tea <b>" if "mint" in text else "coffee" for text in texts]
    return pl.DataFrame({"text": texts, "label": label}), {"kind": "classify", "unit": "words"}


def make_tags(folder):
    tokens = [text.split() for text in make_texts()]
    return pl.DataFrame({"tokens": tokens, "tags": [["T" if t in "teapot" else "O" for t in ts] for ts in tokens]}), {}


def make_series(folder):
    rows = range(60)
    waves = [[round(math.sin((0.2 + 0.3 * (n % 2)) * t + n), 3) for t in range(12 + n % 5)] for n in rows]
    flow = [[round(math.cos(t * n), 3) for t in range(len(wave_))] for n, wave_ in zip(rows, waves, strict=True)]
    frame = pl.DataFrame({"pulse": waves, "flow": flow, "state": ["calm" if n % 2 else "moved" for n in rows]})
    return frame, {"input": ("pulse", "flow"), "target": ("state",), "kind": "classify"}


def make_value(folder):
    texts = make_texts()
    return pl.DataFrame({"text": texts, "price": [len(text) / 7 for text in texts]}), {"kind": "regress"}


def make_forecast(folder):
    level = [round(2 + math.sin(n / 3), 3) for n in range(160)]
    frame = pl.DataFrame({"level": level, "rain": [round(math.cos(n / 5), 3) for n in range(160)]})
    return frame, {"kind": "forecast", "lookback": 24, "horizon": 6}


def make_translation(folder):
    texts = make_texts()
    (folder / "pairs.de").write_text("\n".join(texts) + "\n")
    (folder / "pairs.en").write_text("\n".join(" ".join(text.split()[::-1]) for text in texts) + "\n")
    return f"{folder}/pairs.de,{folder}/pairs.en", {}


def make_characters(folder):
    (folder / "verse.txt").write_text("to be or not to be that is the question " * 40)
    return str(folder / "verse.txt"), {"lookback": 20}


def write_tone(file, pitch, rate=2000, samples=400):
    file.parent.mkdir(parents=True, exist_ok=True)
    values = [round(12_000 * math.sin(2 * math.pi * pitch * t / rate)) for t in range(samples)]
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(struct.pack(f"<{samples}h", *values))


def make_audio(folder):
    for n in range(40):
        write_tone(folder / "tones" / ("low" if n % 2 else "high") / f"{n}.wav", (120 if n % 2 else 400) + n)
    return str(folder / "tones"), {"kind": "classify"}


def make_speech(folder):
    for n in range(40):
        write_tone(folder / "speech" / f"s{n}.wav", (120 if n % 2 else 400) + n, samples=1600)
        (folder / "speech" / f"s{n}.txt").write_text("ba" if n % 2 else "bi")
    return str(folder / "speech"), {}


KINDS = {
    "text": make_text,
    "tags": make_tags,
    "series": make_series,
    "value": make_value,
    "forecast": make_forecast,
    "translation": make_translation,
    "characters": make_characters,
    "audio": make_audio,
    "speech": make_speech,
}


def train_kind(kind, folder):
    """Train the run of a kind in a folder; a frame is written to a file, so that the page can list its rows."""
    data, options = KINDS[kind](folder)
    if isinstance(data, pl.DataFrame):
        file = folder / f"{kind}.jsonl"
        file.write_text("\n".join(json.dumps(row) for row in data.to_dicts()) + "\n")
        data = str(file)
    return seqloom.train(data, out=folder / "runs" / kind, **(TRAINING | options))

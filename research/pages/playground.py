"""Train the demo models of docs/playground.html on texts made here, and write the page.

    python -m research playground              train the models and write the page
    python -m research playground --page       write the page again with the models that it holds, after a new build

The corpora are generated, so that every word decides as its rule says, and the page holds no one's data.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl

import seqloom
from seqloom.lab.explore.saved_page import build_page, record_examples
from seqloom.lab.explore.service import RunEntry, Service
from seqloom.lab.files.scratch import write_text

PAGE = Path(__file__).parents[2] / "docs" / "playground.html"
DEEPER: dict[str, object] = {"layers": 2, "steps": 2500, "lr": 3e-3}
HARDER = {("adding", "transformer"): DEEPER, ("copying", "transformer"): DEEPER}
MODELS = ("gru", "lstm", "attn_rnn", "transformer")
GOOD = "good great warm sharp funny clever moving fresh bright lovely brilliant honest tender witty charming"
BAD = "bad dull cold weak dreary silly boring stale dark awful clumsy false harsh slow tedious"
NOUNS = "plot cast score script film story acting music ending dialogue movie pace humour"
STARTS = ("the {} is", "this {} is", "i think the {} is", "its {} was", "the {} seems")
DEGREES = ("", "", "very ", "really ", "so ")
ENDINGS = {
    "Russian": "ov ova enko in sky",
    "Italian": "ini elli etti one ucci",
    "Swedish": "sson gren qvist lund",
    "Greek": "opoulos akis idis ou",
    "Polish": "wicz czyk ski ska",
    "Basque": "etxea egi arte urru",
}
EXAMPLES = ("the plot is dull , but the cast is great", "this film is not very good", "the story is not slow")


def make_reviews(rows: int = 6000) -> pl.DataFrame:
    """Sentences: a list means what its first clause says; "not" flips; after "but" the second clause counts."""
    draw = random.Random(1)

    def clause() -> tuple[str, bool]:
        good, flips = draw.random() < 0.5, draw.random() < 0.35
        start = draw.choice(STARTS).format(draw.choice(NOUNS.split()))
        word = f"{'not ' if flips else ''}{draw.choice(DEGREES)}{draw.choice((GOOD if good else BAD).split())}"
        return f"{start} {word}", good != flips

    texts, labels = [], []
    for _ in range(rows):
        (a, p), (b, q) = clause(), clause()
        kind = draw.choice(("plain", "plain", "list", "but", "however"))
        text, good = {
            "plain": (a, p),
            "list": (f"{a} , {b}", p),
            "but": (f"{a} , but {b}", q),
            "however": (f"{a} , however {b}", q),
        }[kind]
        texts.append(text)
        labels.append("good" if good else "bad")
    return pl.DataFrame({"text": texts, "label": labels})


def make_names(rows: int = 6000) -> pl.DataFrame:
    """Invented surnames: the ending tells the language, as in most real ones; the rest is chance."""
    draw = random.Random(3)
    names, labels = [], []
    for _ in range(rows):
        language = draw.choice(tuple(ENDINGS))
        stem = "".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(draw.randint(1, 3)))
        names.append(stem + draw.choice("lmnrstk") + draw.choice(ENDINGS[language].split()))
        labels.append(language)
    return pl.DataFrame({"text": names, "label": labels})


def make_adding(rows: int = 12000) -> pl.DataFrame:
    """The adding problem with digits: the label is the sum of the two digits behind a plus sign."""
    draw = random.Random(4)
    texts, labels = [], []
    for _ in range(rows):
        digits = [draw.choice("01234") for _ in range(draw.randint(3, 7))]
        marked = draw.sample(range(len(digits)), 2)
        texts.append("".join(f"+{d}" if i in marked else d for i, d in enumerate(digits)))
        labels.append(str(sum(int(digits[i]) for i in marked)))
    return pl.DataFrame({"text": texts, "label": labels})


def make_copying(rows: int = 12000) -> pl.DataFrame:
    """The copy problem, one symbol at a time: which of two letters to repeat after a pause, and the letters."""
    draw = random.Random(5)
    texts, labels = [], []
    for _ in range(rows):
        letters, place = [draw.choice("abcdefghijkl") for _ in range(2)], draw.randrange(2)
        texts.append(str(place + 1) + "".join(letters) + "." * draw.randint(1, 8))
        labels.append(letters[place])
    return pl.DataFrame({"text": texts, "label": labels})


def train(name: str, data: pl.DataFrame, model: str, runs: Path, **settings: object) -> RunEntry:
    sizes = dict(hidden=24, embedding=16, lr=5e-3, dropout=0.0, batch=64, device="cpu", readout="last")
    file = runs / f"{name}.csv"
    if not file.exists():
        data.write_csv(file)
    run = seqloom.train(
        str(file), out=runs / f"{name}-{model}", model=model, **(sizes | settings | HARDER.get((name, model), {}))
    )
    return RunEntry(run.name, run)


def read_page(page: str) -> dict:  # type: ignore[type-arg]
    """Return the recording inside a page that `build_page` returned."""
    data = page.split('<script id="recording" type="application/json">')[1].split("</script>", maxsplit=1)[0]
    parts = [part.split("</script>")[0] for part in page.split('<script class="array" type="text/plain">')[1:]]
    recording = json.loads(data)
    return recording | {"arrays": dict(zip(recording["arrays"], parts, strict=True))}


def main() -> None:
    page = read_page(PAGE.read_text()) if "--page" in sys.argv else record()
    write_text(PAGE, build_page(page, "seqloom playground"))
    print(f"{PAGE.name}: {PAGE.stat().st_size / 1e6:.2f} MB")


def record() -> dict:  # type: ignore[type-arg]
    """Train the models and record their examples."""
    by_letter = {"unit": "characters", "kind": "classify"}
    tasks: dict[str, tuple[Callable[[], pl.DataFrame], dict[str, object], tuple[str, ...]]] = {
        "sentiment": (make_reviews, {"steps": 900, "unit": "words"}, EXAMPLES),
        "names": (make_names, {"steps": 600, **by_letter}, ("petrovic", "bellini", "andersson")),
        "adding": (make_adding, {"steps": 1200, "lr": 8e-3, **by_letter}, ("2+31+40", "+1023+2")),
        "copying": (make_copying, {"steps": 1200, "lr": 8e-3, **by_letter}, ("1ab...", "2cd.....")),
    }
    recording: dict = {}  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, settings, texts) in tasks.items():
            entries = [train(name, make(), model, Path(folder), **settings) for model in MODELS]
            for entry in entries:
                scores = [line["accuracy"] for line in entry.run.metrics() if "accuracy" in line]
                print(f"{entry.name}: accuracy {scores[-1]:.3f}", flush=True)
            part = record_examples(Service(entries), 3, texts)
            recording = merge(recording, part, name) if recording else part
    return recording


def merge(first: dict, second: dict, prefix: str) -> dict:  # type: ignore[type-arg]
    """Join two recordings; the keys of the second one's arrays get a prefix."""
    for examples in second["explanations"].values():
        for document in examples.values():
            document["key"] = f"{prefix}{document['key']}"
    second["arrays"] = {f"{prefix}{key}": array for key, array in second["arrays"].items()}
    joined = {name: first[name] | second[name] for name in first if name != "about"}
    return joined | {"about": first["about"] | {"runs": first["about"]["runs"] + second["about"]["runs"]}}

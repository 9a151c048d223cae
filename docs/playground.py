"""Train the demo models of docs/playground.html on sentences and digits made here, and write the page.

    python docs/playground.py              train the models and write the page
    python docs/playground.py --page       write the page again with the models that it holds, after a new build

The corpora are generated, so that every word decides as its rule says, and the page holds no one's data.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl

import seqloom
from seqloom.lab.explore.saved_page import build_page, read_page, record_examples, write_page
from seqloom.lab.explore.service import Entry, Service

PAGE = Path(__file__).parent / "playground.html"
MODELS = ("gru", "lstm", "attn_rnn", "transformer")
GOOD = "good great warm sharp funny clever moving fresh bright lovely brilliant honest tender witty charming"
BAD = "bad dull cold weak dreary silly boring stale dark awful clumsy false harsh slow tedious"
NOUNS = "plot cast score script film story acting music ending dialogue movie pace humour"
STARTS = ("the {} is", "this {} is", "i think the {} is", "its {} was", "the {} seems")
DEGREES = ("", "", "very ", "really ", "so ")
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


def make_recall(rows: int = 5000) -> pl.DataFrame:
    """Digits between dots: the label is the first digit, which has to be kept to the end."""
    draw = random.Random(2)
    texts = [
        "".join(draw.choice("0123456789") if i == 0 or draw.random() < 0.3 else "." for i in range(draw.randint(3, 14)))
        for _ in range(rows)
    ]
    return pl.DataFrame({"text": texts, "label": [text[0] for text in texts]})


def train(name: str, data: pl.DataFrame, model: str, runs: Path, **settings: object) -> Entry:
    sizes = dict(hidden=24, embedding=16, lr=5e-3, dropout=0.0, batch=64, device="cpu", readout="last")
    file = runs / f"{name}.csv"
    if not file.exists():
        data.write_csv(file)
    run = seqloom.fit(str(file), name=f"{name}-{model}", model=model, runs=runs, **(sizes | settings))
    return Entry(run.name, run)


def main() -> None:
    page = read_page(PAGE.read_text()) if "--page" in sys.argv else record()
    write_page(PAGE, build_page(page, "seqloom playground"))
    print(f"{PAGE.name}: {PAGE.stat().st_size / 1e6:.2f} MB")


def record() -> dict:  # type: ignore[type-arg]
    """Train the models and record their examples."""
    tasks: dict[str, tuple[Callable[[], pl.DataFrame], dict[str, object]]] = {
        "sentiment": (make_reviews, {"steps": 900, "unit": "words"}),
        "recall": (make_recall, {"steps": 900, "unit": "characters", "kind": "classify"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        entries = [
            train(name, make(), model, Path(folder), **settings)
            for name, (make, settings) in tasks.items()
            for model in MODELS
        ]
        sentiment = record_examples(Service(entries[: len(MODELS)]), 3, EXAMPLES)
        recall = record_examples(Service(entries[len(MODELS) :]), 4)
        return merge(sentiment, recall)


def merge(first: dict, second: dict) -> dict:  # type: ignore[type-arg]
    """Join two recordings; the keys of the second one's arrays get a prefix."""
    for examples in second["explanations"].values():
        for document in examples.values():
            document["key"] = f"b{document['key']}"
    second["arrays"] = {f"b{key}": array for key, array in second["arrays"].items()}
    joined = {name: first[name] | second[name] for name in first if name != "about"}
    return joined | {"about": first["about"] | {"runs": first["about"]["runs"] + second["about"]["runs"]}}


if __name__ == "__main__":
    main()

"""A small corpus in which one word decides: "not", "but" and "however" turn the meaning of a sentence."""

import random

import polars as pl

GOOD, BAD = ["good", "great", "warm", "sharp", "funny"], ["bad", "dull", "cold", "weak", "dreary"]
NOUNS = ["plot", "cast", "score", "script", "film"]
TURNS = {
    "the plot is not good": "not",
    "the film is not dull": "not",
    "the script is not sharp": "not",
    "the cast is not weak": "not",
    "the plot is dull , but the cast is great": "but",
    "the film is warm , but the script is weak": "but",
    "the score is cold , but the plot is funny": "but",
    "the cast is bad , however the score is good": "however",
    "the script is sharp , however the film is dreary": "however",
    "the film is dreary , however the cast is warm": "however",
}


def make_frame(rows=800):
    """A list of clauses means what its first clause says; after a turning word the second clause counts."""
    draw = random.Random(0)

    def clause():
        good = draw.random() < 0.5
        return f"the {draw.choice(NOUNS)} is", draw.choice(GOOD if good else BAD), good

    texts, labels = [], []
    while len(texts) < rows:
        kind = draw.choice(["plain", "not", "list", "but", "however"])
        (a, x, p), (b, y, q) = clause(), clause()
        text, good = {
            "plain": (f"{a} {x}", p),
            "not": (f"{a} not {x}", not p),
            "list": (f"{a} {x} , {b} {y}", p),
            "but": (f"{a} {x} , but {b} {y}", q),
            "however": (f"{a} {x} , however {b} {y}", q),
        }[kind]
        if text not in TURNS:
            texts.append(text)
            labels.append("good" if good else "bad")
    return pl.DataFrame({"text": texts, "label": labels})

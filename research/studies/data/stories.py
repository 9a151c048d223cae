"""Generated stories with a question: people move, take and drop things; the answer is a place."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

PEOPLE = ("mary", "john", "sandra", "daniel", "emma")
PLACES = ("kitchen", "garden", "office", "hallway", "bathroom", "cellar")
THINGS = ("ball", "book", "lamp", "apple")
VERBS = {"go": ("went", "walked", "ran"), "take": ("took", "grabbed"), "drop": ("dropped", "left")}
WORDS = (
    *("<padding>", "to", "the", "where", "is", "was", "before"),
    *(verb for verbs in VERBS.values() for verb in verbs),
    *PEOPLE,
    *PLACES,
    *THINGS,
)
IDS = {word: i for i, word in enumerate(WORDS)}
FACTS = (1, 2, 3)  # sentences that an answer needs
ROWS = {"train": 20_000, "valid": 1_000, "test": 1_000}

Parts = dict[str, tuple[Tensor, ...]]


def stories(facts: int, steps: int, every: int = 1, seed: int = 0) -> Parts:
    """Return words (N, steps), the place that answers the question, and lengths, by split; no story is there twice.

    Args:
        facts: 1 asks where a person is, 2 where a thing is, 3 where a thing was before its last place.
        steps: Longest story with its question; longer ones are not used.
        every: 2 halves the training rows, and so on.
        seed: Of the random numbers.
    """
    random, seen = Random(seed), set[tuple[str, ...]]()
    parts: Parts = {}
    for split in ("test", "valid", "train"):
        rows: list[tuple[list[str], int]] = []
        while len(rows) < (ROWS[split] // every if split == "train" else ROWS[split]):
            text, answer = tell(facts, random)
            if len(text) <= steps and tuple(text) not in seen:
                seen.add(tuple(text))
                rows.append((text, PLACES.index(answer)))
        x = torch.zeros(len(rows), steps, dtype=torch.long)
        for i, (text, _) in enumerate(rows):
            x[i, : len(text)] = torch.tensor([IDS[word] for word in text])
        parts[split] = (x, torch.tensor([y for _, y in rows]), torch.tensor([len(text) for text, _ in rows]))
    return parts


def tell(facts: int, random: Random) -> tuple[list[str], str]:
    """Return the words of a story and its question, and the answer.

    Example:
        >>> from random import Random
        >>> text, answer = tell(1, Random(0))
        >>> text[-3:-1], answer in PLACES
        (['where', 'is'], True)
    """
    while True:
        text, places, holder, trail = [], dict[str, str](), dict[str, str](), dict[str, list[str]]()
        for _ in range(random.randint(4, 10)):
            text += _happen(random, places, holder, trail)
        options = sorted(places if facts == 1 else (thing for thing, at in trail.items() if len(at) >= facts - 1))
        if not options:
            continue
        asked = random.choice(options)
        if facts == 1:
            return [*text, "where", "is", asked], places[asked]
        if facts == 2:
            return [*text, "where", "is", "the", asked], trail[asked][-1]
        return [*text, "where", "was", "the", asked, "before", "the", trail[asked][-1]], trail[asked][-2]


def _happen(random: Random, places: dict[str, str], holder: dict[str, str], trail: dict[str, list[str]]) -> list[str]:
    """Choose the next event, update who is where and where each thing has been, and return its sentence."""
    free = [
        (who, thing)
        for who in places
        for thing in THINGS
        if thing not in holder and _is_near(who, thing, places, trail)
    ]
    kind = random.choice(["go", "go"] + ["take"] * bool(free) + ["drop"] * bool(holder))
    if kind == "go":
        who = random.choice(PEOPLE)
        place = random.choice([p for p in PLACES if p != places.get(who)])
        places[who] = place
        for thing in (thing for thing, by in holder.items() if by == who):
            trail[thing].append(place)
        return [who, random.choice(VERBS["go"]), "to", "the", place]
    if kind == "take":
        who, thing = random.choice(free)
        holder[thing] = who
        trail.setdefault(thing, [places[who]])
    else:
        thing = random.choice(sorted(holder))
        who = holder.pop(thing)
    return [who, random.choice(VERBS[kind]), "the", thing]


def _is_near(who: str, thing: str, places: dict[str, str], trail: dict[str, list[str]]) -> bool:
    """Return whether a person can take a thing: it has not been seen yet, or lies where the person is."""
    return thing not in trail or trail[thing][-1] == places[who]

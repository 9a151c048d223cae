"""Sequences of symbols with a label after every step: state tracking, the first symbol, and text."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from research.studies.data.examples import LabelledRows
from research.studies.data.mnist import PIXELS, mnist
from research.studies.data.place import find
from research.studies.data.state_problems import make_state_problem
from seqloom.lab.data.task import IGNORE

KINDS = 8  # symbols of "first symbol"
FIRST, COPY, TEXT, PIXEL_ROWS = "first symbol", "copy", "text", "pixels"
CHARACTERS, SPACES = 65, 0.1527  # of the text: different characters; share of the most frequent one, the space
SIDE = 28  # pixels of an image
SHADES, ONES = 16, 0.1135  # of "pixels": grey values; share of the most frequent digit, 1
VALID_IMAGES = 5_000  # of the training images
COUNTED_ROWS = 64  # rows in which labels are counted; all rows have the same number of them, except for "keyed"
HELD_OUT = 0.05  # share of the text for validation, and again for the test: its end

ABOUT = {  # what a problem asks, for captions
    FIRST: f"name the first of random symbols of {KINDS} kinds",
    COPY: f"repeat symbols of {KINDS} kinds after a mark",
    TEXT: "the next character of tiny Shakespeare",
    PIXEL_ROWS: f"MNIST digits in {SHADES} grey values, pixel by pixel",
    "recall": "the value of a key, 8 pairs",
    "recall 32": "the value of a key, 32 pairs",
    "parity": "the parity of all bits so far",
    "S3": "the product of permutations so far",
    "keyed 4": "the last bit written to one of 4 slots",
    "keyed 8": "the last bit written to one of 8 slots",
}

Draw = Callable[[torch.Generator, int, int, str], tuple[Tensor, Tensor]]  # generator, rows, steps, split -> x and y


@dataclass(frozen=True)
class SymbolProblem:
    """Symbols x (rows, steps) with labels y of the same shape; y is IGNORE where nothing is asked.

    `draw` needs no host synchronisation, so that a training step that draws a batch can be a CUDA graph.
    """

    name: str
    symbols: int
    classes: int
    chance: float  # accuracy of the most frequent label
    draw: Draw


def make_problem(name: str) -> SymbolProblem:
    """Return the problem with this name: one of this module, or a state-tracking problem."""
    if name == FIRST:
        return SymbolProblem(name, KINDS, KINDS, 1 / KINDS, _draw_first)
    if name == COPY:
        return SymbolProblem(name, KINDS + 2, KINDS, 1 / KINDS, _draw_copy)
    if name == PIXEL_ROWS:
        return _make_pixels()
    if name == TEXT:
        return _make_text()
    state = make_state_problem(name)
    return SymbolProblem(
        name, state.symbols, state.classes, state.chance, lambda random, rows, steps, _: state.draw(random, rows, steps)
    )


def find_late(steps: int, late: int) -> int:
    """Return the first of the last 1 / `late` of the steps, which are the ones that are scored."""
    return steps - -(-steps // late)


@cache
def count_labels(name: str, rows: int, steps: int, late: int) -> int:
    """Return how many labels test sequences have in the last 1 / `late` of their steps, without reading a data set.

    Where chance decides what is asked ("keyed"), the number is an estimate: each device draws other sequences.
    """
    first = find_late(steps, late)
    if name == PIXEL_ROWS:
        return rows
    if name == TEXT:
        return rows * (steps - first)
    some = min(rows, COUNTED_ROWS)
    _, y = make_problem(name).draw(torch.Generator().manual_seed(0), some, steps, "test")
    return int((y[:, first:] != IGNORE).sum()) * rows // some


def _draw_first(random: torch.Generator, rows: int, steps: int, split: str) -> tuple[Tensor, Tensor]:
    """Draw random symbols; the label of every step is the first one."""
    x = torch.randint(KINDS, (rows, steps), generator=random, device=random.device)
    return x, x[:, :1].expand(-1, steps).contiguous()


def _draw_copy(random: torch.Generator, rows: int, steps: int, split: str) -> tuple[Tensor, Tensor]:
    """Draw n symbols, a mark, and n blank steps in which the symbols are to be repeated.

    For tests n is (steps - 1) / 2; for training it is random and at most that.

    Graves et al. 2014, arXiv 1410.5401, section 4.1, with symbols in place of random bits.
    """
    at, most = random.device, (steps - 1) // 2
    symbols = torch.randint(KINDS, (rows, most), generator=random, device=at)
    n = torch.randint(1, most + 1, (rows, 1), generator=random, device=at)
    n = n if split == "train" else torch.full_like(n, most)
    time = torch.arange(steps, device=at).unsqueeze(0)
    source = symbols.gather(1, time.clamp(max=most - 1).expand(rows, -1))
    answer = symbols.gather(1, (time - n - 1).clamp(0, most - 1))
    x = torch.where(time < n, source, torch.where(time == n, KINDS, KINDS + 1))
    return x, torch.where((time > n) & (time <= 2 * n), answer, IGNORE)


@cache
def _make_pixels() -> SymbolProblem:
    """Return MNIST as grey values in reading order, the digit asked at the last pixel; fewer steps: smaller images."""
    on = dict[tuple[str, torch.device], LabelledRows]()

    def draw(random: torch.Generator, rows: int, steps: int, split: str) -> tuple[Tensor, Tensor]:
        at = random.device
        if (split, at) not in on:  # before a CUDA graph is recorded: its warm-up draws, too
            on[split, at] = _read_images(split).to(at)
        data = on[split, at]
        some = data.rows(torch.randint(len(data), (rows,), generator=random, device=at))
        labels = torch.where(torch.arange(steps, device=at) == steps - 1, some.y.unsqueeze(1), IGNORE)
        x = some.x
        if steps < PIXELS:  # means of squares
            x = F.avg_pool2d(x.view(rows, 1, SIDE, SIDE).float(), SIDE // math.isqrt(steps)).flatten(1)
        return x.long() * SHADES // 256, labels

    return SymbolProblem(PIXEL_ROWS, SHADES, 10, ONES, draw)


def _read_images(split: str) -> LabelledRows:
    """Return images as bytes (N, steps)."""
    if split == "test":
        return mnist(split)
    images = mnist("train").shuffle()
    return images.part(VALID_IMAGES, len(images)) if split == "train" else images.part(0, VALID_IMAGES)


@cache
def split_text() -> dict[str, Tensor]:
    """Return tiny Shakespeare as ids of its characters: "train", "valid" and "test". Karpathy 2015."""
    (file,) = find("tiny_shakespeare", "input.txt.gz")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        letters = text.read()
    numbers = {letter: i for i, letter in enumerate(sorted(set(letters)))}
    ids = torch.tensor([numbers[letter] for letter in letters])
    held = int(HELD_OUT * len(ids))
    train = len(ids) - 2 * held
    return {"train": ids[:train], "valid": ids[train : train + held], "test": ids[train + held :]}


@cache
def _make_text() -> SymbolProblem:
    """Return the problem of predicting the next character, at random places of the text."""
    on = dict[tuple[str, torch.device], Tensor]()

    def draw(random: torch.Generator, rows: int, steps: int, split: str) -> tuple[Tensor, Tensor]:
        at = random.device
        if (split, at) not in on:  # before a CUDA graph is recorded: its warm-up draws, too
            on[split, at] = split_text()[split].to(at)
        ids = on[split, at]
        begin = torch.randint(len(ids) - steps, (rows, 1), generator=random, device=at)
        window = ids[begin + torch.arange(steps + 1, device=at)]
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()

    return SymbolProblem(TEXT, CHARACTERS, CHARACTERS, SPACES, draw)

"""Tag real text: UD English-EWT parts of speech and CoNLL-2000 chunks. tag.py --data FOLDER [--quick]."""

import gzip
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from research.quality import runs
from research.record import Stopwatch
from seqloom.lab.stats import spans
from seqloom.layers.registry import make
from seqloom.models.characters import Characters
from seqloom.models.embed import Embed
from seqloom.models.tag import Tag
from seqloom.tools.measure import parameters

PADDING, UNKNOWN = 0, 1
Sentence = list[tuple[str, str, str]]  # words, what else is known of each ("" where nothing is), and tags


@dataclass(frozen=True)
class Settings:
    """Settings of every training here."""

    dim: int = 128
    given_dim: int = 32
    letters_dim: int = 32
    letters_size: int = 64
    hidden: int = 256
    depth: int = 1
    dropout: float = 0.5
    unknown: float = 0.2  # the chance that a word seen once is read as one never seen
    longest_word: int = 20
    batch: int = 32
    epochs: int = 20
    lr: float = 2e-3


QUICK = Settings(dim=32, letters_size=16, hidden=32, epochs=2, dropout=0.2)


def ewt(folder: Path) -> dict[str, list[Sentence]]:
    """Read words and UPOS; contractions (1-2) and elided words (1.1) have none and are left out."""
    parts = {}
    for part in ("train", "dev", "test"):
        with gzip.open(folder / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu.gz", "rt", encoding="utf-8") as file:
            rows = [
                [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
                for block in _blocks(file.read())
            ]
        parts[part] = [[(row[1], "", row[3]) for row in block if row[0].isdigit()] for block in rows]
    return parts


def conll2000(folder: Path) -> dict[str, list[Sentence]]:
    """Read words, their parts of speech (automatic, from the shared task) and chunks.

    Every tenth sentence of the training data is for validation.
    """
    parts = {}
    for part in ("train", "test"):
        with gzip.open(folder / "conll2000" / f"{part}.txt.gz", "rt", encoding="utf-8") as file:
            rows = [[line.split() for line in block.splitlines()] for block in _blocks(file.read())]
        parts[part] = [[(row[0], row[1], row[2]) for row in block] for block in rows]
    return {
        "train": [s for i, s in enumerate(parts["train"]) if i % 10],
        "dev": parts["train"][::10],
        "test": parts["test"],
    }


def _blocks(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.strip()]


class Reader:
    """Sentences as tensors: words by their lower case, letters as they are, tags; learned from training data."""

    def __init__(self, train: list[Sentence], settings: Settings) -> None:
        counts = Counter(word.lower() for sentence in train for word, _, _ in sentence)
        self.words = {word: i for i, word in enumerate(counts, 2)}
        self.once = torch.tensor([False, False, *(n == 1 for n in counts.values())])
        self.letters = {c: i for i, c in enumerate(sorted({c for s in train for word, _, _ in s for c in word}), 2)}
        self.given = {known: i for i, known in enumerate(sorted({known for s in train for _, known, _ in s}), 2)}
        self.tags = sorted({tag for sentence in train for _, _, tag in sentence})
        self.number = {tag: i for i, tag in enumerate(self.tags)}
        self.longest = settings.longest_word

    def __call__(self, sentences: list[Sentence], device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Words and what is known of them (B, T, 2), tags (B, T), lengths (B,), letters (B, T, C)."""
        lengths = torch.tensor([len(s) for s in sentences])
        B, T = len(sentences), int(lengths.max())
        words, tags = torch.zeros(B, T, 2, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
        letters = torch.zeros(B, T, self.longest, dtype=torch.long)
        for i, sentence in enumerate(sentences):
            known = [[self.words.get(w.lower(), UNKNOWN), self.given.get(k, UNKNOWN)] for w, k, _ in sentence]
            words[i, : len(sentence)] = torch.tensor(known)
            tags[i, : len(sentence)] = torch.tensor([self.number.get(tag, 0) for _, _, tag in sentence])
            for t, (word, _, _) in enumerate(sentence):
                codes = [self.letters.get(c, UNKNOWN) for c in self._cut(word)]
                letters[i, t, : len(codes)] = torch.tensor(codes)
        letters = letters[:, :, : int((letters != PADDING).sum(-1).max())]
        return words.to(device), tags.to(device), lengths.to(device), letters.to(device)

    def _cut(self, word: str) -> str:
        """Return the beginning and the end of a very long word."""
        half = self.longest // 2
        return word if len(word) <= self.longest else word[:half] + word[-half:]


class Words(nn.Module):
    """Words, and what is known of each, side by side: (B, T, 2) -> (B, T, dim + given_dim)."""

    def __init__(self, reader: Reader, settings: Settings) -> None:
        super().__init__()
        self.word = Embed(len(reader.words) + 2, settings.dim)
        self.given = Embed(len(reader.given) + 2, settings.given_dim)
        self.output_size = settings.dim + settings.given_dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.word(x[..., 0]), self.given(x[..., 1])], -1)


def accuracy(right: list[list[str]], predicted: list[list[str]]) -> float:
    """Return the percentage of right words."""
    pairs = [a == b for r, s in zip(right, predicted, strict=True) for a, b in zip(r, s, strict=True)]
    return 100 * sum(pairs) / len(pairs)


def span_f1(right: list[list[str]], predicted: list[list[str]]) -> float:
    """Return the span F1 in percent."""
    rows = [spans.count_spans(r, p) for r, p in zip(right, predicted, strict=True)]
    found, claimed, there = map(sum, zip(*rows, strict=True))
    return 200 * found / max(1, claimed + there)


TASKS = {
    "ewt": (ewt, accuracy, "upos_accuracy", False, ">= 93"),
    "conll2000": (conll2000, span_f1, "span_f1", True, ">= 93"),
}


def train(task: str, layer: str, seed: int, parts: dict[str, list[Sentence]], settings: Settings, device: str) -> dict:
    """Train and test one model."""
    _, measure, metric, crf, gate = TASKS[task]
    torch.manual_seed(seed)
    reader = Reader(parts["train"], settings)
    embed = Words(reader, settings)
    model = Tag(
        make(layer, embed.output_size + settings.letters_size, settings.hidden, num_layers=settings.depth),
        len(reader.tags),
        embed=embed,
        characters=Characters(len(reader.letters) + 2, settings.letters_dim, settings.letters_size),
        dropout=settings.dropout,
        crf=crf,
    ).to(device)
    shuffle, once = random.Random(seed), reader.once.to(device)
    # read once: in the order of length, so that a batch holds little padding
    ordered = sorted(parts["train"], key=len)
    batches = [reader(ordered[i : i + settings.batch], device) for i in range(0, len(ordered), settings.batch)]
    evaluation = {
        part: [reader(parts[part][i : i + 128], device) for i in range(0, len(parts[part]), 128)]
        for part in ("dev", "test")
    }

    def loss(batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        words, tags, lengths, letters = batch
        word, case = words.unbind(-1)
        forgotten = once[word] & (torch.rand(word.shape, device=device) < settings.unknown)
        words = torch.stack([word.masked_fill(forgotten, UNKNOWN), case], -1)
        return model.loss(words, tags, lengths, letters)

    def epochs() -> Iterator[Iterator[partial[Tensor]]]:
        for _ in range(settings.epochs):
            shuffle.shuffle(batches)
            yield (partial(loss, batch) for batch in batches)

    def score(part: str) -> float:
        predicted = []
        for words, _, lengths, letters in evaluation[part]:
            predicted += [
                [reader.tags[k] for k in row if k >= 0] for row in model.decode(words, lengths, letters).tolist()
            ]
        return measure([[tag for _, _, tag in sentence] for sentence in parts[part]], predicted)

    start = Stopwatch()
    validation = runs.fit(
        model,
        epochs(),
        settings.epochs * len(batches),
        settings.lr,
        partial(score, "dev"),
        f"{task} {layer} seed {seed}",
    )
    return {
        "task": task,
        "layer": layer,
        "gate": f"{metric} {gate}",
        "seed": seed,
        "parameters": parameters(model),
        "seconds": start.seconds,
        "validation": validation,
        "test": {metric: score("test")},
    }


def main() -> None:
    flags = runs.flags(__doc__, ["bi_lstm", "bi_attn_rnn"])
    flags.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    arguments = flags.parse_args()
    settings, trainings = QUICK if arguments.quick else Settings(), []
    for task in arguments.tasks:
        parts = TASKS[task][0](arguments.data)
        if arguments.quick:
            parts = {part: sentences[:600] for part, sentences in parts.items()}
        for layer in arguments.layers:
            for seed in range(arguments.seeds):
                trainings.append(train(task, layer, seed, parts, settings, arguments.device))
                runs.write("tag", arguments, asdict(settings), trainings)

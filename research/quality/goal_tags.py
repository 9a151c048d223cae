"""Goals on tags: parts of speech (UD English-EWT) and chunks (CoNLL-2000)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality import tag
from research.quality.goal_characters import SharedDropout
from research.quality.goal_recipe import Batch, Training, draw_by_length
from research.quality.goal_size import Size
from research.studies.data.place import find
from seqloom.core.masks import make_mask
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.characters import Characters
from seqloom.models.decoding.crf import CRF

UNKNOWN = 1  # id; 0 is padding
AFFIXES = 8  # features of a word: suffixes of 1 to 4 letters, prefixes of 1 to 3, and its shape
LETTERS = 16  # of a word; longer ones keep their ends
DROPOUT = 0.33  # of the inputs of layers, shared by all words of a sentence
PIECE = 48  # words of a training row; longer sentences are cut
LENGTHS = (12, 18, 24, 32, PIECE)  # words of the rows of one batch
FILES = {"ewt": ("ud_english_ewt", "en_ewt-ud-test.conllu.gz"), "conll": ("conll2000", "test.txt.gz")}


def describe_word(word: str) -> tuple[str, ...]:
    """Return the suffixes, the prefixes and the shape of a word, such as Xx for London and d-x for 3-year."""
    low = word.lower()
    shape = "".join("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    short = "".join(c for i, c in enumerate(shape) if i == 0 or c != shape[i - 1])[:8]
    return *(f"-{low[-n:]}" for n in (1, 2, 3, 4)), *(f"{low[:n]}-" for n in (1, 2, 3)), short


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Ids of words, affixes, letters, given tags and tags, from the training sentences."""

    words: dict[str, int]
    rare: Tensor  # chance that a word is read as unknown in training
    affixes: dict[str, int]
    letters: dict[str, int]
    given: dict[str, int]
    tags: list[str]

    @classmethod
    def learn(cls, sentences: list[tag.Sentence]) -> Vocabulary:
        tokens = [token for sentence in sentences for token in sentence]
        words = Counter(word.lower() for word, _, _ in tokens)
        affixes = Counter(part for word, _, _ in tokens for part in describe_word(word))
        rare = torch.tensor([0.0, 0.0, *(0.25 / (0.25 + n) for n in words.values())])
        return cls(
            {word: i for i, word in enumerate(words, 2)},
            rare,
            {part: i for i, part in enumerate((p for p, n in affixes.items() if n > 2), 2)},
            {c: i for i, c in enumerate(sorted({c for word, _, _ in tokens for c in word}), 2)},
            {known: i for i, known in enumerate(sorted({known for _, known, _ in tokens}), 2)},
            sorted({label for _, _, label in tokens}),
        )

    def encode(self, sentences: list[tag.Sentence], device: torch.device) -> tuple[Tensor, ...]:
        """Return words (N, T), affixes (N, T, 8), letters (N, T, 16), given (N, T), tags (N, T) and lengths (N,)."""
        N, T = len(sentences), max(map(len, sentences))
        words, given, tags = (torch.zeros(N, T, dtype=torch.long) for _ in range(3))
        affixes = torch.zeros(N, T, AFFIXES, dtype=torch.long)
        letters = torch.zeros(N, T, LETTERS, dtype=torch.long)
        number, half = {label: i for i, label in enumerate(self.tags)}, LETTERS // 2
        for i, sentence in enumerate(sentences):
            n = len(sentence)
            words[i, :n] = torch.tensor([self.words.get(w.lower(), UNKNOWN) for w, _, _ in sentence])
            given[i, :n] = torch.tensor([self.given.get(k, UNKNOWN) for _, k, _ in sentence])
            tags[i, :n] = torch.tensor([number.get(label, 0) for _, _, label in sentence])
            parts = [[self.affixes.get(p, UNKNOWN) for p in describe_word(w)] for w, _, _ in sentence]
            affixes[i, :n] = torch.tensor(parts)
            cut = [w if len(w) <= LETTERS else w[:half] + w[-half:] for w, _, _ in sentence]
            codes = [[self.letters.get(c, UNKNOWN) for c in w] + [0] * (LETTERS - len(w)) for w in cut]
            letters[i, :n] = torch.tensor(codes)
        lengths = torch.tensor([len(s) for s in sentences])
        return tuple(t.to(device) for t in (words, affixes, letters, given, tags, lengths))


@cache
def read_sentences(
    task: str, device: torch.device, tiny: bool, has_validation: bool = True
) -> tuple[Vocabulary, dict[str, list[tag.Sentence]]]:
    folder, file = FILES[task]
    (path,) = find(folder, file)
    parts = (tag.ewt if task == "ewt" else tag.conll2000)(path.parents[1])
    if tiny:
        parts = {name: sentences[:60] for name, sentences in parts.items()}
    if not has_validation:
        parts["train"] = parts["train"] + parts.pop("dev")
    return Vocabulary.learn(parts["train"]), parts


class Tagger(nn.Module):
    """Words, letters, affixes and given tags; two recurrent layers in both directions; a head or a CRF."""

    rare: Tensor

    def __init__(self, known: Vocabulary, hidden: int, crf: bool, dropout: float, size: Size) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(len(known.words) + 2, 128, padding_idx=0)
        self.affixes = nn.Embedding(len(known.affixes) + 2, 24, padding_idx=0)
        self.given = nn.Embedding(len(known.given) + 2, 32, padding_idx=0)
        self.letters = Characters(len(known.letters) + 2, 32, 128, kind="cnn")
        with torch.no_grad():
            for table in (self.words, self.affixes, self.given):
                table.weight *= 0.3
        width = 128 + 24 * AFFIXES + 32 + 128
        kernel = "cuda" if size.device.type == "cuda" else "auto"  # one launch in a graph, where cuDNN has many
        self.layers = nn.ModuleList(
            Recurrent("lstm", D, hidden, batch_first=True, bidirectional=True, forget_bias=1.0, kernel=kernel)
            for D in (width, 2 * hidden)
        )
        self.dropout, self.head = SharedDropout(dropout), nn.Linear(2 * hidden, len(known.tags))
        self.crf = CRF(len(known.tags)) if crf else None
        self.register_buffer("rare", known.rare, persistent=False)

    def forward(self, words: Tensor, affixes: Tensor, letters: Tensor, given: Tensor, lengths: Tensor) -> Tensor:
        if self.training:
            forgotten = torch.rand(words.shape, device=words.device) < self.rare[words]
            words = words.masked_fill(forgotten, UNKNOWN)
        parts = [self.words(words), self.affixes(affixes).flatten(2), self.letters(letters), self.given(given)]
        y = self.dropout(torch.cat(parts, -1))
        for layer in self.layers:
            with self.size.low():
                y, _ = layer(y, lengths=lengths)
            y = self.dropout(y.float())
        return self.head(y)

    def loss(self, scores: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        real = make_mask(lengths, tags.shape[1])
        if self.crf is not None:
            return -self.crf.log_likelihood(scores, tags, lengths).sum() / real.sum()
        losses = F.cross_entropy(scores.flatten(0, 1), tags.flatten(), reduction="none", label_smoothing=0.05)
        return (losses * real.flatten()).sum() / real.sum()

    def decode(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return scores.argmax(-1) if self.crf is None else self.crf.decode(scores, lengths)[0]


class Together(nn.Module):
    """Several taggers as one: the mean of their scores, and a CRF with the mean of their weights."""

    def __init__(self, taggers: list[nn.Module]) -> None:
        super().__init__()
        self.taggers = nn.ModuleList(taggers)
        crfs = [tagger.crf for tagger in taggers]
        self.crf = crfs[0] and CRF(crfs[0].tags).to(crfs[0].A)
        if self.crf is not None:
            for mine, *theirs in zip(self.crf.parameters(), *(crf.parameters() for crf in crfs), strict=True):
                mine.copy_(torch.stack(theirs).mean(0))

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack([tagger(*inputs) for tagger in self.taggers]).mean(0)

    decode = Tagger.decode


def tag_words(
    task: str,
    seed: int,
    size: Size,
    crf: bool,
    epochs: int,
    batch: int = 64,
    has_validation: bool = True,
    dropout: float = DROPOUT,
) -> Training:
    """Return a training of a tagger with 2 x 400 units; without validation it learns from those sentences, too."""
    known, parts = read_sentences(task, size.device, size.tiny, has_validation)
    pieces = [s[i : i + PIECE] for s in parts["train"] for i in range(0, len(s), PIECE)]
    train, B, H = known.encode(pieces, size.device), size.batch(batch), size.units(400)

    def take(places: Tensor, length: int) -> Batch:
        *rows, lengths = (t.index_select(0, places) for t in train)
        return *(t[:, :length] for t in rows), lengths

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        *inputs, tags, lengths = batch
        return model.loss(model(*inputs, lengths), tags, lengths)  # type: ignore[operator]

    def score(model: nn.Module, split: str) -> dict[str, float]:
        if split == "valid" and not has_validation:
            return {}
        sentences = parts["dev" if split == "valid" else split]
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        predicted: list[list[str]] = [[] for _ in sentences]
        for first in range(0, len(order), 256):
            places = order[first : first + 256]
            *inputs, _, lengths = known.encode([sentences[i] for i in places], size.device)
            best = model.decode(model(*inputs, lengths), lengths).tolist()  # type: ignore[operator]
            for i, row in zip(places, best, strict=True):
                predicted[i] = [known.tags[k] for k in row[: len(sentences[i])]]
        right = [[label for _, _, label in sentence] for sentence in sentences]
        if task == "ewt":
            return {"accuracy": tag.accuracy(right, predicted) / 100}
        return {"span_f1": tag.span_f1(right, predicted) / 100}

    settings = {"model": "bi_lstm", "hidden": H, "layers": 2, "batch": B, "epochs": epochs, "dropout": dropout}
    settings |= {"word_dropout": "0.25 / (0.25 + count)", "crf": crf, "label_smoothing": 0.0 if crf else 0.05}
    name = "bi_lstm" + ", CRF" * crf + ", all training sentences" * (not has_validation)
    name += f", dropout {dropout:g}" * (dropout != DROPOUT)
    return Training(
        task, name, seed, lambda: Tagger(known, H, crf, dropout, size), draw_by_length(train[-1], LENGTHS, B, take),
        loss, score, size.steps(epochs * len(pieces) // batch), 2e-3, settings | {"precision": "bf16"},
        weight_decay=0.01, ema=0.998, score_every=0.2,
        together=lambda models, split: score(Together(models), split),
    )  # fmt: skip


def ewt(seed: int, size: Size) -> Training:
    return tag_words("ewt", seed, size, crf=False, epochs=40)


def conll(seed: int, size: Size) -> Training:
    return tag_words("conll", seed, size, crf=True, epochs=20, batch=32)


def conll_all(seed: int, size: Size) -> Training:
    """Learn from all training sentences, with the settings of `conll`."""
    return tag_words("conll", seed, size, crf=True, epochs=20, batch=32, has_validation=False)


def conll_drop(seed: int, size: Size) -> Training:
    """Learn from all training sentences for longer and with more dropout, since the loss of `conll_all` is near 0."""
    return tag_words("conll", seed, size, crf=True, epochs=30, batch=32, has_validation=False, dropout=0.45)

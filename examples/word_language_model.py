"""Train a word language model with truncated back-propagation, then let it write.

Run it on the built-in text (sentences whose verb must agree with a subject three words back), or on your own:

    python examples/word_language_model.py
    python examples/word_language_model.py --text my_book.txt --epochs 10

The state is carried from chunk to chunk, and gradients stop at the border between two chunks.
"""

import argparse
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom


class WordModel(nn.Module):
    """An embedding, an LSTM, and a head that shares the embedding's weights."""

    def __init__(self, words: int, size: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.layer = seqloom.LSTM(size, size, batch_first=True, init=seqloom.Init(chrono=20))
        nn.init.normal_(self.embed.weight, std=size**-0.5)

    def score(self, y: Tensor) -> Tensor:
        """Return the logits of the next word: (..., size) -> (..., words)."""
        return F.linear(y, self.embed.weight)

    @torch.no_grad()
    def write(self, word: int, count: int) -> list[int]:
        """Draw `count` words after the given one, one step at a time."""
        words, state = [word], None
        for _ in range(count):
            y, state = self.layer.step(self.embed(torch.tensor([words[-1]])), state)
            words.append(int(torch.multinomial(self.score(y)[0].softmax(-1), 1)))
        return words[1:]


def make_text(sentences: int) -> list[str]:
    """Return words such as: the old cats near the dog sleep ."""
    draw, words = random.Random(0), []
    for _ in range(sentences):
        end, verb = draw.choice([("", "s"), ("s", "")])
        subject, other = draw.choices(["cat", "dog", "bird"], k=2)
        adjective, place = draw.choice(["old", "small"]), draw.choice(["near", "behind"])
        words += ["the", adjective, subject + end, place, "the", other + draw.choice(["", "s"])]
        words += [draw.choice(["sleep", "sing"]) + verb, "."]
    return words


def main(text: Path | None = None, epochs: int = 4, rows: int = 16, chunk: int = 32) -> float:
    """Train on the text and return the perplexity of the last epoch."""
    torch.manual_seed(0)
    words = text.read_text(encoding="utf-8").split() if text else make_text(2_000)
    vocabulary = sorted(set(words))
    number = {word: i for i, word in enumerate(vocabulary)}
    ids = torch.tensor([number[word] for word in words])
    ids = ids[: len(ids) // rows * rows].view(rows, -1)  # `rows` parts of the text side by side
    model = WordModel(len(vocabulary))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        total, state = 0.0, None
        for x, target in zip(ids[:, :-1].split(chunk, 1), ids[:, 1:].split(chunk, 1), strict=True):
            y, state = model.layer(model.embed(x), state)
            loss = F.cross_entropy(model.score(y).flatten(0, 1), target.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            state = model.layer.detach(state)  # carry the state to the next chunk, without its gradient
            total += float(loss.detach()) * target.numel()
        perplexity = math.exp(total / ids[:, 1:].numel())
        print(f"epoch {epoch + 1}: perplexity {perplexity:.2f}")
    print("a sample:", *(vocabulary[i] for i in model.eval().write(int(ids[0, -1]), 16)))
    return perplexity


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file; words are separated by white space")
    parser.add_argument("--epochs", type=int, default=4)
    main(**vars(parser.parse_args()))

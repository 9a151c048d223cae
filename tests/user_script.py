"""A script of a user with a strict type checker: layers, an own cell, a Transformer, lengths, steps and explain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import seqloom
from seqloom import GRU, Cell, Classify, Recurrent, Transformer


class Leaky(Cell):
    def __init__(self, input_size: int, hidden_size: int, rate: float = 0.1) -> None:
        super().__init__(input_size, hidden_size)
        self.rate = rate
        self.w = nn.Linear(input_size, hidden_size)
        self.u = nn.Linear(hidden_size, hidden_size, bias=False)

    def project(self, x: Tensor) -> Tensor:
        return torch.tanh(self.w(x))

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        h = (1 - self.rate) * h + self.rate * torch.tanh(x + self.u(h))
        return h, (h,)


class Tagger(nn.Module):
    def __init__(self, words: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 16)
        self.layer = GRU(16, 32, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(self.layer.output_size, tags)

    def forward(self, ids: Tensor, lengths: list[int]) -> Tensor:
        y, _ = self.layer(self.embed(ids), lengths=lengths)
        scores: Tensor = self.head(y)
        return scores


def stream(layer: Transformer, x: Tensor) -> list[Tensor]:
    state: tuple[Tensor, ...] | None = None
    outputs: list[Tensor] = []
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    return outputs


def main() -> None:
    tagger = Tagger(100, 5)
    scores = tagger(torch.randint(100, (3, 7)), [7, 2, 5])
    own = Recurrent(Leaky, 8, 16, batch_first=True, rate=0.2)
    y, end = own(torch.randn(3, 7, 8), lengths=torch.tensor([7, 2, 5]))
    by_name = Recurrent("attn_rnn", 8, 16, slots=2)
    transformer = Transformer(8, heads=2, num_layers=2, causal=True, position="rotary")
    outputs = stream(transformer, torch.randn(3, 7, 8))
    model = Classify(GRU(8, 16, batch_first=True), 3)
    logits: Tensor = model(torch.randn(3, 7, 8))
    print(scores.shape, y.shape, end.shape, len(outputs), logits.shape)
    print(seqloom.explain(own, torch.randn(3, 7, 8)), by_name.hidden_size)


if __name__ == "__main__":
    main()

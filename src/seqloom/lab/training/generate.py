"""Texts from a language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import END, PAD, SPECIALS, START, UNKNOWN, Task
from seqloom.lab.training.predict import encode_rows
from seqloom.lab.training.run import Run
from seqloom.models.decoding.sampling import Sampling

MAX_TOKENS = 200  # tokens


@dataclass(frozen=True)
class TextSampling(Sampling):
    """Draws what can be read: no padding, no start, nothing unknown; no end either where a text has none."""

    end: bool = True

    def probabilities(self, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., [PAD, UNKNOWN, START] if self.end else list(range(len(SPECIALS)))] = -torch.inf
        return super().probabilities(logits)


def generate(
    run: Run, prompts: Sequence[str] = ("",), sampling: Sampling = Sampling(), length: int = MAX_TOKENS, count: int = 1
) -> Iterator[dict[str, Any]]:
    """`count` texts that begin as each prompt does: {"prompt", "text"}, the prompt being a part of the text."""
    if run.task.kind != "generate":
        raise UserError(f"{run.folder} was trained to {run.task.kind}, not to generate; use `seqloom predict`")
    if count < 1:
        raise UserError(f"count must be at least 1 text, got {count}")
    model, task = run.model(), run.task
    whole = not hasattr(task, "lookback")  # each text has a beginning and an end; else all is one long text
    words = TextSampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, end=whole)
    for prompt in prompts:
        start = _start(task, prompt, whole).expand(count, -1)
        found = model.model.sample(start, words, stop=END if whole else None, max_length=length)
        for text in task.decode(torch.cat([start, found.tokens], 1), start.shape[1] + found.lengths):
            yield {"prompt": prompt, "text": text}


def _start(task: Task, prompt: str, whole: bool) -> Tensor:
    """(1, P) ids; at least one."""
    batch = encode_rows(task, [prompt])
    ids = batch.x[:, : int(batch.lengths[0])]
    if whole:
        return torch.cat([torch.full((1, 1), START), ids], 1)
    if ids.shape[1]:
        return ids
    line = encode_rows(task, ["\n"])  # a long text has no start; a new line is the next best
    known = int(line.lengths[0]) and int(line.x[0, 0]) != UNKNOWN
    return line.x[:, :1] if known else torch.full((1, 1), START)

"""Train a seqloom model with the Trainer of Hugging Face transformers.

    pip install transformers accelerate
    python examples/huggingface_trainer.py

The Trainer needs a module whose `forward` takes the columns of a batch by name and returns a loss and logits. The task:
decide whether a word has more a than b, for words of different lengths.
"""

import argparse
import random
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainingArguments, set_seed

import seqloom

LETTERS = ".abcd"  # id 0 is padding


class WordClassifier(nn.Module):
    """Letters to a class, with an AttnRNN; ignores padding by `lengths`."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 8, padding_idx=0)
        self.model = seqloom.Classify(seqloom.AttnRNN(8, hidden_size, batch_first=True), classes=2)

    def forward(self, input_ids: Tensor, lengths: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.model(self.embed(input_ids), lengths)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make_words(count: int, seed: int) -> list[dict[str, Any]]:
    """Return words of 5 to 20 letters with their class."""
    draw, rows = random.Random(seed), list[dict[str, Any]]()
    while len(rows) < count:
        word = "".join(draw.choices(LETTERS[1:], k=draw.randint(5, 20)))
        if word.count("a") != word.count("b"):
            ids = [LETTERS.index(letter) for letter in word]
            rows.append({"input_ids": ids, "label": int(word.count("a") > word.count("b"))})
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad a batch: input_ids (B, T), lengths (B,), labels (B,)."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    lengths, labels = torch.tensor([len(i) for i in ids]), torch.tensor([row["label"] for row in rows])
    return {"input_ids": pad_sequence(ids, batch_first=True), "lengths": lengths, "labels": labels}


def main(steps: int = 300, count: int = 2_000) -> float:
    """Train and return the accuracy on new words."""
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=steps,
            learning_rate=1e-2,
            per_device_train_batch_size=64,
            remove_unused_columns=False,  # keep `lengths`
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            WordClassifier(),
            settings,
            data_collator=collate,
            train_dataset=make_words(count, seed=1),
            eval_dataset=make_words(count // 4, seed=2),
            compute_metrics=lambda result: {"accuracy": np.mean(result.predictions.argmax(-1) == result.label_ids)},
        )
        trainer.train()
        accuracy = float(trainer.evaluate()["eval_accuracy"])
    print(f"accuracy after {steps} steps: {accuracy:.3f} (chance: 0.500)")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    main(**vars(parser.parse_args()))

"""Train a seqloom layer inside a Lightning module, on waveforms of different lengths.

    pip install lightning
    python examples/lightning_module.py

Batches are padded; `lengths` tells the layer which steps are real, so nothing needs to be packed or sorted.
"""

import argparse
import logging

import lightning
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import seqloom

SHAPES = ("sine", "square", "sawtooth")
Batch = tuple[Tensor, Tensor, Tensor]


class WaveClassifier(lightning.LightningModule):
    """Say which of the three shapes a noisy wave has."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        layer = seqloom.GRU(1, hidden_size, batch_first=True, bidirectional=True)
        self.model = seqloom.Classify(layer, classes=len(SHAPES), readout="mean")

    def training_step(self, batch: Batch, index: int) -> Tensor:
        x, lengths, y = batch
        loss = self.model.loss(x, y, lengths)
        self.log("train_loss", loss, batch_size=len(y))
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        x, lengths, y = batch
        accuracy = (self.model.predict(x, lengths) == y).float().mean()
        self.log("accuracy", accuracy, batch_size=len(y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def make_waves(count: int, seed: int) -> list[tuple[Tensor, int]]:
    """Return (wave (T, 1), class) pairs of 20 to 60 steps."""
    random, pairs = torch.Generator().manual_seed(seed), []
    for i in range(count):
        length = int(torch.randint(20, 61, (), generator=random))
        start, period = torch.rand(2, generator=random).tolist()
        phase = start + torch.arange(length) / (8 + 8 * period)
        wave = [torch.sin(6.283 * phase), torch.sin(6.283 * phase).sign(), 2 * (phase % 1) - 1][i % 3]
        pairs.append(((wave + 0.2 * torch.randn(length, generator=random)).unsqueeze(1), i % 3))
    return pairs


def collate(pairs: list[tuple[Tensor, int]]) -> Batch:
    """Pad the waves of a batch: x (B, T, 1), lengths (B,), y (B,)."""
    waves, classes = zip(*pairs, strict=True)
    lengths = torch.tensor([len(wave) for wave in waves])
    return pad_sequence(list(waves), batch_first=True), lengths, torch.tensor(classes)


def main(epochs: int = 6, count: int = 600) -> float:
    """Train and return the accuracy on new waves."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    waves, others = make_waves(count, seed=1), make_waves(count // 3, seed=2)
    train: DataLoader[Batch] = DataLoader(waves, 32, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    test: DataLoader[Batch] = DataLoader(others, 100, collate_fn=collate)  # type: ignore[arg-type]
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", gradient_clip_val=1.0, **quiet)
    trainer.fit(WaveClassifier(), train, test)
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"accuracy after {epochs} epochs: {accuracy:.3f} (chance: {1 / len(SHAPES):.3f})")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    main(**vars(parser.parse_args()))

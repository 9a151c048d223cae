"""Choose a cell and its size by scikit-learn's grid search, with skorch.

    pip install skorch scikit-learn
    python examples/skorch_grid_search.py

The data are scikit-learn's handwritten digits, read as sequences of eight rows of eight pixels.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping
from torch import Tensor, nn

import seqloom


class DigitClassifier(nn.Module):
    """Classify (B, 8, 8) images row by row; `cell` is the name of any seqloom cell."""

    def __init__(self, cell: str = "gru", hidden_size: int = 32) -> None:
        super().__init__()
        layer = seqloom.Recurrent(cell, 8, hidden_size, batch_first=True)
        self.model = seqloom.Classify(layer, classes=10)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def main(epochs: int = 15, cells: tuple[str, ...] = ("gru", "attn_rnn"), sizes: tuple[int, ...] = (16, 48)) -> float:
    """Search the grid and return the test accuracy of the best model."""
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    x = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(x, digits, test_size=0.25, random_state=0, stratify=digits)
    net = NeuralNetClassifier(
        DigitClassifier,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-2,
        batch_size=64,
        max_epochs=epochs,
        callbacks=[EarlyStopping(patience=5)],
        verbose=0,
    )
    grid = {"module__cell": list(cells), "module__hidden_size": list(sizes)}
    search = GridSearchCV(net, grid, cv=2, scoring="accuracy").fit(x, y)
    results = zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True)
    for settings, score in results:
        print(f"{settings['module__cell']:9} {settings['module__hidden_size']:3} units: accuracy {score:.3f}")
    accuracy = float(search.score(x_test, y_test))
    print(f"best: {search.best_params_['module__cell']}, test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    main(**vars(parser.parse_args()))

from xml.etree import ElementTree

import pytest
import torch

from seqloom.lab.report import pictures


def test_attention_is_a_grid_with_its_labels(tmp_path):
    weights = torch.tensor([[0.05, 0.25, 0.7], [0.1, 0.9, 0.0]])
    pictures.plot_attention(weights, ["the", "cat"], ["le", "chat", "noir"], tmp_path / "grid.svg")
    text = (tmp_path / "grid.svg").read_text()
    ElementTree.fromstring(text)
    said = [
        line.strip().removeprefix("<!--").removesuffix("-->").strip() for line in text.splitlines() if "<!--" in line
    ]
    assert sorted(said) == sorted(["the", "cat", "le", "chat", "noir", "0.2", "0.7", "0.1", "0.9"])


def test_long_sequences_and_lists_are_drawn_too(tmp_path):
    steps = [str(n) for n in range(40)]
    pictures.plot_attention(torch.eye(40).tolist(), steps, steps, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_labels_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 x 1 to match their labels, got 2 x 2"):
        pictures.plot_attention(torch.eye(2), ["a", "b"], ["c"], tmp_path / "grid.svg")
    assert not list(tmp_path.iterdir())

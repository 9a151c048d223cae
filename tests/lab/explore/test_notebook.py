"""`seqloom.explore` in a notebook."""

import pytest
import torch

import seqloom
from seqloom.core.errors import UserError


def test_any_module_with_our_layers_is_a_page(tmp_path):
    model = torch.nn.Sequential(seqloom.LSTM(4, 6, batch_first=True)).train()
    page = seqloom.explore(model, torch.randn(7, 4))
    assert model.training
    assert {"0.l0/h", "0.l0/c", "0.l0/f"} <= set(page.arrays) and page.arrays["0.l0/f"].shape == (7, 6)
    assert "<iframe" in page._repr_html_() and "<script" not in page._repr_html_()
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_classifier_of_ids_shows_probabilities_with_names():
    from seqloom.models.embed import Embed

    model = seqloom.Classify(seqloom.AttnRNN(8, 8, batch_first=True), classes=2, embed=Embed(20, 8))
    page = seqloom.explore(model, torch.tensor([3, 4, 5]), steps=["a", "<b>", "c"], classes=["no", "yes"])
    outputs = page.document["prediction"]["outputs"]
    assert [o["label"] for o in outputs] == ["no", "yes"]
    assert sum(o["values"][0] for o in outputs) == pytest.approx(1, abs=1e-5)
    assert page.document["steps"] == ["a", "<b>", "c"]


def test_a_layer_and_a_transformer_are_pages():
    assert seqloom.explore(seqloom.GRU(4, 8, batch_first=True), torch.randn(1, 5, 4)).document["layers"]
    assert seqloom.explore(seqloom.Transformer(8, heads=2), torch.randn(5, 8)).document["attention"][0]["heads"] == 2


def test_a_run_is_a_page(run):
    page = seqloom.explore(run, "the plot is not good")
    assert "'not'" in repr(page)


def test_a_module_without_our_layers_says_so():
    class Mean(torch.nn.Module):
        def forward(self, x):
            return x.mean(1)

    page = seqloom.explore(Mean(), torch.randn(5, 3))
    assert any("no layers of seqloom inside" in note for note in page.document["notes"])


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (seqloom.GRU(4, 8, batch_first=True), torch.zeros(0, 4), "at least one step"),
        (seqloom.GRU(4, 8, batch_first=True), torch.zeros(2, 5, 4), "one input"),
        (seqloom.GRU(4, 8, batch_first=True), "text", "takes a tensor"),
        ("model", torch.zeros(3, 4), "takes a run or a module"),
    ],
)
def test_what_does_not_fit_is_explained(model, x, message):
    with pytest.raises(UserError, match=message):
        seqloom.explore(model, x)

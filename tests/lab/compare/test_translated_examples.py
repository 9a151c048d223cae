"""Examples of translations in a report."""

from types import SimpleNamespace

import pytest
import torch

from seqloom.lab.data.task import Batch
from seqloom.lab.kinds.for_task import Prediction
from seqloom.lab.kinds.translate import TRANSLATED_BATCHES, translate_examples

END = 9


def make_batch(number):
    """Return two rows: the source is their batch and row, the reference two tokens and an end."""
    x = torch.tensor([[number, 0, 0], [number, 1, 0]])
    y = torch.tensor([[7, 8, END], [8, 7, END]])
    return Batch(x, torch.tensor([2, 2]), torch.arange(2), y=y, y_lengths=torch.tensor([3, 3]))


def translate(batches, is_late=lambda: False):
    task = SimpleNamespace(
        count=lambda *_, **__: batches,
        batches=lambda *_, **__: (make_batch(k) for k in range(batches)),
        encoding=None,
        decode=lambda y, lengths: [
            [f"w{i}" for i in row[:n]] for row, n in zip(y.tolist(), lengths.tolist(), strict=True)
        ],
    )
    model = SimpleNamespace(predict=lambda batch: Prediction(batch.y[:, :2], torch.tensor([2, 1])))
    return translate_examples(model, task, 2, is_late)


def test_a_source_stands_beside_its_reference_and_its_translation():
    assert translate(1).rows == [
        {"source": "0 0", "reference": "w7 w8", "translation": "w7 w8"},
        {"source": "0 1", "reference": "w8 w7", "translation": "w8"},
    ]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_batches_are_taken_evenly_from_all_test_rows(times):
    table = translate(times * TRANSLATED_BATCHES)
    assert f"BLEU of {2 * TRANSLATED_BATCHES} test rows" in table.note
    assert table.rows[0]["source"] == f"{times // 2} 0"


def test_one_batch_is_translated_even_if_it_is_late():
    assert "BLEU of 2 test rows" in translate(3, is_late=lambda: True).note

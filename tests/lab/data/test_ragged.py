"""Rows on disk are the same before and after their pages are released."""

import numpy as np

from seqloom.lab.data.pipeline import ragged
from seqloom.lab.data.pipeline.ragged import Ragged, RaggedWriter


def test_pages_of_a_large_file_are_released_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(ragged, "LARGE", 1)
    monkeypatch.setattr(ragged, "ROWS_HELD", 10)
    writer = RaggedWriter(tmp_path, "x")
    lengths = np.random.default_rng(0).integers(0, 9, 50)
    writer.add(np.arange(lengths.sum(), dtype=np.int32), lengths)
    writer.close()
    stored = Ragged.open(tmp_path, "x")
    before, _ = stored.pad(np.arange(50), fill=-1)
    assert stored._rows_read == 0
    again, _ = stored.pad(np.arange(50), fill=-1)
    assert np.array_equal(before, again) and before.max() == lengths.sum() - 1

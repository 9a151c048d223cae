"""The word ids of film reviews in a file."""

from dataclasses import replace

import pytest
import torch

from research.quality import review_ids
from research.studies import imdb
from research.studies.data.examples import LabelledRows


@pytest.fixture
def rows():
    lengths = torch.tensor([3, 200, 1])
    x = torch.randint(1, 20_000, (3, 200), generator=torch.Generator().manual_seed(0))
    x[torch.arange(200) >= lengths.unsqueeze(1)] = 0
    return {split: LabelledRows(x, lengths, torch.tensor([0, 1, 1])) for split in ("train", "test")}


def test_a_study_reads_the_rows_that_were_written(rows, tmp_path):
    review_ids.StoredImdb.file = tmp_path / "ids.xz"
    review_ids.write_ids(tmp_path / "ids.xz", rows)
    settings = replace(imdb.Imdb.full, conditions=(imdb.at(imdb.MEAN, 4),), valid=1, test=2)
    study = review_ids.StoredImdb(settings)
    test = study.examples(settings.conditions[0], "test")
    assert torch.equal(test.x, rows["test"].x[:2])
    assert torch.equal(test.lengths, rows["test"].lengths[:2])
    assert torch.equal(study.examples(settings.conditions[0], "valid").y, rows["train"].y[:1])
    assert study.name == "imdb"  # its trials have the keys of the study that reads the reviews


def test_a_study_refuses_ids_that_do_not_hold_its_words(tmp_path):
    review_ids.StoredImdb.file = tmp_path / "ids.xz"
    settings = replace(imdb.Imdb.full, conditions=(imdb.at(imdb.MEAN, 4, 400),), test=2)
    with pytest.raises(ValueError, match="200 a review; omit --ids"):
        review_ids.StoredImdb(settings).examples(settings.conditions[0], "test")

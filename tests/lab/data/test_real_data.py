"""Published data sets, if they are available: known sizes and baselines."""

from pathlib import Path

import pytest
import torch

from seqloom.lab.data.registry import open_task

DATA = Path(__file__).parents[3] / "../shared/data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the data sets")


def sizes(task):
    return {name: split.size for name, split in task.splits.items()}


def test_ett_by_its_usual_borders_gives_the_known_errors_of_repeating():
    task = open_task(DATA / "ett/ETTh1.csv.gz", borders="ett", lookback=336, horizon=96)
    assert sizes(task) == {"train": 8209, "valid": 2785, "test": 2785}
    last = day = 0.0
    for batch in task.batches("test", batch=557):
        last += (batch.x[:, -1:] - batch.y).square().mean().item() / 5
        day += (batch.x[:, -24:].repeat(1, 4, 1) - batch.y).square().mean().item() / 5
    assert (round(last, 3), round(day, 3)) == (1.294, 0.512)


@pytest.mark.parametrize(
    ("path", "options", "kind", "target", "counts"),
    [
        ("snips", {"target": "intent"}, "classify", 7, (13084, 700, 700)),
        ("snips", {"target": "slots"}, "tag", 72, (13084, 700, 700)),
        ("ucr_uea/GunPoint", {}, "classify", 2, (45, 5, 150)),
        ("ucr_uea/JapaneseVowels", {}, "classify", 9, (243, 27, 370)),
        ("ucr_uea/Covid3Month", {}, "regress", 1, (126, 14, 61)),
        ("names_nationality", {}, "classify", 18, (16038, 2006, 2006)),
        pytest.param("ud_english_ewt", {}, "tag", 17, (12544, 2001, 2077), marks=pytest.mark.long),
    ],
)
def test_a_data_set_is_read_as_published(path, options, kind, target, counts):
    task = open_task(DATA / path, **options)
    assert task.kind == kind and task.target.size == target
    assert tuple(sizes(task).values()) == counts


def test_chinese_hotel_reviews_are_read_by_characters_and_the_empty_one_is_reported():
    task = open_task(DATA / "chnsenticorp_htl")
    assert task.input.unit == "characters" and sum(sizes(task).values()) == 7765
    assert any("rows with an empty 'review': 1 of 7766" in w for w in task.notes.warnings)
    unknown = [(b.x == 1).sum().item() / b.steps for b in task.batches("test", batch=776)]
    assert unknown[0] < 0.01


def test_tiny_shakespeare_is_one_stream_of_65_characters():
    task = open_task(DATA / "tiny_shakespeare")
    assert task.kind == "generate" and task.target.size == 4 + 65
    assert sum(sizes(task).values()) == 1_115_394 - 3  # the first of each part is not predicted


def test_multi30k_is_paired_by_language():
    task = open_task(DATA / "multi30k/raw", input="de", target="en")
    assert list(sizes(task).values()) == [29000, 1014, 1000, 1000, 461]


@pytest.mark.long
def test_imdb_is_read_warned_about_and_batched_fast():
    task = open_task(DATA / "imdb")
    assert sizes(task) == {"train": 22_500, "valid": 2_500, "test": 25_000}
    assert "column 'rating' alone predicts 'label' (100.0% right); it is not used" in task.notes.warnings
    assert any("texts of 'test' that also occur in training" in w for w in task.notes.warnings)
    y = torch.cat([b.y for b in task.batches("valid", batch=500)])
    assert y.float().mean() == 0.5


@pytest.mark.slow
def test_spoken_digits_have_100_steps_a_second():
    task = open_task(DATA / "spoken_digits", target="part_1", group="part_2")
    assert task.input.size == 40 and sum(sizes(task).values()) == 3000
    batch = next(task.batches("test", batch=32))
    assert batch.x.isfinite().all() and 5 < batch.lengths.float().mean() < 100

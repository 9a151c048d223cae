import pytest
import torch

from seqloom.lab.data import digits


def test_the_parts_hold_all_images_and_each_digit_in_the_same_share():
    task = digits.load()
    assert task.sizes == {"train": 1078, "validation": 359, "test": 360}
    whole = torch.cat([y for _, y in (task.train, task.validation, task.test)]).bincount() / 1797
    for _, y in (task.train, task.validation, task.test):
        assert (y.bincount(minlength=10) / len(y) - whole).abs().max() < 0.005


def test_no_test_image_is_in_another_part():
    task = digits.load()
    seen = {tuple(x.flatten().tolist()) for x in torch.cat([task.train[0], task.validation[0]])}
    assert not seen & {tuple(x.flatten().tolist()) for x in task.test[0]}


def test_the_scale_comes_from_the_training_images_alone():
    task = digits.load()
    x = task.train[0].double()
    assert abs(x.mean()) < 1e-6
    assert abs(x.std(correction=0) - 1) < 1e-6
    assert abs(task.test[0].mean()) > 1e-4


def test_both_readings_have_the_same_numbers_in_the_same_order():
    rows, pixels = digits.load("rows"), digits.load("pixels")
    assert rows.train[0].shape == (1078, 8, 8)
    assert pixels.train[0].shape == (1078, 64, 1)
    assert torch.equal(rows.test[0].flatten(1), pixels.test[0].flatten(1))
    assert (rows.steps, rows.features, pixels.steps, pixels.features) == (8, 8, 64, 1)


def test_a_seed_fixes_the_split_and_another_changes_it():
    assert torch.equal(digits.load(seed=1).test[0], digits.load(seed=1).test[0])
    assert not torch.equal(digits.load(seed=1).test[1], digits.load(seed=2).test[1])


def test_an_unknown_reading_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="rows, pixels, got 'columns'"):
        digits.load("columns")

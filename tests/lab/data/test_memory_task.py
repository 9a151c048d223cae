"""Tasks of examples in memory."""

import numpy as np

from seqloom.lab.data.memory import MemoryTask

WORDS = [["red", "kettle"], ["blue", "teapot"], ["old", "saucer"], ["new", "spoon"]]
ROWS = {"train": np.arange(3), "valid": np.arange(3, 4)}


def has_letters(kind, x, y):
    return MemoryTask(kind, x, y, ROWS).encoding.letters is not None


def test_the_letters_of_words_are_encoded_for_tags():
    assert has_letters("tag", WORDS, [[0, 1]] * 4)


def test_the_letters_of_words_are_not_encoded_for_one_label_per_row():
    assert not has_letters("classify", WORDS, [0, 1, 0, 1])


def test_tokens_that_are_letters_have_no_letters_of_their_own():
    assert not has_letters("tag", [list("ab"), list("ba"), list("cd"), list("dc")], [[0, 1]] * 4)


def test_numbers_with_tags_have_no_letters():
    assert not has_letters("tag", [np.zeros((2, 3))] * 4, [[0, 1]] * 4)


def test_rows_and_tags_are_cut_at_the_longest_length():
    rows = [["red"] * 9, ["blue"] * 2, ["old"] * 9, ["new"] * 2]
    task = MemoryTask("tag", rows, [[0] * 9, [1] * 2] * 2, ROWS, {"limit": 4})
    batch = next(iter(task.batches("train", batch=3)))
    assert batch.x.shape[1] == batch.y.shape[1] == 4
    assert sorted(batch.lengths.tolist()) == [2, 4, 4]

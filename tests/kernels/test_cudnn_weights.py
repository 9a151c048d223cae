"""The memory layout of weights for cuDNN, as far as it can be seen without a GPU."""

import torch

from seqloom.kernels.aten.cudnn import _are_neighbours, has_one_storage


def _cut(memory, *spans):
    return [memory[begin:end] for begin, end in spans]


def test_weights_of_one_cell_fill_the_start_of_their_memory():
    memory = torch.zeros(100)
    assert _are_neighbours(_cut(memory, (0, 40), (40, 80), (80, 90), (90, 100)))
    assert _are_neighbours(_cut(memory, (40, 80), (0, 40), (80, 90), (90, 100)))  # in any order
    assert _are_neighbours(_cut(memory, (0, 40), (48, 88)))  # with room for alignment


def test_weights_of_a_stack_are_not_taken_for_those_of_one_cell():
    memory = torch.zeros(200)  # two layers: all matrices, then all biases
    first = _cut(memory, (0, 40), (40, 80), (160, 170), (170, 180))
    second = _cut(memory, (80, 120), (120, 160), (180, 190), (190, 200))
    assert not _are_neighbours(first) and not _are_neighbours(second)
    assert has_one_storage([*first, *second])
    assert not has_one_storage([first[0], torch.zeros(3)])

import pytest
import torch

from seqloom.lab.training.cpu import denormals_flushed, small_models_on_cpu


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    with small_models_on_cpu():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_afterwards_what_they_were(before):
    outside = denormals_flushed()
    torch.set_flush_denormal(before)
    try:
        with small_models_on_cpu():
            assert denormals_flushed()
        assert denormals_flushed() == before
    finally:
        torch.set_flush_denormal(outside)

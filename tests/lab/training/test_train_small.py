import pytest
import torch

from seqloom.lab.training.cpu import are_denormals_flushed, use_one_thread


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    with use_one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_afterwards_what_they_were(before):
    outside = are_denormals_flushed()
    torch.set_flush_denormal(before)
    try:
        with use_one_thread():
            assert are_denormals_flushed()
        assert are_denormals_flushed() == before
    finally:
        torch.set_flush_denormal(outside)

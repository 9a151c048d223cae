import pytest
import torch

from seqloom.lab.jobs.cpu import are_denormals_flushed, use_one_thread


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with use_one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("before", [False, True])
def test_the_denormal_setting_is_restored(before):
    outside = are_denormals_flushed()
    torch.set_flush_denormal(before)
    try:
        with use_one_thread():
            assert are_denormals_flushed()
        assert are_denormals_flushed() == before
    finally:
        torch.set_flush_denormal(outside)

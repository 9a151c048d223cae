import torch

from seqloom.training.small import small_models_on_cpu


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    with small_models_on_cpu():
        assert torch.get_num_threads() == 1
        assert float(torch.tensor(1e-39) * 0.5) == 0  # a denormal
    assert torch.get_num_threads() == before
    assert float(torch.tensor(1e-39) * 0.5) > 0

import itertools

import pytest
import torch

from seqloom.models.decoding.crf import CRF, join_steps

K, T = 3, 5
LENGTHS = torch.tensor([5, 3, 1, 0])


def crf():
    layer = CRF(K).double()
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    return layer, torch.randn(4, T, K, dtype=torch.float64)


def chain_score(layer, e, chain):
    if not chain:
        return torch.zeros((), dtype=torch.float64)
    total = layer.b[chain[0]] + layer.c[chain[-1]] + sum(e[t, k] for t, k in enumerate(chain))
    return total + sum(layer.A[i, j] for i, j in itertools.pairwise(chain))


def every_chain(layer, e, length):
    return {c: chain_score(layer, e, c) for c in itertools.product(range(K), repeat=length)}


def test_the_partition_is_the_sum_over_every_chain():
    layer, e = crf()
    expected = [torch.logsumexp(torch.stack([*every_chain(layer, e[i], n).values()]), 0) for i, n in enumerate(LENGTHS)]
    torch.testing.assert_close(layer.log_partition(e, LENGTHS), torch.stack(expected))


def test_the_score_of_a_chain_is_the_sum_of_its_parts_whatever_the_padding_holds():
    layer, e = crf()
    y = torch.randint(K, (4, T))
    expected = [chain_score(layer, e[i], tuple(y[i, :n].tolist())) for i, n in enumerate(LENGTHS)]
    torch.testing.assert_close(layer.score(e, y, LENGTHS), torch.stack(expected))
    for i, n in enumerate(LENGTHS):
        y[i, n:], e[i, n:] = -1, 1e6
    torch.testing.assert_close(layer.score(e, y, LENGTHS), torch.stack(expected))


def test_viterbi_finds_the_best_of_every_chain():
    layer, e = crf()
    paths, scores = layer.decode(e, LENGTHS)
    for i, n in enumerate(LENGTHS):
        chains = every_chain(layer, e[i], n)
        best = max(chains, key=lambda c: chains[c])
        assert tuple(paths[i, :n].tolist()) == best and (paths[i, n:] == -1).all()
        torch.testing.assert_close(scores[i], chains[best].detach())


def test_gradients_are_right_and_none_comes_from_the_padding():
    layer, e = crf()
    y = torch.randint(K, (4, T))
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in layer.named_parameters()), strict=True)

    class Likelihood(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.crf = layer

        def forward(self, e):
            return self.crf.log_likelihood(e, y, LENGTHS)

    def run(e, *rest):
        weights = {f"crf.{n}": p for n, p in zip(names, rest, strict=True)}
        return torch.func.functional_call(Likelihood(), weights, (e,))

    e.requires_grad_()
    torch.autograd.gradcheck(run, (e, *values), fast_mode=True)
    (gradient,) = torch.autograd.grad(layer.log_likelihood(e, y, LENGTHS).sum(), e)
    assert gradient[0].all() and not gradient[1, 3:].any() and not gradient[3].any()


def test_a_chain_without_lengths_counts_every_step():
    layer, e = crf()
    y = torch.randint(K, (4, T))
    torch.testing.assert_close(layer.log_likelihood(e, y), layer.log_likelihood(e, y, torch.full((4,), T)))


def test_scores_of_hundreds_stay_finite():
    layer, e = crf()
    probabilities = layer.log_likelihood(e * 300, torch.randint(K, (4, T)))
    assert torch.isfinite(probabilities).all() and (probabilities <= 1e-9).all()


def test_bfloat16_emissions_are_summed_in_float32():
    layer, e = CRF(K), torch.randn(2, 200, K)
    assert layer.log_partition(e.bfloat16()).dtype == torch.float32


def test_emissions_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(B, T, 3\) with T >= 1, got \(2, 5, 4\)"):
        CRF(3).log_partition(torch.randn(2, 5, 4))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        CRF(0)


@pytest.mark.parametrize("T", [2, 3, 8, 13])
def test_steps_joined_in_pairs_as_on_a_gpu_give_the_same_partition_and_gradients(T):
    torch.manual_seed(0)
    layer = CRF(5).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(0, 3)
    e = (6 * torch.randn(4, T, 5, dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor([T, 0, 1, T - 1])
    real = torch.arange(T) < lengths.unsqueeze(1)
    joined = join_steps(layer.b + e[:, 0], layer.A, e[:, 1:], real[:, 1:])
    found = torch.logsumexp(joined + layer.c, 1) * (lengths > 0)
    expected, leaves = layer.log_partition(e, lengths), [e, *layer.parameters()]
    torch.testing.assert_close(found, expected)
    for mine, loop in zip(*(torch.autograd.grad(z.sum(), leaves) for z in (found, expected)), strict=True):
        torch.testing.assert_close(mine, loop)

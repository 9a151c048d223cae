import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seqloom.attention import SCORES, AdditiveScore, ConcatScore, DotScore, GeneralScore, attend
from seqloom.core.errors import InputError

B, Q, S, DQ, DK, DV = 3, 2, 5, 4, 6, 7


def build(name, dq=DQ, dk=DK):
    return SCORES[name](dk if name == "dot" else dq, dk).double()


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


class Attn(nn.Module):
    """The published attention: the first rule, then a combining layer."""

    def __init__(self, query_size, key_size, value_size1, value_size2, output_size):
        super().__init__()
        self.attn = nn.Linear(query_size + key_size, value_size1)
        self.attn_combine = nn.Linear(query_size + value_size2, output_size)

    def forward(self, Q, K, V):
        attn_weights = F.softmax(self.attn(torch.cat((Q[0], K[0]), 1)), dim=1)
        attn_applied = torch.bmm(attn_weights.unsqueeze(0), V)
        output = torch.cat((Q[0], attn_applied[0]), 1)
        return self.attn_combine(output).unsqueeze(0), attn_weights


def test_concat_and_a_combining_layer_are_the_published_attention():
    theirs = Attn(32, 32, 32, 64, 64).double()
    query, key, values = random(1, 1, 32), random(1, 1, 32), random(1, 32, 64)
    output, weights = theirs(query, key, values)
    score = ConcatScore(32, 32, positions=32).double()
    score.linear.load_state_dict(theirs.attn.state_dict())
    context, a = attend(score(query, key.expand(-1, 32, -1)), values)
    mine = theirs.attn_combine(torch.cat([query, context], -1))
    assert mine.shape == (1, 1, 64) and a.shape == (1, 1, 32)
    torch.testing.assert_close(a[0], weights)
    torch.testing.assert_close(mine, output)
    g = torch.randn_like(output)
    inputs = (query, key, values, theirs.attn_combine.weight)
    torch.testing.assert_close(torch.autograd.grad(mine, inputs, g), torch.autograd.grad(output, inputs, g))


def by_hand(score, q, k, j):
    both = torch.cat([q, k])
    if isinstance(score, ConcatScore):
        return score.linear(both)[j]
    if isinstance(score, AdditiveScore):
        t = torch.tanh(score.linear(both))
        return t.sum() if score.v is None else score.v @ t
    return q @ k / math.sqrt(len(k)) if isinstance(score, DotScore) else q @ score.weight @ k


@pytest.mark.parametrize("name", [*SCORES, "weighted"])
def test_every_score_is_its_equation_for_each_pair(name):
    score = AdditiveScore(DQ, DK, 9, weighted=True).double() if name == "weighted" else build(name)
    query, keys = random(B, Q, score.query_size), random(B, S, DK)
    mine = score(query, keys)
    pairs = [by_hand(score, query[b, i], keys[b, j], j) for b in range(B) for i in range(Q) for j in range(S)]
    exact = torch.stack(pairs).view(B, Q, S)
    torch.testing.assert_close(mine, exact)
    g = torch.randn_like(exact)
    inputs = (query, keys, *score.parameters())
    torch.testing.assert_close(torch.autograd.grad(mine, inputs, g), torch.autograd.grad(exact, inputs, g))


@pytest.mark.parametrize("name", SCORES)
def test_padding_has_no_effect_even_if_it_is_nan(name):
    score = build(name)
    query, keys, values = random(B, Q, score.query_size), random(B, S, DK), random(B, S, DV)
    lengths = torch.tensor([5, 2, 1])
    padding = torch.arange(S) >= lengths.unsqueeze(1)
    scores = score(query, keys).masked_fill(padding.unsqueeze(1), torch.nan)
    context, a = attend(scores, values.masked_fill(padding.unsqueeze(-1), torch.nan), lengths)
    for b, n in enumerate(lengths):
        short, weights = attend(score(query[b : b + 1], keys[b : b + 1])[..., :n], values[b : b + 1, :n])
        torch.testing.assert_close(context[b : b + 1], short)
        torch.testing.assert_close(a[b : b + 1, :, :n], weights)
    assert not a[1, :, 2:].any()
    grads = torch.autograd.grad(context.sum() + a.square().sum(), (values, query, keys))
    assert all(torch.isfinite(g).all() for g in grads)


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_zero_gradients():
    scores, values = random(B, Q, S), random(B, S, DV)
    mask = torch.rand(B, Q, S) > 0.3
    mask[0, 1] = False
    context, a = attend(scores, values, lengths=[5, 0, 3], mask=mask)
    assert not context[0, 1].any() and not context[1].any() and not a[1].any()
    assert context[2].all()
    ds, dv = torch.autograd.grad(context.square().sum() + a.square().sum(), (scores, values))
    assert torch.isfinite(ds).all() and torch.isfinite(dv).all()
    assert not ds[0, 1].any() and not ds[1].any() and not dv[1].any() and ds[2].any()


def test_attention_of_a_dot_score_is_torchs():
    q, k, v = random(B, Q, DK), random(B, S, DK), random(B, S, DV)
    mask = torch.rand(B, Q, S) > 0.3
    context, _ = attend(DotScore(DK, DK)(q, k), v, mask=mask)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


def test_wrong_arguments_raise_clear_errors():
    with pytest.raises(ValueError, match="use GeneralScore"):
        DotScore(3, 4)
    with pytest.raises(InputError, match="construct it with positions=9"):
        ConcatScore(4, 6, positions=8)(torch.randn(1, 1, 4), torch.randn(1, 9, 6))
    with pytest.raises(InputError, match="do not fit"):
        attend(torch.randn(1, 2, 3), torch.randn(1, 4, 5))
    with pytest.raises(InputError, match="between 0 and the 3 steps"):
        attend(torch.randn(1, 2, 3), torch.randn(1, 3, 5), lengths=[4])
    assert GeneralScore(3, 4)(torch.randn(1, 2, 3), torch.randn(1, 5, 4)).shape == (1, 2, 5)

import pytest
import torch
from torch import nn

from seqloom.models.embed import Embed, Head


def test_ids_become_vectors_and_padding_is_zero_and_stays_so():
    embed = Embed(7, 4)
    ids = torch.tensor([[1, 6, 0], [3, 0, 0]])
    y = embed(ids)
    assert y.shape == (2, 3, 4) and not y[ids == 0].any() and y[ids != 0].all()
    y.square().sum().backward()
    torch.optim.SGD(embed.parameters(), 0.1).step()
    assert not embed(ids)[ids == 0].any()


def test_without_padding_every_id_has_a_vector():
    assert Embed(7, 4, padding=None)(torch.tensor([0])).any()


@pytest.mark.parametrize("wrong", [7, -1])
def test_an_id_out_of_range_is_named_with_its_place_and_the_vocabulary(wrong):
    ids = torch.ones(2, 3, dtype=torch.long)
    ids[1, 2] = wrong
    with pytest.raises(ValueError, match=rf"between 0 and 6 \(a vocabulary of 7\), got {wrong} at \(1, 2\)"):
        Embed(7, 4)(ids)


def test_what_are_not_ids_is_refused():
    with pytest.raises(ValueError, match=r"whole numbers, got torch.float32"):
        Embed(7, 4)(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="padding must be an id below the vocabulary of 7, or None; got 9"):
        Embed(7, 4, padding=9)
    with pytest.raises(ValueError, match="at least 1, got 0 and 4"):
        Embed(0, 4)


def test_dropout_acts_only_in_training():
    embed, ids = Embed(7, 16, dropout=0.5), torch.tensor([[1, 2]])
    assert not torch.equal(embed(ids), embed(ids))
    embed.eval()
    assert torch.equal(embed(ids), embed(ids))


def test_it_compiles_without_a_break_where_ids_are_looked_at():
    embed = Embed(7, 4)
    traced = torch.export.export(embed, (torch.tensor([[1, 2]]),)).module()
    torch.testing.assert_close(traced(torch.tensor([[3, 0]])), embed(torch.tensor([[3, 0]])))


def test_a_scaled_table_gives_the_same_vectors_from_smaller_numbers_and_a_tied_head_takes_it_as_it_is():
    torch.manual_seed(0)
    plain = Embed(9, 16)
    torch.manual_seed(0)
    scaled = Embed(9, 16, scaled=True)
    ids = torch.arange(9)
    torch.testing.assert_close(scaled(ids), plain(ids))
    torch.testing.assert_close(scaled.table.weight * 4, plain.table.weight)
    y = torch.randn(3, 16)
    heads = [Head(16, embed, tied=True) for embed in (plain, scaled)]
    for head in heads:
        nn.init.zeros_(head.linear.bias)
    torch.testing.assert_close(heads[0](y), heads[1](y))

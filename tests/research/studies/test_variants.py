"""Forms of AttnRNN in studies."""

import pytest
import torch

import seqloom
from research.studies.support.contenders import layer, multiple, starts
from research.studies.support.variants import VARIANTS, ReadingQuery, ScaledResidual, find_kind
from seqloom.tools.testing import check_cell


@pytest.mark.parametrize("cell", [ReadingQuery, ScaledResidual])
def test_a_variant_is_a_correct_cell(cell):
    check_cell(cell)


@pytest.mark.parametrize("name", VARIANTS)
def test_studies_build_variants_by_name_and_start_them_like_attn_rnn(name):
    size = multiple(name, "cpu") * 2
    assert size % find_kind(name)(3, 32).heads == 0
    assert starts(name, ("default", "chrono")) == ("default", "chrono")
    for start in ("default", "chrono", "keep 2"):
        y, _ = layer(name, 3, size, start, 20)(torch.randn(2, 5, 3))
        assert y.shape == (2, 5, size)


def test_a_residual_scale_of_one_is_the_published_cell():
    torch.manual_seed(0)
    cell, published = ScaledResidual(3, 8), seqloom.AttnRNNCell(3, 8)
    published.load_state_dict({name: w for name, w in cell.state_dict().items() if name != "scale_h"})
    x, h = torch.randn(2, 3), torch.randn(2, 8)
    torch.testing.assert_close(cell(x, h), published(x, h))
    torch.nn.init.constant_(cell.scale_h, 0.5)
    assert not torch.allclose(cell(x, h), published(x, h))


def test_a_query_without_its_input_is_the_published_cell():
    torch.manual_seed(0)
    cell, published = ReadingQuery(3, 8), seqloom.AttnRNNCell(3, 8)
    published.load_state_dict({name: w for name, w in cell.state_dict().items() if name != "weight_x"})
    x, h = torch.randn(2, 3), torch.randn(2, 8)
    assert not torch.allclose(cell(x, h), published(x, h))
    torch.nn.init.zeros_(cell.weight_x)
    torch.testing.assert_close(cell(x, h), published(x, h))

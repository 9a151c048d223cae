"""Blocks of a cluster that have no units: a late one must not stop the others or be stopped by them."""

import pytest
import torch
from test_cuda_emulated import cell_of as attn_rnn_of
from test_cuda_emulated import job_of as attn_rnn_job_of
from test_cuda_emulated import worst as worst_of_attn_rnn
from test_gated_emulated import cell_of, job_of, worst

from seqloom.kernels.cuda.attn_rnn import cluster as attn_rnn_cluster
from seqloom.kernels.cuda.attn_rnn.cluster import ClusterDivision
from seqloom.kernels.cuda.gated import code as gated_code
from seqloom.kernels.cuda.gated.code import GatedDivision

pytestmark = pytest.mark.usefixtures("emulated")
BF16 = torch.bfloat16
STEPS = 24  # enough for a block that nobody waits for to fall two steps behind


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "ln_lstm"])
def test_a_gated_cell_needs_no_answer_from_blocks_without_units(monkeypatch, name):
    monkeypatch.setattr(gated_code, "choose_division", lambda *_: GatedDivision(8, 4, 1, 8, 1))  # two of four blocks
    cell = cell_of(name, 24, 32)
    assert worst(name, cell, job_of(cell, 2, STEPS, BF16, "lengths"), BF16)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("norm", [False, True])
def test_attn_rnn_needs_no_answer_from_blocks_without_units(monkeypatch, norm):
    monkeypatch.setattr(attn_rnn_cluster, "choose_division", lambda *_: ClusterDivision(8, 4, 1, 8, 1, 0))
    cell = attn_rnn_of(32, 4, norm=norm)
    assert worst_of_attn_rnn(attn_rnn_cluster.KERNEL, cell, attn_rnn_job_of(cell, 2, STEPS, BF16), BF16)[0] < 2

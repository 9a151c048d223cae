"""The rules that choose a kernel on a GPU."""

from pathlib import Path

import pytest

from research.pages.kernel_rules import kernel_rules
from seqloom.kernels import heuristics
from seqloom.kernels.heuristics import GPU_RULES, rank_kernels
from seqloom.kernels.registry import list_kernels


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "rows", "trains", "first"),
    [
        ("gru", "bfloat16", 64, 1, False, "cuda"),
        ("lstm", "float16", 64, 1, False, "aten"),
        ("lstm", "float16", 64, 1, True, "cuda"),
        ("gru", "float32", 64, 256, False, "aten"),
        ("gru", "float32", 64, 256, True, "cuda"),
        ("gru", "float32", 256, 256, True, "grid"),
        ("gru", "tf32", 256, 64, True, "cuda"),
        ("lstm", "float16", 512, 16, False, "aten"),
        ("lstm", "float32", 512, 256, True, "grid"),
        ("lstm", "float32", 1024, 256, True, "aten"),
        ("lstm", "bfloat16", 128, 1000, True, "aten"),
        ("ln_lstm", "bfloat16", 449, 8, True, "grid"),
        ("attn_rnn", "bfloat16", 64, 64, True, "row"),
        ("attn_rnn", "bfloat16", 64, 65, True, "cuda"),
        ("attn_rnn", "float32", 256, 64, True, "cluster"),
        ("attn_rnn", "float32", 256, 128, True, "grid"),
        ("attn_rnn", "bfloat16", 256, 128, True, "cluster"),
        ("attn_rnn", "float32", 1024, 64, True, "tiles"),
        ("attn_rnn", "bfloat16", 768, 64, False, "grid"),
    ],
)
def test_the_fastest_measured_kernel_comes_first(cell, dtype, hidden, rows, trains, first):
    assert rank_kernels(cell, dtype, hidden, rows, 512, trains)[0] == first


@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "rows", "trains", "first"),  # steps from which on cuDNN runs; None: never
    [
        ("gru", "float32", 128, 32, False, 12),
        ("lstm", "float32", 128, 32, True, 80),
        ("gru", "float32", 64, 32, False, 32),
        ("lstm", "bfloat16", 128, 1000, True, 64),
        ("gru", "bfloat16", 400, 32, True, None),
        ("lstm", "float32", 1024, 256, True, 1),
    ],
)
def test_our_kernels_run_short_sequences(cell, dtype, hidden, rows, trains, first):
    found = [rank_kernels(cell, dtype, hidden, rows, T, trains)[0] == "aten" for T in range(1, 200)]
    assert found == [first is not None and first <= T for T in range(1, 200)]


def test_what_cudnn_cannot_run_has_our_kernels():
    sizes = "lstm", "float32", 128, 32
    assert rank_kernels(*sizes, heuristics.CUDNN_MOST_STEPS, False)[0] == "aten"
    assert rank_kernels(*sizes, heuristics.CUDNN_MOST_STEPS + 1, False) == ("cuda",)
    assert rank_kernels(*sizes, 512, False, is_plain=False) == ("cuda",)


def test_most_rows_of_attn_rnn_and_other_cells_have_no_rule():
    assert rank_kernels("attn_rnn", "bfloat16", 700, 150, 512, True) == ()
    assert rank_kernels("min_gru", "bfloat16", 64, 1, 512, True) == ()


def test_every_rule_names_kernels_of_its_cells():
    for rule in (*heuristics.CUDNN_FASTER, *GPU_RULES):
        for cell in rule.cells:
            assert set(rule.kernels) <= {kernel.backend for kernel in list_kernels(cell)}


def test_layers_that_cudnn_runs_beside_each_other_count():
    sizes = "float32", 1024, 64, 128, True
    assert [rank_kernels("lstm", *sizes, layers=n)[0] for n in (1, 2, 3)] == ["grid", "aten", "aten"]
    assert rank_kernels("gru", *sizes, layers=3)[0] == "grid"


def test_the_table_of_the_kernels_has_every_rule():
    readme = Path(heuristics.__file__).with_name("README.md").read_text()
    assert kernel_rules() in readme

import math
from dataclasses import replace

import pytest
import torch

from research.studies import gradients
from research.studies.gradients import PRINTED, Gradients, GradientSettings
from research.studies.support.contenders import layer
from research.studies.support.gradient_norms import agrees, centre, fit_line, gradient, product
from research.studies.support.ledger import FILE
from seqloom import measure

TINY = GradientSettings(
    ("gru", "lstm", "rnn"), 2, ("default", "keep 3"), lengths=(4, 8, 16), size=8, products=1, steps=0
)


def run(settings, **more):
    return list(Gradients(settings, **more).run(lambda _: None))


def test_the_columns_of_the_article_are_reproduced_to_three_digits():
    study = Gradients(protocol="paper")
    rows = list(study.run(lambda _: None))
    actual = {(row["model"], row["T"]): row for row in study.table(rows)}
    for model, column in PRINTED.items():
        for T, printed in column.items():
            norm = actual[model, T]["norm"]
            assert norm < 1e-22 if printed == 0 else float(f"{norm:.2e}") == float(f"{printed:.2e}"), (model, T)
    assert study.verdict(rows).startswith("20 of the 20 norms in the AttnRNN article are reproduced")


def test_the_columns_of_the_article_do_not_depend_on_the_chosen_models():
    short = replace(Gradients.paper, lengths=(16, 64))
    alone = run(replace(short, models=("gru",)), protocol="paper")
    assert alone == [row for row in run(short, protocol="paper") if row.model == "gru"]


def test_a_printed_zero_is_a_norm_that_float32_cannot_square():
    assert (agrees(4e-24, 0.0), agrees(1e-20, 0.0), agrees(1.0, None)) == ("yes", "no", None)
    assert (agrees(1.6461e-2, 1.6463e-2), agrees(1.6461e-2, 1.65e-2)) == ("yes", "yes")
    assert agrees(1.6461e-2, 1.66e-2) == "no"


@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn"])
def test_the_product_of_jacobians_is_that_of_the_steps(cell):
    torch.manual_seed(0)
    made, x = layer(cell, 3, 8, "default", 9).double(), torch.randn(6, 3, dtype=torch.float64)
    zero = torch.zeros(1, 8, dtype=torch.float64)
    norms = measure.gradient_norms(
        made, x, tuple(z.unsqueeze(0) for z in (zero, zero)) if cell == "lstm" else zero[None]
    )
    assert product(made, x) == pytest.approx(float(norms[-1]), rel=1e-9)
    assert gradient(made, x) == measure.initial_gradient_norm(made, x, (zero, zero) if cell == "lstm" else zero)


def test_an_exponential_fall_gives_its_rate_and_zeros_are_left_out():
    lengths = [10, 20, 40, 80]
    fit = fit_line(lengths, [3 * math.exp(-0.25 * T) for T in lengths[:3]] + [0.0])
    assert (fit.k, fit.share) == (pytest.approx(0.25), pytest.approx(1))
    assert fit_line(lengths, [1.0, 0.0, 0.0, 0.5]) is None


def test_the_mean_of_zeros_is_zero():
    assert centre([0.0, 0.0]) == 0
    assert centre([1e-2, 1e-4]) == pytest.approx(1e-3)
    rows = [gradients.Reach("rnn", "default", "ones", "start", seed, [1.0, 1e-9, 0.0], []) for seed in (0, 1)]
    assert "rnn 0 (0 .. 0)" in Gradients(TINY).verdict(rows)


def test_biases_and_seeds_vary_and_products_are_taken_of_the_first_seeds():
    study, rows = Gradients(TINY), run(TINY)
    assert len(rows) == study.parts == 2 * 2 * 2 * 2 + 2 * 2
    assert {(r.model, r.start) for r in rows} == {
        ("gru", "default"), ("gru", "keep 3"), ("lstm", "default"), ("lstm", "keep 3"), ("rnn", "default")
    }  # fmt: skip
    assert all(len(r.product) == (3 if r.seed == 0 else 0) for r in rows)
    table = study.table(rows)
    kept = {(row["input"], row["start"]): row["T = 16"] for row in table if row["model"] == "gru"}
    assert kept["ones", "keep 3"] > 3 * kept["ones", "default"]
    assert all(row["k"] > 0 and row["lowest"] <= row["T = 16"] <= row["highest"] for row in table)
    assert len(study.blocks(rows)) == 1 + 2 * 3


def test_a_stopped_study_measures_and_trains_only_what_is_missing(tmp_path, monkeypatch):
    settings = replace(TINY, models=("gru",), starts=("default",), inputs=("ones",), steps=4, span=5)
    rows = run(settings, folder=tmp_path)
    assert [row.stage for row in rows[2:]] == ["start"] * 2 + ["half-way"] * 2 + ["trained"] * 2
    assert len({row.gradient[0] for row in rows}) == len(rows)
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text("".join(lines[:-1]))
    trained, real = [], gradients.train_many
    monkeypatch.setattr(gradients, "train_many", lambda some, device: trained.extend(some) or real(some, device))
    assert run(settings, folder=tmp_path) == rows
    assert [t.recipe.steps for t in trained] == [4]

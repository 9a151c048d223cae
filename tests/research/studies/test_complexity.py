import json
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from research.studies.complexity import Complexity, ComplexitySettings, Exponent, Growth
from research.studies.support.forms import FORMS, blocks
from seqloom.layers.recurrent.layer import Recurrent

TINY = ComplexitySettings(width=16, lengths=3, fitted=3, ratio=2, shorten=8, rounds=1, reach=129)
FORM = {form.name: form for form in FORMS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("complexity")


@pytest.fixture(scope="module")
def rows(folder):
    said = []
    actual = list(Complexity(TINY, folder=folder).run(said.append))
    assert len(said) == Complexity(TINY).parts
    return {row.form: row for row in actual}


@pytest.mark.slow
def test_measured_forms_are_stored_and_read_again(rows, folder, tmp_path):
    again = Complexity(TINY, folder=folder)
    again.replays = True
    assert {row.form: row for row in again.run(lambda _: None)} == rows and not again.missing
    nothing = Complexity(TINY, folder=tmp_path)
    nothing.replays = True
    assert not list(nothing.run(lambda _: None)) and nothing.missing == list(FORM)


@pytest.mark.slow
def test_every_form_is_measured_at_growing_lengths(rows):
    assert list(rows) == list(FORM)
    for row in rows.values():
        assert list(row.lengths) == sorted(set(row.lengths)) and row.lengths[-1] == FORM[row.form].longest // 8
        assert len(row.seconds) == len(row.saved_bytes) == len(row.path) == 3
        assert min(row.seconds) > 0


@pytest.mark.slow
def test_gradients_confirm_the_counted_layers(rows):
    assert {row.form: row.layers for row in rows.values()} == {
        name: {"local attention": 2, "TCN": 6}.get(name, 1) for name in FORM
    }


@pytest.mark.parametrize("form", FORMS, ids=FORM)
def test_with_a_layer_fewer_the_first_step_is_out_of_reach(form):
    study = Complexity(ComplexitySettings(width=16))
    assert study._connects(form, form.layers(257))
    assert not study._connects(form, form.layers(257) - 1)


@pytest.mark.slow
def test_memory_is_quadratic_where_the_weights_are_kept_and_linear_where_they_are_not(rows):
    actual = {name: row.memory_exponent.value for name, row in rows.items()}
    assert actual["self-attention as written"] > 1.7 and actual["RNN + attention"] > 1.9
    for name in ("RNN", "AttnRNN", "self-attention fused", "local attention", "linear attention", "hybrid"):
        assert actual[name] == pytest.approx(1, abs=0.06), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FORM if name != "RNN + attention"])
def test_the_counted_work_is_what_torch_counts(name):
    d, T, form = 16, 256, FORM[name]
    layer = form.make(d, T)
    for part in layer.modules():
        if isinstance(part, Recurrent):
            part.kernel = "loop"
    with FlopCounterMode(display=False) as flops, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        layer(torch.randn(1, T, d))
    # The fused kernel leaves out what lies above the diagonal; torch's plain form does not.
    above = T * T * d if name in ("self-attention fused", "hybrid") else 0
    assert flops.get_total_flops() / 2 == pytest.approx(form.work(T, d) + above, rel=0.06)


def test_a_power_law_gives_its_exponent_and_noise_an_interval_around_it():
    study, lengths = Complexity(ComplexitySettings(fitted=7)), [2**n for n in range(6, 13)]
    exact = study._exponent(lengths, [3e-6 * T**1.5 for T in lengths], lambda T, d: 7 * T * T * d)
    assert (exact.value, exact.counted) == (pytest.approx(1.5), pytest.approx(2))
    assert exact.half < 1e-6
    noise = torch.randn(200, 7, generator=torch.Generator().manual_seed(0)) * 0.2
    fits = [
        study._exponent(lengths, [T * math.exp(e) for T, e in zip(lengths, row, strict=True)], lambda T, _: T)
        for row in noise.tolist()
    ]
    inside = sum(abs(fit.value - 1) <= fit.half for fit in fits) / len(fits)
    assert 0.9 < inside < 0.99


def test_only_the_longest_lengths_are_fitted():
    study = Complexity(ComplexitySettings(fitted=3))
    assert study._exponent([1, 2, 4, 8], [100, 2, 4, 8], lambda T, _: T).value == pytest.approx(1)


def test_a_tcn_has_just_enough_blocks():
    for T in (2, 61, 62, 257, 1025):
        reach = [FORM["TCN"].stack(4, T, n).reach for n in (blocks(T) - 1, blocks(T)) if n]
        assert reach[-1] >= T and all(r < T for r in reach[:-1])


def growth(name, time, layers=1):
    steps = (1, 2, 4)
    return Growth(name, steps, (1.0, 2.0, 4.0), steps, steps, time, Exponent(1, 1, 0), layers, 1)


def test_the_verdict_is_undecided_if_the_interval_is():
    study = Complexity(TINY)
    rows = [growth("a", Exponent(1, 1.1, 0.2)), growth("b", Exponent(2, 1.9, 0.2)), growth("c", Exponent(2, 1.7, 0.4))]
    said = study.verdict(rows)
    assert "closer to T than to T^2: a; closer to T^2: b; undecided: c." in said
    assert "Away" not in said and "contradict" not in said
    said = study.verdict([growth("d", Exponent(2, 1.2, 0.1), layers=None)])
    assert "differs from the counted one by more than 0.25 and the interval: d." in said
    assert said.endswith("The measured number of layers differs from the counted one: d.")


@pytest.mark.slow
def test_the_document_and_the_table_have_every_form(rows):
    study = Complexity(TINY)
    document = json.loads(json.dumps(study.document(list(rows.values()))))
    assert document["command"] == "" and document["finished"]
    assert {"date", "versions", "hardware", "settings", "verdict", "caption"} <= document.keys()
    assert [row["form"] for row in document["rows"]] == list(FORM)
    table = study.table(list(rows.values()))
    assert len(table) == len(FORM) and len({tuple(row) for row in table}) == 1
    assert Complexity().command() == "seqloom study complexity"
    assert Complexity(Complexity.quick).command() == "seqloom study complexity --quick"


@pytest.mark.slow
def test_its_page_has_a_curve_for_every_form(rows):
    table, *charts = Complexity(TINY).blocks(list(rows.values()))
    assert len(table.rows) == len(FORM) and len(charts) == 3
    assert all([curve.name for curve in chart.curves] == list(FORM) for chart in charts)
    assert charts[0].curves[0].x == [float(T) for T in rows["RNN"].lengths]

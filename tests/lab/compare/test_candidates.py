from pathlib import Path

import pytest

from seqloom import testing
from seqloom.lab.cell_names import find_cells
from seqloom.lab.data.digits import DigitsTask
from seqloom.lab.data.registry import find
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.training.candidates import (
    Candidate,
    Hyperparameters,
    choose_candidates,
    default_hyperparameters,
    propose_hyperparameters,
)
from seqloom.lab.training.sizes import fit_size, measure_size

MY_CELL = Path(__file__).parents[3] / "examples" / "my_cell.py"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_models_of_every_family_and_causal_kinds_only_causal_ones(kind):
    names = [c.name for c in choose_candidates(KINDS[kind])]
    assert {"rnn", "gru", "lstm", "attn_rnn"} <= set(names) and any("transformer" in name for name in names)
    assert kind not in ("generate", "forecast", "translate") or not any(name.startswith("bi_") for name in names)


def test_a_name_sets_the_layers_and_a_label_shows_the_width():
    (two,) = choose_candidates(KINDS["classify"], ["attn_rnn:2"])
    assert two == Candidate("attn_rnn", 2) and two.label(128) == "attn_rnn 2x128"
    assert [c.layers for c in choose_candidates(KINDS["classify"], ["tcn"], steps=150)] == [
        6
    ]  # 1 + 4 (2^6 - 1) > 150 > 1 + 4 (2^5 - 1)


def test_all_selects_every_layer_that_suits_the_task():
    every, ahead = choose_candidates(KINDS["classify"], ["all"]), choose_candidates(KINDS["forecast"], ["all"])
    assert {"bi_ln_gru", "performer"} <= {c.name for c in every}
    assert "performer" in {c.name for c in ahead} and not any(c.name.startswith("bi_") for c in ahead)


def test_a_users_cell_is_stored_with_its_absolute_path(monkeypatch):
    monkeypatch.chdir(MY_CELL.parent)
    (mine,) = choose_candidates(KINDS["classify"], ["bi_my_cell.py:MyCell:2"])
    assert mine == Candidate(f"bi_{MY_CELL}:MyCell", 2) and mine.label(8) == "my_cell.py:MyCell 2x8"
    testing.check_cell(f"{MY_CELL}:MyCell")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gur", "there is no layer 'gur'; did you mean 'gru'?"),
        ("gru:0", "at least one layer"),
        ("nowhere.py:MyCell", "there is no file 'nowhere.py'"),
    ],
)
def test_a_wrong_name_is_an_error_before_anything_is_trained(name, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        choose_candidates(KINDS["classify"], [name])


def test_a_file_that_cannot_be_loaded_is_one_error(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("import nothing_of_that_name\n")
    with pytest.raises(ValueError, match="cannot be loaded: ModuleNotFoundError: No module named"):
        find_cells([f"{file}:MyCell"])


@pytest.mark.parametrize("name", ["gru", "attn_rnn:2", "bi_lstm", "bi_hybrid"])
def test_models_come_close_to_the_parameter_budget(name):
    (one,) = choose_candidates(KINDS["classify"], [name])
    size = fit_size(DigitsTask(), one, 40_000)
    assert size.core == size.parameters == pytest.approx(40_000, rel=0.12)
    step = 8 if size.core < 40_000 else -8
    assert abs(measure_size(DigitsTask(), one, size.hidden + step).core - 40_000) >= abs(size.core - 40_000)


def test_embeddings_do_not_count_towards_the_budget():
    (gru,) = choose_candidates(KINDS["translate"], ["gru"])
    size = measure_size(find("reverse")(kinds=50), gru, 16)
    assert size.parameters - size.core == 2 * 54 * 64 + 54 * 16 + 54  # two embeddings, the head


RESULTS = [
    (Hyperparameters(3e-3), 0.5),
    (Hyperparameters(1e-3), 0.2),
    (Hyperparameters(1e-2), None),
    (Hyperparameters(1e-3, 0.4), 0.1),
]


def test_the_usual_rates_come_first():
    assert default_hyperparameters(Candidate("gru"), 2) == [Hyperparameters(3e-3), Hyperparameters(1e-3)]
    assert default_hyperparameters(Candidate("bi_transformer"), 1) == [Hyperparameters(1e-3)]


def test_proposals_depend_on_the_results_alone():
    proposals = propose_hyperparameters(RESULTS, 3)
    assert proposals == propose_hyperparameters(RESULTS, 3) and len(proposals) == 3
    assert all(1e-4 <= p.lr <= 3e-2 and 0 <= p.dropout <= 0.5 for p in proposals)
    assert propose_hyperparameters(RESULTS[:3], 3) != proposals

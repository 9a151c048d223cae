from pathlib import Path

import pytest
import torch

from seqloom import Cell, Recurrent, testing
from seqloom.settings import Compare
from seqloom.studies.compare import cells, document, hidden_size, run
from seqloom.studies.table import table
from seqloom.tasks import digits

MY_CELL = str(Path(__file__).parents[2] / "examples" / "my_cell.py") + ":MyCell"


@pytest.fixture(scope="module")
def task():
    return digits.load()


def outcomes(task, **settings):
    chosen = Compare(**settings)
    return list(run(chosen, cells(chosen.models), task, lambda _: None))


class Broken(Cell):
    """Works until it is trained."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, input_size))

    def step(self, x, state):
        raise RuntimeError("a step\n  that fails")


def test_a_gru_is_far_above_the_majority_after_a_few_epochs(task):
    majority, linear, gru = outcomes(task, models="gru", seeds=1, epochs=5)
    assert (majority.model, linear.model) == ("majority class", "logistic regression")
    assert gru.test > 0.85
    assert majority.test < 0.15
    assert 1 <= gru.epoch <= 5


def test_the_same_seed_gives_the_same_numbers_and_another_others(task):
    settings = dict(models="rnn", seeds=2, epochs=2, hidden=16)
    first, second = outcomes(task, **settings), outcomes(task, **settings)
    scores = [(o.model, o.seed, o.validation, o.test, o.epoch) for o in first]
    assert scores == [(o.model, o.seed, o.validation, o.test, o.epoch) for o in second]
    assert first[-1].validation != first[-2].validation


def test_the_test_images_do_not_choose_the_epoch(task):
    wrong = digits.Digits("rows", task.train, task.validation, (task.test[0], (task.test[1] + 1) % 10))
    settings = dict(models="rnn", seeds=1, epochs=4, hidden=32)
    honest, shuffled = outcomes(task, **settings)[-1], outcomes(wrong, **settings)[-1]
    assert (honest.epoch, honest.validation) == (shuffled.epoch, shuffled.validation)
    assert shuffled.test < 0.2 < honest.test


def test_a_model_that_fails_is_a_row_and_the_others_go_on(task):
    settings = Compare(models="rnn", seeds=2, epochs=1, hidden=8)
    found = list(run(settings, {"broken": Broken, **cells(["rnn"])}, task, lambda _: None))
    assert [(o.model, o.seed) for o in found[2:]] == [("broken", 0), ("rnn", 0), ("rnn", 1)]
    assert table(found)[-1].failed == "RuntimeError: a step that fails"


def test_seeds_go_round_the_models_and_every_epoch_is_told(task):
    told = []
    settings = Compare(models="rnn,gru", seeds=2, epochs=1, hidden=8)
    found = list(run(settings, cells(settings.models), task, told.append))
    assert told == ["rnn, seed 0", "gru, seed 0", "rnn, seed 1", "gru, seed 1"]
    assert [(o.model, o.seed) for o in found if o.trained] == [("rnn", 0), ("gru", 0), ("rnn", 1), ("gru", 1)]


@pytest.mark.parametrize("model", Compare().models)
def test_every_model_gets_nearly_the_parameters_of_the_budget(model, task):
    (kind,) = cells([model]).values()
    hidden = hidden_size(kind, task, 10_000)
    assert hidden % 4 == 0
    layer = Recurrent(kind, 8, hidden)
    assert sum(p.numel() for p in layer.parameters()) + 10 * hidden + 10 == pytest.approx(10_000, rel=0.06)


def test_a_tiny_budget_gives_the_smallest_layer(task):
    (kind,) = cells(["gru"]).values()
    assert hidden_size(kind, task, 1) == 4


def test_the_document_carries_what_a_reader_needs(task):
    settings = Compare(models=f"rnn,{MY_CELL}", seeds=1, epochs=1, hidden=8)
    found = list(run(settings, cells(settings.models), task, lambda _: None))
    made = document(settings, task, found, True)
    assert made["seeds"] == [0]
    assert made["versions"]["torch"] == torch.__version__
    assert made["hardware"]["cores"] >= 1
    assert made["date"].endswith("+00:00")
    assert made["task"]["images"]["test"] == 360
    assert [t["model"] for t in made["trainings"]][-1] == MY_CELL
    assert made["command"].startswith(f"seqloom compare --models rnn,{MY_CELL} --reading rows --seeds 1 --epochs 1")
    assert document(settings, task, found, False)["conclusion"] == "Interrupted: no conclusion."


def test_the_example_of_a_persons_own_cell_is_a_proper_cell():
    testing.check_cell(MY_CELL)


def test_a_file_that_cannot_be_loaded_is_told_in_one_error(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("import nothing_of_that_name\n")
    with pytest.raises(ValueError, match="cannot be loaded: ModuleNotFoundError: No module named"):
        cells([f"{file}:MyCell"])

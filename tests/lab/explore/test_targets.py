"""Which output an explanation is about, and which equations stand beside it."""

import json
from types import SimpleNamespace

import pytest
import torch

from seqloom.lab.explore import finding
from seqloom.lab.explore.contributions import Target, choose_target
from seqloom.lab.explore.inside import find_equations
from seqloom.lab.explore.subject import Subject
from seqloom.lab.kinds.registry import KINDS

CLASSES = torch.tensor([[0.1, 0.7, 0.2]])
STEPS = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]])


def choose(values, kind="tag", wanted=None, **chosen):
    return choose_target(SimpleNamespace(kind=KINDS[kind]), SimpleNamespace(values=values, wanted=wanted), **chosen)


def test_without_a_choice_the_target_is_the_prediction():
    assert choose(CLASSES, "classify") == Target(1)
    assert choose(STEPS) == Target(0, 0)


@pytest.mark.parametrize("output", [0, 1, 2])
def test_an_output_can_be_chosen(output):
    assert choose(CLASSES, "classify", output=output) == Target(output)


@pytest.mark.parametrize("output", [-1, 3])
def test_an_output_that_does_not_exist_is_replaced_by_the_prediction(output):
    assert choose(CLASSES, "classify", output=output) == Target(1)


def test_a_step_can_be_chosen_and_its_prediction_is_the_target():
    assert choose(STEPS, step=1) == Target(1, 1)
    assert choose(STEPS, step=2, output=1) == Target(1, 2)
    assert choose(STEPS, step=3) == Target(0, 0)


@pytest.mark.parametrize("kind", ["generate", "forecast"])
def test_texts_and_forecasts_are_explained_at_their_last_step(kind):
    assert choose(STEPS, kind) == Target(0, 2)


def test_what_the_output_should_be_is_the_target_if_it_is_known():
    assert choose(STEPS, wanted=torch.tensor([[1, 0, 1]])) == Target(1, 0)


@pytest.mark.parametrize(("count", "rest"), [(2, None), (3, 7), (9, 1)])
def test_the_beginning_does_not_matter_if_a_third_of_the_steps_can_go(monkeypatch, count, rest):
    """`count` of 10 steps can be left out without a change of the prediction."""
    monkeypatch.setattr(finding, "remove_windows", lambda *args, **_: [end for _, end in args[1]])
    monkeypatch.setattr(
        finding, "read_target", lambda ends, _: torch.tensor([0.9 if e <= count else 0.1 for e in ends])
    )
    subject = SimpleNamespace(kind=KINDS["classify"], is_per_step=False, deletes=True)
    example = SimpleNamespace(steps=range(10), batch=None)
    evidence = SimpleNamespace(subject=subject, example=example, target=None, value=0.9, run=lambda ends: ends)
    statements = finding._describe_beginning(evidence)
    texts = [statement.text for statement in statements]
    assert (
        texts
        == {
            None: [],
            7: ["The last 7 of 10 steps alone give the same prediction."],
            1: ["The last of 10 steps alone gives the same prediction."],
        }[rest]
    )


class Documented:
    """A cell.

        h = tanh(x)
        y = h

    More text.

        not an equation
    """


class Undocumented:
    pass


def test_the_equations_of_a_cell_are_the_first_indented_lines_of_its_docstring():
    assert find_equations(Documented()) == "h = tanh(x)\ny = h"


def test_a_cell_without_a_docstring_has_no_equations():
    assert find_equations(Undocumented()) == ""


def test_words_outside_the_vocabulary_keep_their_names_in_a_text_and_in_an_object(run):
    subject = Subject("turns", run.model(), run.task)
    column = run.task.encoding.plan.input[0]
    for typed in ("zzyzx good", json.dumps({column: "zzyzx good"})):
        assert "zzyzx" in subject.read(typed).steps

"""Errors of a model become answers only where the rows are to blame."""

from types import SimpleNamespace

import pytest

from seqloom.core.errors import UserError
from seqloom.lab.serve import model_version
from seqloom.lab.serve.model_version import ModelVersion
from seqloom.lab.web.problems import LONGEST_SENTENCE, RequestError


def predict(monkeypatch, error, encoding):
    """Predict with a model that raises an error."""

    def fail(*_, **options):
        raise error

    monkeypatch.setattr(model_version, "predict_pieces", fail)
    run = SimpleNamespace(task=SimpleNamespace(encoding=encoding))
    return ModelVersion("name", run, None, None, "5 abc", None, "").predict([{"input": [1]}], False)


def test_a_row_that_cannot_be_read_is_answered_with_422(monkeypatch):
    with pytest.raises(RequestError, match="row 1 is wrong") as e:
        predict(monkeypatch, UserError("row 1 is wrong"), encoding="columns")
    assert e.value.status == 422


def test_rows_of_another_shape_are_answered_with_422_for_a_built_in_task(monkeypatch):
    with pytest.raises(RequestError, match="another shape than those of the training") as e:
        predict(monkeypatch, RuntimeError("stack expects each tensor to be equal size"), encoding=None)
    assert e.value.status == 422


@pytest.mark.parametrize(
    ("text", "encoding"), [("equal size", "columns"), ("out of memory", None), ("out of memory", "columns")]
)
def test_any_other_error_is_a_bug_and_not_an_answer(monkeypatch, text, encoding):
    with pytest.raises(RuntimeError, match=text) as e:
        predict(monkeypatch, RuntimeError(text), encoding)
    assert not isinstance(e.value, RequestError)


def test_a_row_of_a_built_in_task_is_its_input(monkeypatch):
    monkeypatch.setattr(model_version, "predict_pieces", lambda *args, **_: args[2][0])
    run = SimpleNamespace(task=SimpleNamespace(encoding=None))
    version = ModelVersion("name", run, None, None, "5 abc", None, "")
    assert version.predict([{"input": [1]}, {"input": [2, 3]}], False) == [[1], [2, 3]]
    assert version.step == 5


@pytest.mark.parametrize(("length", "is_cut"), [(LONGEST_SENTENCE, False), (LONGEST_SENTENCE + 1, True)])
def test_a_long_sentence_is_cut_to_the_longest_length(length, is_cut):
    error = RequestError(422, "x" * length)
    assert len(error.sentence) == LONGEST_SENTENCE == len(str(error))
    assert error.sentence.endswith("...") == is_cut


def test_a_sentence_stands_on_one_line():
    assert RequestError(400, "a\n  b", {"x": "y"}).sentence == "a b"
    assert RequestError(400, "a", {"x": "y"}).headers == {"x": "y"}
    assert RequestError(400, "a").headers == {}

"""The estimators keep scikit-learn's rules, and take sequences of every kind."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_classifiers_train, check_regressors_train, parametrize_with_checks

from seqloom.lab.estimators import SequenceClassifier, SequenceRegressor, SequenceTagger

QUICK = {"hidden": 4, "epochs": 1, "random_state": 0}
LEARNED = {"hidden": 8, "epochs": 15, "lr": 0.02, "random_state": 0}
CHECKED = [SequenceClassifier("rnn", **QUICK), SequenceRegressor("rnn", **QUICK)]


def expected_failures(estimator):
    name = "check_classifiers_train" if isinstance(estimator, SequenceClassifier) else "check_regressors_train"
    return {name: "one epoch is too few to learn; below it runs with more"}


@parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_scikit_learns_checks_of_learning_with_enough_epochs():
    check_classifiers_train("SequenceClassifier", SequenceClassifier("rnn", **LEARNED))
    check_regressors_train("SequenceRegressor", SequenceRegressor("rnn", **LEARNED))


def series(n=60, seed=0):
    """Return series of different lengths; the mean of one class is two higher than that of the other."""
    random = np.random.default_rng(seed)
    y = np.array(["low", "high"])[np.arange(n) % 2]
    return [random.normal(size=(random.integers(3, 9), 2)) + 2 * (k == "high") for k in y], y


@pytest.mark.parametrize(("n", "held"), [(9, 0), (10, 2), (40, 8)])
def test_a_share_of_ten_or_more_examples_is_held_out(n, held):
    split = SequenceClassifier(validation=0.2)._split(n, None, 0)
    if held:
        assert len(split["valid"]) == held
        assert sorted([*split["train"], *split["valid"]]) == list(range(n))
    else:
        assert split["train"].tolist() == split["valid"].tolist() == list(range(n))


def test_a_class_that_is_too_rare_for_both_parts_is_split_at_random():
    model = SequenceClassifier(validation=0.2)
    even = model._split(20, np.arange(20) % 2, 0)["valid"] % 2
    assert even.sum() == 2 and len(even) == 4
    assert len(model._split(20, (np.arange(20) == 3).astype(int), 0)["valid"]) == 4


def test_rows_of_another_kind_than_those_of_fit_are_refused():
    X, y = series(12)
    model = SequenceClassifier("rnn", **QUICK)
    model.fit(X, y)
    with pytest.raises(ValueError, match="X holds arrays of 1 feature, but fit was given arrays of 2 features"):
        model.predict(np.zeros((2, 5)))
    model.fit(np.arange(60.0).reshape(12, 5), y)
    with pytest.raises(ValueError, match="X holds texts, but fit was given arrays of 1 feature"):
        model.predict(["a text"])


def test_a_classifier_learns_series_of_different_lengths():
    X, y = series()
    model = SequenceClassifier("gru", **LEARNED).fit(X, y)
    assert model.score(X, y) > 0.95
    p = model.predict_proba(X)
    assert model.classes_.tolist() == ["high", "low"]
    assert p.shape == (60, 2)
    assert p.sum(1) == pytest.approx(1)
    assert (model.classes_[p.argmax(1)] == model.predict(X)).all()


def test_the_same_random_state_gives_the_same_model_and_another_another():
    X, y = series(30)
    one, two, other = (SequenceClassifier(hidden=4, epochs=1, random_state=s).fit(X, y) for s in (1, 1, 2))
    assert (one.predict_proba(X) == two.predict_proba(X)).all()
    assert (one.predict_proba(X) != other.predict_proba(X)).any()
    assert (pickle.loads(pickle.dumps(one)).predict_proba(X) == one.predict_proba(X)).all()


@pytest.mark.parametrize(
    "X",
    [
        ["a good film and a fine one", "what a bad and dull film"] * 20,
        np.array(["a good film and a fine one", "what a bad and dull film"] * 20, dtype=object),
        [["a", "good", "film"], ["bad", "film"]] * 20,
        np.tile(np.array([[1.0, 2, 3], [-1, -2, -3]]), (20, 1)),
        np.tile(np.array([[[1.0, 0], [2, 0]], [[-1, 0], [-2, 0]]]), (20, 1, 1)),
        [[1, 2, 3], [-1.0, -2]] * 20,
    ],
    ids=["texts", "an array of texts", "tokens", "a table", "an array (N, T, D)", "lists of numbers"],
)
def test_every_kind_of_sequence_is_learned(X):
    y = np.arange(40) % 2
    model = SequenceClassifier("gru", **LEARNED).fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.predict(X[:3]).tolist() == [0, 1, 0]


def test_a_regressor_answers_in_the_units_and_the_shape_of_y():
    X, _ = series(60)
    y = np.array([100 + 10 * x.mean() for x in X])
    model = SequenceRegressor("gru", **LEARNED | {"epochs": 30}).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.predict(X).shape == (60,)
    both = SequenceRegressor("gru", **QUICK).fit(X, np.stack([y, -y], 1))
    assert both.predict(X[:5]).shape == (5, 2)
    assert ((both.predict(X) > [50, -150]) & (both.predict(X) < [150, -50])).all()


def test_a_tagger_predicts_a_tag_for_every_step():
    X = [["the", "cat", "sleeps"], ["cat", "the"], ["sleeps"]] * 10
    y = [["D", "N", "V"], ["N", "D"], ["V"]] * 10
    model = SequenceTagger("gru", **LEARNED).fit(X, y)
    assert model.predict([["cat", "sleeps"], ["the"]]) == [["N", "V"], ["D"]]
    assert model.score(X, y) == 1.0
    assert cross_val_score(SequenceTagger("gru", **QUICK), X, y, cv=3).shape == (3,)
    assert clone(model).get_params() == model.get_params()
    numbers = SequenceTagger("gru", **QUICK).fit([np.ones((n, 2)) for n in (2, 3)] * 5, [[1, 2], [2, 2, 1]] * 5)
    assert set(numbers.predict([np.ones((4, 2))])[0]) <= {1, 2}


@pytest.mark.slow
def test_they_work_in_pipelines_searches_and_cross_validation():
    X, y = series(60)
    halved = FunctionTransformer(lambda rows: [row[::2] for row in rows])
    model = make_pipeline(halved, SequenceClassifier("gru", **LEARNED))
    assert cross_val_score(model, X, y, cv=3).mean() > 0.8
    search = GridSearchCV(SequenceClassifier("rnn", **QUICK), {"hidden": [2, 4]}, cv=2).fit(X, y)
    assert search.best_params_["hidden"] in (2, 4)


def test_any_setting_of_the_training_can_be_given():
    X, y = series(20)
    model = SequenceClassifier(**QUICK, settings={"layers": 2, "dropout": 0.0, "weight_decay": 0.0}).fit(X, y)
    assert model.model_.model.layer.num_layers == 2
    with pytest.raises(ValueError, match="no setting 'layer'; did you mean 'layers'"):
        SequenceClassifier(**QUICK, settings={"layer": 2}).fit(X, y)
    with pytest.raises(ValueError, match="did you mean 'gru'"):
        SequenceClassifier("gur", **QUICK).fit(X, y)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X is empty"),
        (["a b", ""], r"X\[1\] is an empty text"),
        ([["a"], []], r"X\[1\] is empty"),
        (["a b", ["a", "b"]], "X mixes lists of tokens and texts"),
        ([np.ones((2, 3)), np.ones((2, 2))], "X mixes arrays of 2 features and arrays of 3 features"),
        ([np.ones((2, 3, 4))], r"X\[0\] has the shape \(2, 3, 4\)"),
        ([1.0, 2.0], r"X\[0\] is 1.0, which is not a sequence"),
        ([[1, 2], ["a", None]], "X mixes|neither words nor numbers"),
        ([[1.0, 2.0], [1.0, np.inf]], r"X\[1\] contains infinity"),
        (pl.DataFrame({"text": ["a b", "c"]}), r"give the column .* such as X\['text'\]"),
    ],
)
def test_inputs_that_are_not_sequences_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(**QUICK).fit(X, list(range(len(X))))


def test_unfitted_models_and_other_kinds_of_input_are_refused():
    X, y = series(20)
    for kind in (SequenceClassifier, SequenceRegressor, SequenceTagger):
        with pytest.raises(NotFittedError):
            kind().predict(X)
    model = SequenceClassifier(**QUICK).fit(X, y)
    with pytest.raises(ValueError, match="X holds texts, but fit was given arrays of 2 features"):
        model.predict(["a text"])
    with pytest.raises(ValueError, match=r"X\[1\] has 2 steps but y\[1\] has 1 tag"):
        SequenceTagger(**QUICK).fit([["a"], ["b", "c"]], [["X"], ["X"]])
    with pytest.raises(ValueError, match="only one class, 'low'"):
        SequenceClassifier(**QUICK).fit(X, ["low"] * 20)


def test_the_last_fit_decides_what_a_sequence_is_tables_too():
    X, texts, y = np.random.default_rng(0).normal(size=(12, 5)), ["a b", "c d e"] * 6, ["X", "Y"] * 6
    model = SequenceClassifier(**QUICK).fit(texts, y)
    with pytest.raises(ValueError, match="X holds arrays of 1 feature, but fit was given texts"):
        model.predict(X)
    assert (model.fit(X, y).predict(list(X)) == model.predict(X)).all()
    with pytest.raises(ValueError, match="X holds texts, but fit was given arrays of 1 feature"):
        model.predict(texts)


def test_targets_with_something_missing_are_refused():
    for missing in (None, np.nan, 1):
        with pytest.raises(ValueError, match=f"y holds texts and {missing}"):
            SequenceClassifier(**QUICK).fit(["a b", "c d", "e"], np.array(["X", missing, "Y"], dtype=object))
        with pytest.raises(ValueError, match=f"y holds texts and {missing}"):
            SequenceTagger(**QUICK).fit([["a", "b"]], [["X", missing]])
    with pytest.raises(ValueError, match="requires y to be passed"):
        SequenceTagger(**QUICK).fit([["a", "b"]], None)
    for missing in (None, np.nan):
        with pytest.raises(ValueError, match=f"y holds {missing}, which is not a class; remove rows without a class"):
            SequenceTagger(**QUICK).fit([["a", "b"]], [[1, missing]])
    with pytest.raises(ValueError, match=r"y\[1\] is None; give a list of tags for every sequence"):
        SequenceTagger(**QUICK).fit([["a"], ["b"]], [["X"], None])


def test_words_in_series_and_arrays_are_words():
    words, tags = [["a", "b"], ["b"]] * 6, [[0, 1], [1]] * 6
    actual = [
        SequenceTagger(**QUICK).fit(X, y).predict(X)
        for X, y in ((words, tags), (pl.Series(words), pl.Series(tags)), ([np.array(row) for row in words], tags))
    ]
    assert actual[0] == actual[1] == actual[2]


def test_a_class_too_rare_to_be_held_out_is_still_known():
    X, y = series(30)
    y = np.where(np.arange(30) == 7, "rare", y)
    model = SequenceClassifier(**QUICK).fit(X, y)
    assert model.classes_.tolist() == ["high", "low", "rare"]
    assert model.predict_proba(X).shape == (30, 3)


def test_fits_in_threads_match_fits_alone_and_leave_torchs_generator_unchanged():
    X, y = series(30)

    def fitted(seed):
        return SequenceClassifier(hidden=4, epochs=3, random_state=seed).fit(X, y).predict_proba(X)

    before = torch.get_rng_state()
    alone = [fitted(seed) for seed in range(4)]
    assert torch.equal(torch.get_rng_state(), before)
    with ThreadPoolExecutor(4) as pool:
        for seed, actual in enumerate(pool.map(fitted, range(4))):
            assert np.array_equal(actual, alone[seed])


def test_smoothed_labels_and_a_crf_cannot_be_combined():
    X, y = [["a", "b"]] * 4, [["X", "Y"]] * 4
    both = {"crf": True, "label_smoothing": 0.1}
    with pytest.raises(ValueError, match=r"label_smoothing=0\.1 does nothing with crf=True, .*; leave one of them out"):
        SequenceTagger(**QUICK, settings=both).fit(X, y)
    SequenceClassifier(**QUICK, settings={"label_smoothing": 0.1}).fit(X, [0, 1] * 2)

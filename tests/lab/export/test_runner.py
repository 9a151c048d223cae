"""The runner of an exported model: rows in, results out, with numpy alone."""

import numpy as np
import pytest

from seqloom.lab.export.runner import results, rows
from seqloom.lab.export.runner.rows import END, FIRST_ID, UNKNOWN, RowError, fill_gaps, make_encoder
from seqloom.lab.kinds.registry import KINDS

SCALE = {"mean": [1.0], "deviation": [2.0], "missing": [False]}


def make_text(tmp_path, unit="words", lowercase=False, end=0, **more):
    about = {"type": "text", "column": "text", "words": ["good", "Bad", "a"], "pattern": r"\w+", "end": end}
    return make_encoder(about | {"unit": unit, "lowercase": lowercase} | more, tmp_path)


@pytest.mark.parametrize(
    ("unit", "lowercase", "value", "tokens"),
    [
        ("words", False, "Good, Bad!", ["Good", "Bad"]),
        ("words", True, "Good, Bad!", ["good", "bad"]),
        ("characters", False, "aB", ["a", "B"]),
        ("characters", True, "aB", ["a", "b"]),
        ("bytes", False, "aB", [ord("a") + FIRST_ID, ord("B") + FIRST_ID]),
        ("tokens", False, "Good Bad", ["Good", "Bad"]),
        ("tokens", True, ["Good", "Bad"], ["good", "bad"]),
    ],
)
def test_a_text_is_split_as_in_training(tmp_path, unit, lowercase, value, tokens):
    assert make_text(tmp_path, unit, lowercase).split(value) == tokens


def test_tokens_become_ids_with_a_mark_for_unknown_ones_and_the_end(tmp_path):
    assert make_text(tmp_path).encode("good Bad worse")["x"].tolist() == [FIRST_ID, FIRST_ID + 1, UNKNOWN]
    assert make_text(tmp_path, end=1).encode({"text": "good"})["x"].tolist() == [FIRST_ID, END]


def test_letters_of_a_long_word_are_those_of_both_ends(tmp_path):
    arrays = make_text(tmp_path, letters="abc", word_letters=4).encode("abc abcabc x")
    assert arrays["letters"].tolist() == [[2, 3, 4, 0], [2, 3, 3, 4], [1, 0, 0, 0]]


@pytest.mark.parametrize(("unit", "value"), [("words", 3), ("tokens", 3), ("tokens", ["a", 3])])
def test_what_is_not_a_text_is_refused(tmp_path, unit, value):
    with pytest.raises(RowError, match="is not a"):
        make_text(tmp_path, unit).encode(value)
    with pytest.raises(RowError, match="no column 'text'; it has words"):
        make_text(tmp_path, unit).encode({"words": "good"})


def test_several_texts_are_joined_with_ends_between_them(tmp_path):
    inner = {"type": "text", "column": "text", "words": ["a", "b"], "pattern": r"\w", "end": 0}
    about = {"type": "joined", "columns": ["one", "two"], "inner": inner | {"unit": "words", "lowercase": False}}
    encoder = make_encoder(about, tmp_path)
    a, b = FIRST_ID, FIRST_ID + 1
    assert encoder.encode({"one": "a b", "two": "b"})["x"].tolist() == [a, b, END, b]
    assert encoder.encode({"one": "", "two": "b"})["x"].tolist() == [END, b]
    assert encoder.encode({"one": "", "two": ""})["x"].tolist() == []
    with pytest.raises(RowError, match="give an object with the columns one, two"):
        encoder.encode("a b")


def make_series(tmp_path, columns=("v",), wide=False, missing=False):
    n = 1 if wide else len(columns)
    scale = {"mean": [1.0] * n, "deviation": [2.0] * n, "missing": [missing] * n}
    return make_encoder(
        {"type": "series", "columns": list(columns), "wide": wide, "width": 1, "scale": scale}, tmp_path
    )


def test_numbers_are_standardised_and_missing_ones_are_zero_with_a_mark(tmp_path):
    assert make_series(tmp_path).encode([1, 3, None])["x"].tolist() == [[0.0], [1.0], [0.0]]
    assert make_series(tmp_path, missing=True).encode([1, None])["x"].tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_columns_are_the_features_of_a_step(tmp_path):
    x = make_series(tmp_path, ("v", "w")).encode({"v": [1, 3], "w": [5, 1]})["x"]
    assert x.tolist() == [[0.0, 2.0], [1.0, 0.0]]
    assert make_series(tmp_path, ("a", "b", "c"), wide=True).encode({"a": 1, "b": 3, "c": 5})["x"].tolist() == [
        [0],
        [1],
        [2],
    ]


@pytest.mark.parametrize(
    ("columns", "wide", "row", "message"),
    [
        (("v", "w"), False, {"v": [1, 2], "w": [1]}, "have different lengths"),
        (("v",), False, "text", "is not a list of numbers"),
        (("v",), False, [[1, 2]], "give steps of 1 numbers"),
        (("a", "b"), True, [1, 2, 3], "3 numbers, training had 2"),
    ],
)
def test_numbers_of_another_shape_are_refused(tmp_path, columns, wide, row, message):
    with pytest.raises(RowError, match=message):
        make_series(tmp_path, columns, wide).encode(row)


def make_table(tmp_path, **changed):
    about = {"type": "table", "columns": ["y"], "known": [], "categories": {}, "targets": ["y"], "scale": SCALE}
    return make_encoder(about | {"season": 2, "lookback": 3, "horizon": 2, "known_features": [1]} | changed, tmp_path)


def test_a_forecast_reads_the_last_steps(tmp_path):
    assert make_table(tmp_path).encode([1, 3, 5, 7])["x"].tolist() == [[1.0], [2.0], [3.0]]
    assert make_table(tmp_path).encode({"y": [1, 3]})["x"].tolist() == [[0.0], [1.0]]


def test_the_future_of_known_columns_is_read(tmp_path):
    wide = {"mean": [1.0, 0.0], "deviation": [2.0, 1.0], "missing": [False, False]}
    table = make_table(tmp_path, columns=["y", "k"], known=["k"], scale=wide)
    arrays = table.encode({"y": [1, 3], "k": [7, 8, 9, 10]})
    assert arrays["x"].tolist() == [[0.0, 7.0], [1.0, 8.0]]
    assert arrays["future"].tolist() == [[9.0], [10.0]]
    with pytest.raises(RowError, match="column 'k': give a list of 4 values"):
        table.encode({"y": [1, 3], "k": [7, 8]})
    with pytest.raises(RowError, match="give an object with the columns y, k"):
        table.encode([[1, 7], [3, 8]])


def test_categories_are_flags(tmp_path):
    table = make_table(tmp_path, columns=["y", "town"], categories={"town": ["here", "there"]})
    assert table.encode({"y": [1, 3], "town": ["there", "here"]})["x"].tolist() == [[0, 0, 1], [1, 1, 0]]


def test_gaps_are_filled_from_the_season_before_or_the_step_before():
    values = np.array([[1.0], [2.0], [np.nan], [np.nan], [np.nan]])
    assert fill_gaps(values, 2).ravel().tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert fill_gaps(np.array([[1.0], [np.nan]]), 2).ravel().tolist() == [1.0, 1.0]
    assert np.isnan(fill_gaps(np.array([[np.nan], [1.0]]), 2)[0, 0])


def decode(kind, values, lengths=(), past=None, probabilities=False, **about):
    lengths = np.array(lengths or [1] * len(values))
    return results.DECODERS[KINDS[kind].decoder](
        about, np.array(values, dtype=np.float32), lengths, past, probabilities
    )


def decide(**changed):
    return {"threshold": None, "weights": [], "temperature": 1.0, "reject": None, "positive": 1} | changed


def classify(p, probabilities=False, **rule):
    found = decode("classify", [p], names=["a", "b"], decision=decide(**rule), probabilities=probabilities)
    return found[0]


def test_the_class_is_the_most_probable_one_or_follows_the_rule_of_the_run():
    assert classify([0.6, 0.4]) == {"prediction": "a", "probability": 0.6}
    assert classify([0.6, 0.4], threshold=0.4)["prediction"] == "b"
    assert classify([0.61, 0.39], threshold=0.4)["prediction"] == "a"
    assert classify([0.6, 0.4], weights=[1.0, 2.0])["prediction"] == "b"
    assert classify([0.6, 0.4], weights=[1.0, 2.0], temperature=3.0)["prediction"] == "a"
    assert classify([0.6, 0.4], True)["probabilities"] == {"a": 0.6, "b": 0.4}


def test_an_unsure_class_is_none():
    assert classify([0.6, 0.4], reject=0.7) == {"prediction": None, "probability": 0.6, "is_unsure": True}
    assert classify([0.6, 0.4], reject=0.6)["is_unsure"] is False


def test_labels_are_those_of_at_least_a_half_the_most_probable_first():
    about = {"names": ["a", "b", "c"], "per_step": False}
    found = decode("multilabel", [[0.5, 0.1, 0.9]], probabilities=True, **about)
    assert found == [
        {"prediction": ["c", "a"], "probability": [0.9, 0.5], "probabilities": {"a": 0.5, "b": 0.1, "c": 0.9}}
    ]
    steps = decode("multilabel", [[[0.9, 0.1, 0.2], [0.9, 0.9, 0.9]]], [1], **(about | {"per_step": True}))
    assert steps == [{"prediction": [["a"]], "probability": [[0.9]]}]


def test_tags_end_with_their_row():
    found = decode("tag", [[[0.9, 0.1], [0.2, 0.8], [1.0, 0.0]]], [2], names=["a", "b"])
    assert found == [{"prediction": ["a", "b"], "probability": [0.9, 0.8]}]


def test_a_crf_takes_the_best_chain():
    crf = {"A": [[0.0, -9.0], [0.0, 0.0]], "b": [0.0, 0.0], "c": [0.0, 0.0]}
    e = [[1.0, 0.9], [0.0, 1.0]]
    assert decode("tag", [e], [2], names=["a", "b"], crf=crf) == [{"prediction": ["b", "b"]}]
    assert decode("tag", [e], [2], names=["a", "b"], crf=crf | {"c": [5.0, 0.0]}) == [{"prediction": ["a", "a"]}]
    assert decode("tag", [e], [2], names=["a", "b"], crf=crf | {"b": [9.0, 0.0]}) == [{"prediction": ["a", "a"]}]


def test_numbers_are_in_the_units_of_the_data():
    assert decode("regress", [[1.5]], names=["y"], scale=SCALE) == [{"prediction": 4.0}]
    two = {"mean": [1.0, 0.0], "deviation": [2.0, 1.0]}
    assert decode("regress", [[1.5, 7.0]], names=["y", "z"], scale=two) == [{"prediction": {"y": 4.0, "z": 7.0}}]


def test_intervals_of_a_forecast_follow_the_changes_of_the_past():
    rule = {"season": 2, "floor": [0.5], "widths": {"80": [[1.0], [None]]}}
    past = np.array([[[0.0], [1.0], [3.0]]], dtype=np.float32)  # changes of 1 and 2 in a step
    about = {"names": ["y"], "scale": SCALE, "intervals": rule, "target_features": [0]}
    (found,) = decode("forecast", [[[0.0], [1.0]]], [3], past, **about)
    assert found == {"prediction": [1.0, 3.0], "lower_80": [-2.0, None], "upper_80": [4.0, None]}
    (calm,) = decode("forecast", [[[0.0], [1.0]]], [3], 0 * past, **about)
    assert calm["upper_80"] == [2.0, None]


def test_the_unit_of_an_interval_is_the_change_in_a_season_if_the_past_is_long_enough():
    past = np.array([[[0.0], [4.0], [1.0], [5.0], [2.0]]])
    assert results.measure_unit(past, np.array([5]), 2).tolist() == [[1.0]]
    assert results.measure_unit(past, np.array([4]), 2).tolist() == [[11 / 3]]
    assert results.measure_unit(past[:, :1], np.array([1]), 2).tolist() == [[0.0]]


def test_rows_are_read_by_their_names():
    assert rows.read_column({"a": 1}, "a") == 1 == rows.read_column(1, "a")

"""A trained run on new rows: order, forms, empty inputs, and files of every size in the same memory."""

import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.data.pipeline.new_rows import CHUNK, iterate_rows
from seqloom.lab.data.registry import open_data, reopen
from seqloom.lab.data.task import END, PAD, START, UNKNOWN, Notes
from seqloom.lab.files import sealed
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.fit import fit, validate_settings
from seqloom.lab.training.folders import choose_folder, find_latest, find_run
from seqloom.lab.training.output import write_results
from seqloom.lab.training.predict import (
    BATCH_STEPS,
    TextSampling,
    check_can_predict,
    encode_rows,
    generate,
    predict,
    split_by_length,
    translate,
)
from seqloom.lab.training.results import evaluate, list_unseen
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.sampling import Sampling

SMALL = {"hidden": 8, "embedding": 8, "epochs": 2, "batch": 8}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Return a folder with its own cache, shared by all tests here."""
    folder = tmp_path_factory.mktemp("lab")
    before = os.environ.get("SEQLOOM_CACHE")
    os.environ["SEQLOOM_CACHE"] = str(folder / "cache")
    yield folder
    os.environ.pop("SEQLOOM_CACHE")
    if before is not None:
        os.environ["SEQLOOM_CACHE"] = before


@pytest.fixture(scope="module")
def words(work):
    """Return a run that classifies words of vowels and of consonants."""
    random = np.random.default_rng(0)
    kinds = {"vowels": "aeiou", "consonants": "bcdfg"}
    lines = [
        f"{''.join(random.choice(list(letters), random.integers(3, 9)))},{kind}"
        for _ in range(60)
        for kind, letters in kinds.items()
    ]
    file = work / "words.csv"
    file.write_text("\n".join(["word,label", *lines]) + "\n")
    return fit(file, "gru", runs=work / "runs", name="words", lr=0.03, **SMALL)


def test_neither_a_fit_nor_a_prediction_moves_torchs_generator(words, tmp_path):
    before = torch.get_rng_state()
    words.predict(["aei"])
    assert torch.equal(torch.get_rng_state(), before)
    fit(words.folder.parents[1] / "words.csv", "gru", runs=tmp_path, name="again", **SMALL | {"epochs": 1})
    assert torch.equal(torch.get_rng_state(), before)


def test_a_new_training_with_smoothed_labels_and_a_crf_is_refused_and_an_old_one_loaded(tmp_path):
    X, y = [["a", "b"]] * 4, [[0, 1]] * 4
    task = MemoryTask("tag", X, y, {"train": np.arange(4), "valid": np.arange(4)})
    both = {"crf": True, "label_smoothing": 0.1, **SMALL}
    with pytest.raises(ValueError, match=r"label_smoothing=0\.1 does nothing with crf=True"):
        fit(task, runs=tmp_path, name="both", **both)
    assert not (tmp_path / "both").exists()
    train(task, TrainSettings(**both), tmp_path / "old")
    assert Run.load(tmp_path / "old").predict(X[:1])


def test_results_come_in_the_order_of_the_rows_whatever_their_lengths(words):
    given = ["aei", "b" * 40, "ou" * 9, "cdf", "a"]
    actual = list(predict(words, given, probabilities=True))
    assert {tuple(result) for result in predict(words, given)} == {("prediction", "probability")}
    alone = [next(iter(predict(words, [row], probabilities=True))) for row in given]
    assert [r["prediction"] for r in actual] == ["vowels", "consonants", "vowels", "consonants", "vowels"]
    for one, other in zip(actual, alone, strict=True):
        assert one["prediction"] == other["prediction"]
        assert one["probability"] == pytest.approx(other["probability"], abs=2e-6)
        assert one["probability"] == max(one["probabilities"].values())
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_a_file_a_list_and_columns_are_predicted_alike(words, tmp_path):
    given = ["aei", "bcd", "oua"]
    (tmp_path / "new.csv").write_text("id,word\n1,aei\n2,bcd\n3,oua\n")
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"word": w}) + "\n" for w in given))
    (tmp_path / "new.txt").write_text("\n".join(given) + "\n")
    expected = list(predict(words, given))
    for name in ("new.csv", "new.jsonl", "new.txt"):
        assert list(predict(words, tmp_path / name)) == expected
    assert list(predict(words, [{"word": w, "more": 1} for w in given])) == expected
    kept = list(predict(words, tmp_path / "new.csv", keep=["id"]))
    assert [r["id"] for r in kept] == [1, 2, 3]


def test_a_frame_is_its_rows_and_not_its_columns(words):
    frame = pl.DataFrame({"id": [7, 8, 9], "word": ["aei", "bcd", "ou"]})
    actual = words.predict(frame, keep=["id"])
    assert actual["id"].to_list() == [7, 8, 9]
    assert actual.drop("id").to_dicts() == words.predict(["aei", "bcd", "ou"])
    with pytest.raises(ValueError, match="a dict of id, word is one row"):
        words.predict(frame.to_dict(as_series=False))


def test_an_empty_text_has_no_prediction_and_is_counted(words):
    notes = Notes()
    actual = list(predict(words, ["aei", "", "bcd", ""], probabilities=True, notes=notes))
    assert [r["prediction"] is None for r in actual] == [False, True, False, True]
    assert actual[1] == {"prediction": None, "probability": None, "probabilities": {"consonants": None, "vowels": None}}
    assert notes.warnings == ["empty inputs: 2 of 4 (first: row 2); they have no prediction"]
    assert list(predict(words, [""])) == [{"prediction": None}]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["ae", {"wrod": "bcd"}], "row 2: no column 'word'; did you mean 'wrod'?"),
        ([{"word": "ae"}, {"text": "bcd"}], "row 2: no column 'word'; it has text"),
    ],
)
def test_a_row_that_is_wrong_is_named(words, rows, said):
    with pytest.raises(ValueError, match=r"row \d") as error:
        list(predict(words, rows))
    assert str(error.value) == said


def test_rows_are_read_and_predicted_a_piece_at_a_time(words):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "aei"

    results = predict(words, endless())
    assert next(results)["prediction"] == "vowels"
    assert taken == CHUNK


def test_a_batch_never_has_more_steps_than_it_may(words):
    given = ["a" * n for n in (1, 3000, 7, 2999, 2, 0)] + ["b"] * 300
    batch = encode_rows(words.task, given)
    seen = []
    for part, at in split_by_length(batch):
        assert part.x.shape[0] * part.x.shape[1] <= BATCH_STEPS
        assert part.x.shape[1] == int(part.lengths.max())
        assert part.lengths.tolist() == [min(len(given[row]), 5000) for row in at]
        seen += at
    assert sorted(seen) == [row for row, text in enumerate(given) if text]


def test_numbers_come_in_the_units_of_the_data(work, tmp_path):
    random = np.random.default_rng(0)
    X = [random.normal(size=(5, 2)) for _ in range(40)]
    y = np.stack([1000 + 50 * np.array([x.sum() for x in X]), np.full(40, -3.0) + random.normal(size=40)], 1)
    rows = {"train": np.arange(30), "valid": np.arange(30, 40)}
    run = fit(MemoryTask("regress", X, y, rows), runs=tmp_path, hidden=8, epochs=1)
    actual = [r["prediction"] for r in predict(run, X[:3])]
    assert [list(r) for r in actual] == [["y0", "y1"]] * 3
    assert all(600 < r["y0"] < 1400 and -10 < r["y1"] < 4 for r in actual)


def test_tags_have_a_probability_each(tmp_path):
    X, y = [["a", "b", "c"], ["b"]] * 10, [[0, 1, 1], [1]] * 10
    task = MemoryTask("tag", X, y, {"train": np.arange(16), "valid": np.arange(16, 20)})
    run = fit(task, runs=tmp_path, **SMALL)
    actual = list(predict(run, [["a", "b"], [], ["c"]]))
    assert [len(r["prediction"] or ()) for r in actual] == [2, 0, 1]
    assert [len(r["probability"] or ()) for r in actual] == [2, 0, 1]


@pytest.fixture(scope="module")
def pairs(work):
    file = work / "pairs.tsv"
    file.write_text("en\tde\n" + "".join(f"{'a' * n} b\t{'x' * n} y\n" for n in range(1, 9)) * 6)
    options = {"input": "en", "target": "de", "kind": "translate", "near_duplicates": False}
    return fit(file, "gru", runs=work / "runs", name="pairs", **SMALL, **options)


def test_translations_come_in_order_and_an_empty_line_is_empty(pairs):
    actual = list(translate(pairs, [["aaa b", "", "a b"], [{"en": "aa b"}]], Beam(2, max_length=7)))
    assert [r["source"] for r in actual] == ["aaa b", "", "a b", "aa b"]
    assert actual[1] == {"source": "", "translation": "", "score": None}
    assert all(r["score"] < 0 for r in actual if r["source"])
    alone = next(translate(pairs, [["a b"]], Beam(2, max_length=7)))
    assert alone["translation"] == actual[2]["translation"]
    assert alone["score"] == pytest.approx(actual[2]["score"], rel=1e-5)


def test_only_models_of_that_kind_translate_or_generate(words, pairs):
    with pytest.raises(ValueError, match="was trained to classify, not to translate"):
        next(translate(words, [["a"]]))
    with pytest.raises(ValueError, match="was trained to translate, not to generate"):
        next(generate(pairs))


@pytest.fixture(scope="module")
def texts(work):
    file = work / "long.txt"
    file.write_text("to be or not to be\n" * 200)
    return fit(file, "gru", runs=work / "runs", name="long", lookback=16, **SMALL)


def test_a_language_model_continues_a_prompt_and_depends_on_the_seed(texts):
    one, two = (list(generate(texts, ["to be", ""], Sampling(seed=s), 12, 2)) for s in (1, 1))
    other = list(generate(texts, ["to be", ""], Sampling(seed=2), 12, 2))
    assert one == two != other
    assert [r["prompt"] for r in one] == ["to be", "to be", "", ""]
    assert all(r["text"].startswith("to be") and len(r["text"]) == 17 for r in one[:2])
    with pytest.raises(ValueError, match="use `seqloom generate`"):
        predict(texts, ["to be"])


def test_special_tokens_are_never_drawn():
    logits = torch.zeros(8)
    assert TextSampling().probabilities(logits)[[PAD, UNKNOWN, START]].tolist() == [0, 0, 0]
    assert TextSampling().probabilities(logits)[END] > 0
    assert TextSampling(end=False).probabilities(logits)[:4].tolist() == [0, 0, 0, 0]


def test_evaluation_repeats_the_test_of_the_training(words):
    actual = evaluate(words)
    test = next(line for line in words.metrics() if line["split"] == "test")
    assert actual["metrics"]["accuracy"] == test["accuracy"]
    assert actual["metrics"]["loss"] == pytest.approx(test["loss"], rel=1e-6)
    assert actual["intervals"]["accuracy"] == test["accuracy_interval"]


def test_evaluation_never_counts_training_rows(work, words, tmp_path):
    rows = (work / "words.csv").read_text().splitlines()
    file = tmp_path / "again.csv"
    file.write_text("\n".join([*rows, "qqqqqqqqqqqqq,vowels", "eeeeeeeeeeeee,consonants"]) + "\n")
    task = reopen(words.record["source"])
    actual = evaluate(words, file)
    held_out = task.splits["valid"].size + task.splits["test"].size
    assert actual["examples"] <= held_out + 2  # a word that occurs in training, too, is left out
    assert actual["examples"] >= 2
    left_out = len(rows) - 1 + 2 - actual["examples"]
    assert f"{left_out} rows of {len(rows) + 1} in {file} equal training rows, as the model" in actual["warnings"][0]
    trained = {
        tuple(x[:n].tolist()) for b in task.batches("train", batch=64) for x, n in zip(b.x, b.lengths, strict=True)
    }
    other = words.task.open_file(file)
    unseen, _ = list_unseen(words, other, file)
    for batch in other.batches("test", batch=64):
        for row, x, n in zip(batch.rows.tolist(), batch.x, batch.lengths, strict=True):
            assert (row in unseen) == (tuple(x[:n].tolist()) not in trained)
    only_training = [row for number, row in enumerate(rows[1:]) if number not in unseen]
    file.write_text("\n".join([rows[0], *only_training]) + "\n")
    with pytest.raises(ValueError, match="the run was trained on all of its rows"):
        evaluate(words, file)


def test_an_unseen_label_counts_as_wrong_and_is_reported(words, tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("word,label\naeaeaeaeaea,vowels\nbcbcbcbcbcb,consonants\nxyz,neither\n")
    actual = evaluate(words, file)
    assert (actual["examples"], actual["split"]) == (3, "test")
    assert actual["metrics"]["accuracy"] == pytest.approx(2 / 3)
    assert "row 3, 'neither'" in actual["warnings"][0]
    file.write_text("word\naei\n")
    with pytest.raises(ValueError, match="no column 'label'; the columns are word"):
        evaluate(words, file)


def test_a_truncated_checkpoint_is_named_and_the_other_one_taken(words, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(words.folder, folder)
    weights = folder / "best" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.warns(UserWarning, match="damaged.*using last/"):
        assert len(list(predict(Run.load(folder), ["aei"]))) == 1
    other = folder / "last" / "weights.safetensors"
    other.write_bytes(b"")
    with pytest.raises(ValueError, match=r"best/weights.safetensors is damaged.*no other checkpoint"):
        predict(Run.load(folder), ["aei"])


def test_a_run_of_a_newer_version_is_refused(words, tmp_path):
    file = words.folder / "run.json"
    record = sealed.loads(file.read_bytes(), file, 1)
    (tmp_path / "run.json").write_bytes(sealed.dumps(record | {"format": 99}))
    with pytest.raises(ValueError, match="written by a newer seqloom"):
        find_run(tmp_path)


def test_runs_are_found_by_name_and_new_ones_get_a_number(words, work):
    runs = work / "runs"
    assert find_run("words", runs).folder == words.folder
    with pytest.raises(ValueError, match="there is no run 'wrods'; did you mean 'words'"):
        find_run("wrods", runs)
    assert choose_folder("words", "cells/mine.py:Mine", None, runs).name == "words-Mine"
    (runs / "a-gru").mkdir()
    assert choose_folder("a", "gru", None, runs).name == "a-gru-2"
    assert find_latest("a", "gru", runs) is None
    with pytest.raises(ValueError, match="already holds a run"):
        choose_folder("words", "gru", "words", runs)


def test_settings_that_are_wrong_leave_no_folder(words, work, tmp_path):
    data = work / "words.csv"
    wrong = [({"model": "gur"}, "did you mean 'gru'"), ({"hiden": 3}, "no setting 'hiden'; did you mean 'hidden'")]
    wrong += [
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"batch": 2, "tokens": 3}, "give one of batch and tokens"),
    ]
    wrong += [({"target": "lable"}, "no column 'lable'; did you mean 'label'")]
    for settings, message in wrong:
        with pytest.raises(ValueError, match=message):
            fit(data, runs=tmp_path / "runs", **settings)
    with pytest.raises(ValueError, match="has no end; give steps"):
        fit("adding", runs=tmp_path / "runs", epochs=1)
    assert not list((tmp_path / "runs").glob("*"))


def test_options_of_the_training_and_of_the_data_are_separated():
    training, reading = validate_settings(TrainSettings, {"model": "lstm", "epochs": 3, "target": "y", "unit": "words"})
    assert (training.model, training.epochs, reading) == ("lstm", 3, {"target": "y", "unit": "words"})


def test_missing_data_is_an_error_that_lists_what_exists(tmp_path):
    (tmp_path / "reviews.csv").write_text("x")
    for data, message in [
        ("addin", "did you mean 'adding'?"),
        (str(tmp_path / "review.csv"), f"did you mean '{tmp_path}/reviews.csv'?"),
        (str(tmp_path / "zzzzzzz"), f"{tmp_path} holds reviews.csv"),
        ("qqqqqqqqqqqqqqq", "one of the tasks adding, copy"),
    ]:
        with pytest.raises(ValueError, match="neither a file, nor a folder, nor a task") as error:
            open_data(data, {})
        assert message in str(error.value)


def test_a_run_knows_where_its_data_are(words, pairs, work):
    assert reopen(words.record["source"]).splits == open_data(work / "words.csv", {})[0].splits
    assert open_data("adding", {"steps": 9})[1] == {"data": "adding", "options": {"steps": 9}}
    with pytest.raises(ValueError, match="does not say where its data came from"):
        reopen(None)
    one, two = work / "t.de", work / "t.en"
    one.write_text("".join(f"das Wort {n} ist hier\n" for n in range(30)))
    two.write_text("".join(f"the word {n} is here\n" for n in range(30)))
    task, source = open_data(f"{one},{two}", {"near_duplicates": False})
    assert (task.kind, source["data"]) == ("translate", [str(one), str(two)])


def test_results_are_written_as_lines_of_json_or_as_a_table(tmp_path):
    results = [
        {"prediction": "a", "probability": 0.5, "probabilities": {"a": 0.5, "b": 0.5}},
        {"prediction": None, "probability": None, "probabilities": {"a": None, "b": None}},
        {"prediction": ["x", "é"], "probability": [1.0, 0.5], "probabilities": {"a": 0, "b": 1}},
    ]
    assert write_results(results, tmp_path / "out.jsonl") == 3
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()] == results
    write_results(results, tmp_path / "out.csv")
    table = (tmp_path / "out.csv").read_text("utf-8").splitlines()
    assert table == [
        "prediction,probability,probabilities:a,probabilities:b",
        "a,0.5,0.5,0.5",
        ",,,",
        "x é,1.0 0.5,0,1",
    ]
    with pytest.raises(ValueError, match="jsonl or csv, got 'xml'"):
        write_results(results, tmp_path / "out.xml")


def test_a_file_of_results_appears_only_when_it_is_complete(tmp_path):
    def broken():
        yield {"prediction": 1}
        raise ValueError("row 2 is wrong")

    with pytest.raises(ValueError, match="row 2"):
        write_results(broken(), tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_line_is_text_or_json_where_that_makes_sense(words, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text('aei\n{"word": "bcd"}\n[not json]\n')
    assert list(iterate_rows(words.task, file)) == [["aei", {"word": "bcd"}, "[not json]"]]
    file.write_text('aei\n{"word": \n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        list(iterate_rows(words.task, file))
    file.write_bytes(b"a\xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        list(iterate_rows(words.task, file))
    with pytest.raises(ValueError, match="no such file"):
        iterate_rows(words.task, tmp_path / "nowhere.csv")


def test_an_empty_file_is_an_error_before_anything_is_written(words, tmp_path):
    for name in ("empty.csv", "empty.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match="the file is empty"):
            iterate_rows(words.task, tmp_path / name)
    (tmp_path / "heading.csv").write_text("word\n")
    with pytest.raises(ValueError, match="holds no rows"):
        iterate_rows(words.task, tmp_path / "heading.csv")


def spoilt(model, letter, task):
    """Set a letter's vector to NaN, as a failed training would."""
    token = int(task.encode([letter]).x[0, 0])
    table = next(p for p in model.parameters() if p.dim() == 2 and p.shape[0] == task.input.size)
    with torch.no_grad():
        table[token] = float("nan")
    return model


def test_a_result_that_is_not_finite_is_an_error_row(words, monkeypatch):
    model = spoilt(words.model(), "b", words.task)
    monkeypatch.setattr(Run, "model", lambda *_, **__: model)
    notes = Notes()
    actual = list(predict(words, ["aei", "bcd", "oua"], probabilities=True, notes=notes))
    assert actual[1] == {
        "prediction": None,
        "probability": None,
        "probabilities": None,
        "error": "the model computes NaN or infinity for it; check its values",
    }
    assert "error" not in actual[0] and "error" not in actual[2] and actual[0]["prediction"] == "vowels"
    assert notes.warnings == [
        "rows without a result: 1 of 3 (first: row 2): the model computes NaN or infinity for it; check its values"
    ]


def test_a_value_too_large_for_float32_is_refused_when_read(work, tmp_path):
    file = tmp_path / "numbers.jsonl"
    rows = [{"x": [i % 7 + 0.5, i % 5 + 0.5], "sum": i % 7 + i % 5 + 1.0} for i in range(60)]
    file.write_text("\n".join(map(json.dumps, rows)))
    run = fit(file, "gru", runs=tmp_path, name="numbers", target="sum", kind="regress", **SMALL)
    rows[3]["x"][0] = 1e300
    file.write_text("\n".join(map(json.dumps, rows)))
    message = r"column 'x' holds 1e\+300, which is too large for 32-bit numbers"
    with pytest.raises(ValueError, match=f"row 4: {message}"):
        run.predict(file)
    with pytest.raises(ValueError, match=message):
        fit(file, "gru", runs=tmp_path, name="again", target="sum", kind="regress", **SMALL)


@pytest.mark.parametrize(("record", "reason"), [({}, "continues a text"), ({"baseline": {}}, "is a baseline")])
def test_a_language_model_has_no_prediction_for_a_row(record, reason):
    task = SimpleNamespace(kind="generate")
    run = SimpleNamespace(task=task, record=record, folder="runs/a", settings=SimpleNamespace(model="unigram"))
    with pytest.raises(UserError, match=f"^runs/a .*{reason}"):
        check_can_predict(run)

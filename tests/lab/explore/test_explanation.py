"""What a page shows about an input."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from turning_words import TURNS

import seqloom
from seqloom.core.errors import UserError
from seqloom.lab.explore.contributions import integrate_gradients, remove_windows
from seqloom.lab.explore.explanation import Request, explain, pack_array
from seqloom.lab.explore.rows import find_similar, list_rows, read_row_states
from seqloom.lab.explore.subject import MAX_STEPS, Subject, open_subject
from seqloom.lab.training.model import build
from seqloom.tools.intervene import Clamp


@pytest.fixture(scope="module")
def subject(run):
    return open_subject(run)


def fit(folder, frame, name, **settings):
    torch.manual_seed(0)
    sizes = dict(hidden=8, embedding=8, steps=2, validate_every=2, device="cpu")
    return seqloom.train(frame, out=folder / name, **(sizes | settings))


def test_the_first_sentence_names_the_turning_word(subject):
    named = 0
    for text, word in TURNS.items():
        first = explain(subject, subject.read(text)).document["findings"][0]
        assert first["confirmed"]
        named += f"'{word}'" in first["text"]
    assert named >= 8


def test_a_text_turns_at_a_word_whose_two_sides_disagree_by_the_model_itself(subject, run):
    findings = explain(subject, subject.read("the plot is dull , but the cast is great")).document["findings"]
    before, after = (
        row["probabilities"] for row in run.predict(["the plot is dull", "the cast is great"], probabilities=True)
    )
    turn = next(finding for finding in findings if finding["text"].startswith("Turns at"))
    assert (
        turn["text"] == f"Turns at 'but': 'bad' ({before['bad']:.2f}) before it, 'good' ({after['good']:.2f}) after it."
    )
    assert f"and what follows, {before['good']:.2f} without; {after['good']:.2f} without what precedes" in turn["check"]
    assert turn["step"] == 5


@pytest.mark.parametrize(
    "text", ["the plot is great , but the cast is warm", "but the cast is warm", "the cast is warm but"]
)
def test_a_word_that_turns_nothing_is_not_called_a_turn(subject, text):
    findings = explain(subject, subject.read(text)).document["findings"]
    assert not any(finding["text"].startswith(("Turns at", "What follows")) for finding in findings)


def test_the_prediction_is_that_of_predict_and_growth_that_of_prefixes(subject, run):
    text = "the film is warm , but the script is weak"
    document = explain(subject, subject.read(text)).document
    words = text.split()
    rows = run.predict([" ".join(words[: n + 1]) for n in range(len(words))], probabilities=True)
    assert document["prediction"]["text"] == rows[-1]["prediction"]
    for line in document["growth"]["lines"]:
        assert line["values"] == pytest.approx([row["probabilities"][line["label"]] for row in rows], abs=2e-6)


def test_occlusion_is_the_difference_that_predict_makes(subject, run):
    words = ["the", "plot", "is", "not", "good"]
    document = explain(subject, subject.read(" ".join(words))).document
    label = document["target"]["label"]
    texts = [words, *(words[:i] + words[i + 1 :] for i in range(len(words)))]
    p = [row["probabilities"][label] for row in run.predict([" ".join(t) for t in texts], probabilities=True)]
    assert document["contributions"]["occlusion"] == pytest.approx([p[0] - q for q in p[1:]], abs=4e-6)


def test_integrated_gradients_add_up(subject):
    contributions = explain(subject, subject.read("the cast is not weak")).document["contributions"]
    assert len(contributions["gradients"]) == 5
    assert abs(contributions["gap"]) < 0.05


def test_a_statement_that_occlusion_contradicts_is_withdrawn_and_comes_last(subject):
    for text in TURNS:
        findings = explain(subject, subject.read(text)).document["findings"]
        confirmed = [f["confirmed"] for f in findings]
        assert confirmed == sorted(confirmed, reverse=True)
        for finding in findings:
            if finding["text"].startswith("Changed its mind") and "occlusion" in finding["check"]:
                numbers = [float(part.split()[0]) for part in finding["check"].removeprefix("occlusion: ").split(", ")]
                if abs(numbers[0] - numbers[1] - 0.02) > 0.011:  # numbers are rounded to two digits
                    assert finding["confirmed"] == (numbers[0] - numbers[1] >= 0.02)


def test_an_intervention_moves_the_prediction_and_shows_where_it_was(subject):
    example = subject.read("the plot is not good")
    plain = explain(subject, example).document
    request = Request(output=plain["target"]["output"], clamps=(Clamp("layer.l0", "z", 1.0, (), (3, 3)),))
    changed = explain(subject, example, request).document
    assert changed["before"] == pytest.approx(plain["prediction"]["value"], abs=1e-6)
    without = explain(subject, subject.read("the plot is good")).document  # z = 1 ignores the word "not"
    index = plain["target"]["output"]
    expected = next(o["values"][0] for o in without["prediction"]["outputs"] if o["index"] == index)
    assert changed["prediction"]["value"] == pytest.approx(expected, abs=1e-5)


def test_arrays_have_one_row_for_each_step(subject):
    explanation = explain(subject, subject.read("the plot is not good"))
    assert {f"layer.l0/{letter}" for letter in ("h", "r", "z", "n", "effect")} <= set(explanation.arrays)
    for array in explanation.arrays.values():
        assert array.shape == (5, 24)
    json.dumps(explanation.document, allow_nan=False)


def test_a_packed_array_keeps_its_values():
    array = np.array([[-1.0, 0.25], [3.0, 0.5]], dtype=np.float32)
    values = np.frombuffer(pack_array(array), "<u2").reshape(2, 2) / 65535 * 4 - 1
    assert np.abs(values - array).max() < 4 / 65535


def test_similar_moments_have_the_same_units_active(subject):
    rows = list_rows(subject, 40)
    states = read_row_states(subject, rows)
    example = subject.read("the plot is not good")
    units, matches = find_similar(subject, example, rows, states, (3, 3))
    assert units and matches[0].share >= matches[-1].share
    assert matches[0].steps[matches[0].start] == "not"
    with pytest.raises(UserError, match="within steps 0 to 4"):
        find_similar(subject, example, rows, states, (3, 9))


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_input_is_a_sentence(subject, text):
    with pytest.raises(UserError, match="the input is empty"):
        subject.read(text)


@pytest.mark.parametrize(
    "text", ["🎉 not 👩‍👩‍👧 good", "העלילה not טובה", "<script>alert(1)</script>", "\u202enot good"]
)
def test_strange_text_is_explained(subject, text):
    example = subject.read(text)
    document = explain(subject, example).document
    assert len(document["steps"]) == len(document["contributions"]["gradients"])
    assert any("Not in the vocabulary" in note for note in document["notes"])


def test_fifty_thousand_steps_are_cut_with_a_sentence(subject):
    batch = subject.task.encode(["the plot is not good"])
    long = replace(batch, x=batch.x.repeat(1, 10_000), lengths=torch.tensor([50_000]))
    example = subject.label(long)
    assert len(example.steps) == MAX_STEPS
    assert example.notes == (f"The input has 50,000 steps; the first {MAX_STEPS:,} are shown and explained.",)


def test_a_typed_text_that_is_cut_says_so(subject):
    example = subject.read("the plot " * 25_000)
    assert len(example.steps) == MAX_STEPS
    assert any("more than 5000 steps" in note or "50,000 steps" in note for note in example.notes)


def test_removing_windows_keeps_the_rest():
    from seqloom.lab.data.task import Batch

    batch = Batch(torch.tensor([[4, 5, 6, 7]]), torch.tensor([4]), torch.tensor([0]))
    removed = remove_windows(batch, [(0, 1), (1, 3)], delete=True)
    assert removed.x.tolist() == [[5, 6, 7], [4, 7, 0]] and removed.lengths.tolist() == [3, 2]
    assert remove_windows(batch, [(1, 2)], delete=False).x.tolist() == [[4, 1, 6, 7]]


WORDS = ["a", "the", "film", "plot", "cast", "good", "bad", "dull", "warm", "ends"]


def make_texts():
    texts = [" ".join(WORDS[(i * k) % 10] for k in (1, 3, 7, 9)) + f" {WORDS[i // 10]}" for i in range(40)]
    return pl.DataFrame({"text": texts, "label": ["x", "<script>"] * 20})


KINDS = {
    "attn": dict(model="attn_rnn"),
    "transformer": dict(model="transformer"),
    "both": dict(model="bi_lstm", layers=2),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_layer_shows_what_it_has(folder, name):
    frame = make_texts()
    subject = open_subject(fit(folder, frame, name, **KINDS[name]))
    document = explain(subject, subject.read("a film")).document
    if name == "attn":
        assert document["layers"][0]["letters"] == ["h", "a(h)", "a(x)", "a(h+x)", "a(h*x)", "o", "g", "effect"]
    elif name == "transformer":
        assert document["attention"][0]["heads"] >= 1 and document["layers"] == []
    else:
        names = [layer["name"] for layer in document["layers"]]
        assert names == [f"layer.l{i}{end}" for i in (0, 1) for end in ("", "_reverse")]
        assert document["layers"][0]["letters"][:6] == ["h", "c", "i", "f", "g", "o"]
        assert all(len(layer["flow"]) == 2 for layer in document["layers"])


def make_series():
    t = np.arange(12)
    return pl.DataFrame({"x": [np.sin(t / (1 + i % 2)).tolist() for i in range(40)], "y": ["a", "b"] * 20})


@pytest.mark.parametrize("kind", ["tag", "series", "regress", "translate", "forecast", "generate"])
def test_every_kind_of_task_is_explained(folder, kind):
    texts = make_texts()["text"]
    frames = {
        "tag": pl.DataFrame({"tokens": texts.str.split(" "), "tags": [["D", "N", "V", "N", "P"]] * 40}),
        "series": make_series(),
        "regress": pl.DataFrame({"text": texts, "y": [i / 7 for i in range(40)]}),
        "forecast": pl.DataFrame({"v": [float(np.sin(i / 3)) for i in range(400)]}),
    }
    if kind == "translate":
        (folder / "p.de").write_text("\n".join(texts) + "\n")
        (folder / "p.en").write_text("\n".join(text[::-1] for text in texts) + "\n")
        data, options = f"{folder}/p.de,{folder}/p.en", {}
    elif kind == "generate":
        (folder / "long.txt").write_text("to be or not to be " * 60)
        data, options = str(folder / "long.txt"), {"lookback": 20}
    else:
        data = frames[kind]
        options = {"kind": "forecast", "lookback": 24, "horizon": 4} if kind == "forecast" else {}
        if kind == "regress":
            options = {"kind": "regress"}
    subject = open_subject(fit(folder, data, kind, **options))
    rows = [] if kind in ("series", "regress", "forecast", "tag") else list_rows(subject, 3)
    inputs = {
        "tag": "the plot ends",
        "series": json.dumps(make_series()["x"][0].to_list()),
        "regress": "a good film",
        "translate": "a good film",
        "forecast": json.dumps([float(i % 7) for i in range(24)]),
        "generate": "to be",
    }
    example = subject.label(rows[0].batch) if rows else subject.read(inputs[kind])
    document = explain(subject, example).document
    assert document["findings"] and document["layers"] and document["kind"] in (kind, "classify")
    assert len(document["contributions"]["windows"]) == len(document["contributions"]["occlusion"]) >= 1
    json.dumps(document, allow_nan=False)
    if kind == "translate":
        assert document["attention"][0]["name"] == "alignment"
        assert document["attention"][0]["keys"] == len(example.steps)


def test_a_thousand_units_are_explained(subject, run):
    model = build(run.task, run.settings.model_copy(update={"hidden": 1024})).eval()
    wide = Subject("wide", model, run.task)
    explanation = explain(wide, wide.read("the plot is"))
    assert explanation.arrays["layer.l0/h"].shape == (3, 1024)
    assert len(explanation.document["layers"][0]["ranking"]) == 1024


def test_gradients_refer_to_the_layer_that_reads_the_input(subject):
    example = subject.read("the plot is not good")
    values, _ = integrate_gradients(subject.compute_outputs, subject.network, example, _target(subject, example))
    assert values.shape == (5,)
    assert integrate_gradients(subject.compute_outputs, torch.nn.Linear(2, 2), example, None) is None


def _target(subject, example):
    from seqloom.lab.explore.contributions import choose_target

    with torch.no_grad():
        return choose_target(subject, subject.compute_outputs(example.batch.cut(5)))

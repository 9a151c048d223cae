"""Several input columns of different kinds: texts, numbers and names in one model."""

import random

import polars as pl
import pytest
import torch

from seqloom.lab.compare.baselines.registry import describe_baseline
from seqloom.lab.data.coders.text import JoinedTextCoder, TextCoder
from seqloom.lab.data.registry import load_task, open_task
from seqloom.lab.data.task import END
from seqloom.lab.kinds.baselines.registry import baselines, build_baseline
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build

WORDS = ["good", "bad", "nice", "slow", "film", "food", "room", "staff"]
RANDOM = random.Random(0)
N = 120


def make_text():
    return " ".join(RANDOM.choice(WORDS) for _ in range(5))


def make_table():
    rows = {"comment": [make_text() for _ in range(N)], "amount": [RANDOM.gauss(50, 20) for _ in range(N)]}
    rows["country"] = [RANDOM.choice(["DE", "FR", "US"]) for _ in range(N)]
    rows["satisfied"] = ["yes" if a > 50 else "no" for a in rows["amount"]]
    return pl.DataFrame(rows)


MIXED = {"input": "comment,amount,country", "target": "satisfied"}


def test_numbers_and_names_beside_a_text_are_standardised_and_one_hot():
    task = open_task(make_table(), **MIXED)
    assert task.input.attributes == ("amount", "country=DE", "country=FR", "country=US")
    assert {c.name: c.use for c in task.columns} == {
        "comment": "input",
        "amount": "input",
        "country": "input",
        "satisfied": "target",
    }
    batches = list(task.batches("train", batch=16))
    attributes = torch.cat([batch.attributes for batch in batches])
    assert attributes.shape[1] == 4 and attributes[:, 1:].sum(1).eq(1).all()
    assert abs(float(attributes[:, 0].mean())) < 1e-5


def test_new_rows_need_all_inputs_and_may_have_missing_values(tmp_path):
    task = open_task(make_table(), **MIXED)
    task.save(tmp_path)
    restored = load_task(tmp_path)
    rows = [
        {"comment": "good film", "amount": None, "country": "XX"},
        {"comment": "bad", "amount": 50, "country": "DE"},
    ]
    assert restored.encode(rows).attributes[0].tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="row 1: no column 'amount'; it has comment, country"):
        restored.encode([{"comment": "good", "country": "DE"}])
    with pytest.raises(ValueError, match="row 1: no column 'amount'; give rows with all input columns"):
        restored.encode(["good film"])


@pytest.mark.parametrize("model", ["gru", "bi_lstm", "transformer", "attn_rnn"])
def test_a_model_uses_the_attributes(model):
    task = open_task(make_table(), **MIXED)
    network = build(task, TrainSettings(model=model, hidden=16, embedding=16)).eval()
    batch = next(task.batches("test", batch=4))
    before = network.scores(batch)[0]
    batch.attributes[:, 0] += 3
    assert (network.scores(batch)[0] - before).abs().min() > 0


def test_what_the_text_does_not_say_is_learned_from_the_number():
    torch.manual_seed(0)
    task = open_task(make_table(), **MIXED)
    network = build(task, TrainSettings(model="gru", hidden=16, embedding=8))
    optimiser = torch.optim.Adam(network.parameters(), 0.03)
    batch = next(task.batches("train", batch=N))
    for _ in range(40):
        optimiser.zero_grad()
        network(batch)[0].backward()
        optimiser.step()
    held_out = next(task.batches("test", batch=N))
    assert (network.eval().predict(held_out).values == held_out.y).float().mean() > 0.8


def test_the_linear_baseline_reads_attributes_and_is_restored():
    task = open_task(make_table(), **MIXED)
    model = baselines(task)["TF-IDF + logistic regression"](task).eval()
    batch = next(task.batches("test", batch=12))
    scores = model.scores(batch)[0]
    assert (scores.argmax(1) == batch.y).float().mean() > 0.7
    again = build_baseline(task, describe_baseline(model), model.model.arrays())
    assert again.scores(batch)[0].equal(scores)


def test_attributes_of_a_series_join_every_step():
    series = [[RANDOM.random() for _ in range(6)] for _ in range(N)]
    table = pl.DataFrame({"series": series, "age": list(range(N)), "label": ["a", "b"] * (N // 2)})
    task = open_task(table, input="series,age", target="label")
    batch = next(task.batches("train", batch=4))
    assert batch.x.shape == (4, 6, 1) and batch.attributes.shape == (4, 1)
    assert build(task, TrainSettings(model="gru", hidden=8)).scores(batch)[0].shape == (4, 2)
    names = set(baselines(task))
    assert names == {"majority", "logistic regression"}
    assert baselines(task)["logistic regression"](task).scores(batch)[0].shape == (4, 2)


def test_two_texts_are_one_sequence_with_a_separator():
    coder = JoinedTextCoder(("q", "a"), TextCoder("q", "words", 100))
    frame = pl.DataFrame({"q": ["who is it", "", None], "a": ["me", "yes", None]})
    coder.fit([frame])
    ids, lengths = coder.encode(frame)
    assert lengths.tolist() == [5, 2, 0 + 0]
    assert ids[:5].tolist().index(END) == 3 and ids[5] == END
    assert coder.decode(ids[:5].tolist()) == "who is it | me"
    again = JoinedTextCoder(**{k: v for k, v in coder.state().items() if k != "coder"})
    assert again.encode(frame)[0].tolist() == ids.tolist()


@pytest.mark.parametrize("unit", ["words", "characters", "bytes"])
def test_two_texts_and_a_label(tmp_path, unit):
    table = pl.DataFrame({"question": [make_text() for _ in range(N)], "answer": [make_text() for _ in range(N)]})
    table = table.with_columns(label=pl.Series(["yes", "no"] * (N // 2)))
    task = open_task(table, input="question,answer", target="label", unit=unit)
    assert (task.kind, task.encoding.plan.input) == ("classify", ("question", "answer"))
    task.save(tmp_path)
    row = table.drop("label").to_dicts()[0]
    assert (load_task(tmp_path).encode([row]).x[0] == END).sum() == 1
    with pytest.raises(ValueError, match="no column 'answer'"):
        task.encode([{"question": "good"}])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("text,series", r"text \(text\), series \(series\) cannot be read by one model; .* input=text"),
        ("text,id", r"'id' \(id\) cannot be an input beside others; leave it out: input=text"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused_with_the_nearest_that_does(columns, message):
    table = pl.DataFrame(
        {"text": [make_text() for _ in range(N)], "series": [[1.0, float(i)] for i in range(N)], "id": range(N)}
    ).with_columns(label=pl.Series(["yes", "no"] * (N // 2)))
    with pytest.raises(ValueError, match=message):
        open_task(table, input=columns, target="label")


def test_the_same_text_beside_other_numbers_may_be_on_both_sides_of_the_split():
    rows = {"comment": [f"{WORDS[i % 3]} parcel" for i in range(200)], "amount": [i % 50 for i in range(200)]}
    rows["refunded"] = ["yes" if i % 3 == 0 and i % 50 < 40 else "no" for i in range(200)]
    table = pl.DataFrame(rows)
    task = open_task(table, input="comment,amount", target="refunded")
    amounts = [{rows["amount"][r] for r in task.source_rows(s, range(task.splits[s].size))} for s in task.splits]
    texts = [{rows["comment"][r] for r in task.source_rows(s, range(task.splits[s].size))} for s in task.splits]
    assert texts[0] == texts[1] == texts[2] and all(len(side) > 3 for side in amounts)
    pairs = [
        {(rows["comment"][r], rows["amount"][r]) for r in task.source_rows(s, range(task.splits[s].size))}
        for s in task.splits
    ]
    assert not pairs[0] & pairs[1] and not pairs[0] & pairs[2]  # whole rows that repeat stay together

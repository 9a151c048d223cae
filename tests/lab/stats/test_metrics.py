"""Metrics against the libraries that define them."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn import metrics as sk

from seqloom.lab.data.task import IGNORE, UNSEEN, Batch, Classes, Features, Tags, Task, Tokens, Values
from seqloom.lab.kinds.for_task import Prediction
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.kinds.translate import score_texts
from seqloom.lab.stats.class_metrics import macro_f1
from seqloom.lab.stats.metrics import METRICS, compute_scores, is_better
from seqloom.lab.stats.spans import count_spans, find_spans
from seqloom.lab.training.scoring import score


class Plain(Task):
    """Only its spaces and `decode` matter here."""

    def __init__(self, kind, space, target, names=None):
        super().__init__("plain", kind, space, target)
        self.names = names

    def decode(self, predictions, lengths=None):
        rows = predictions.tolist()
        if lengths is not None:
            rows = [row[:n] for row, n in zip(rows, lengths.tolist(), strict=True)]
        return rows if self.names is None else [" ".join(self.names[k] for k in row) for row in rows]

    batches = count = encode = save = None


Plain.__abstractmethods__ = frozenset()


def batch(y, x=None, y_lengths=None, series=None):
    x = torch.zeros(len(y), 3, 1) if x is None else x
    return Batch(x, torch.full((len(y),), x.shape[1]), torch.arange(len(y)), y, y_lengths, series=series)


def measured(task, y, p, **more):
    return compute_scores(KINDS[task.kind].score(task, batch(y, **more), Prediction(p))).values


def test_accuracy_and_macro_f1_are_scikit_learns():
    y, p = torch.randint(5, (200,)), torch.randint(5, (200,))
    actual = measured(Plain("classify", Features(("a",)), Classes(tuple("abcde"))), y, p)
    assert actual["accuracy"] == pytest.approx(sk.accuracy_score(y, p))
    assert actual["macro_f1"] == pytest.approx(sk.f1_score(y, p, average="macro"))
    w = np.random.default_rng(0).integers(0, 4, 200).astype(float)
    weighted = macro_f1(y.numpy(), p.numpy(), w[None])[0]
    assert weighted == pytest.approx(sk.f1_score(y, p, average="macro", sample_weight=w))


def test_a_class_missing_from_training_always_counts_as_wrong():
    task = Plain("classify", Features(("a",)), Classes(("a", "b")))
    actual = measured(task, torch.tensor([0, 1, UNSEEN, UNSEEN]), torch.tensor([0, 1, 0, 1]))
    assert actual["accuracy"] == 0.5
    assert actual["macro_f1"] == pytest.approx(2 / 3)  # one false alarm for each class


def test_tags_that_are_not_asked_for_or_not_scored_do_not_count():
    task = Plain("tag", Features(("a",)), Tags(("blank", "1", "2"), unscored=("blank",)))
    y = torch.tensor([[1, 2, 0], [UNSEEN, 2, IGNORE]])
    p = torch.tensor([[1, 1, 2], [0, 2, 1]])
    assert measured(task, y, p) == {"accuracy": pytest.approx(2 / 4)}


def span_f1(true, predicted):
    """Return the span F1 of rows of tags."""
    counts = [count_spans(t, p) for t, p in zip(true, predicted, strict=True)]
    columns = zip(("spans_right", "spans_predicted", "spans_true"), np.array(counts, dtype=float).T, strict=True)
    return float(METRICS["span_f1"].compute(dict(columns), np.ones((1, len(counts))))[0])


def test_chunks_follow_conllevals_rules():
    assert find_spans(["B-NP", "I-NP", "B-NP", "O", "I-VP", "I-NP"]) == {
        (0, 2, "NP"),
        (2, 3, "NP"),
        (4, 5, "VP"),
        (5, 6, "NP"),
    }
    right, said = [["B-X", "I-X", "O", "B-Y"]], [["B-X", "I-X", "B-Y", "O"]]
    assert span_f1(right, said) == pytest.approx(0.5)
    assert span_f1([["O"]], [["O"]]) == 0.0
    task = Plain("tag", Features(("a",)), Tags(("B-X", "I-X", "O")))
    actual = measured(task, torch.tensor([[0, 1, 2], [2, UNSEEN, IGNORE]]), torch.tensor([[0, 1, 2], [2, 0, 0]]))
    assert actual["span_f1"] == pytest.approx(2 * 1 / (2 + 2))


def test_spans_are_those_of_nervaluate():
    evaluator = pytest.importorskip("nervaluate").Evaluator
    chance = np.random.default_rng(0)
    tags = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    true, predicted = ([chance.choice(tags, n).tolist() for n in range(1, 60)] for _ in range(2))
    both = zip(true, predicted, strict=True)
    predicted = [[p if chance.random() < 0.3 else t for t, p in zip(*row, strict=True)] for row in both]
    expected = evaluator(true, predicted, tags=["X", "Y"], loader="list").evaluate()["overall"]["strict"]
    spans = [(find_spans(t), find_spans(p)) for t, p in zip(true, predicted, strict=True)]
    assert sum(len(t & p) for t, p in spans) == expected.correct
    assert span_f1(true, predicted) == pytest.approx(expected.f1)


def test_chunks_that_mark_their_ends_are_kept_apart():
    assert find_spans(["S-X", "S-X", "B-X", "E-X", "I-X", "S-X"]) == {
        (0, 1, "X"),
        (1, 2, "X"),
        (2, 4, "X"),
        (4, 5, "X"),
        (5, 6, "X"),
    }
    assert find_spans(["U-X", "U-X", "B-X", "I-X", "L-X", "U-X"]) == {
        (0, 1, "X"),
        (1, 2, "X"),
        (2, 5, "X"),
        (5, 6, "X"),
    }
    assert span_f1([["S-X", "S-X", "O"]], [["S-X", "O", "O"]]) == pytest.approx(2 * 1 / (1 + 2))


def test_errors_of_numbers_leave_out_what_is_missing():
    task = Plain("regress", Features(("a",)), Values(("u", "v")))
    y, p = torch.tensor([[1.0, torch.nan], [3.0, 4.0]]), torch.tensor([[2.0, 9.0], [3.0, 1.0]])
    actual = measured(task, y, p)
    assert actual == {
        "mse": pytest.approx(10 / 3),
        "rmse": pytest.approx(math.sqrt(10 / 3)),
        "mae": pytest.approx(4 / 3),
    }


def test_mase_is_relative_to_the_unit_of_each_series_and_leaves_out_series_without_one():
    task = Plain("forecast", Features(("other", "a")), Values(("a",), 1))
    task.units = np.array([[2.0], [np.nan]])
    y, p = torch.tensor([[[5.0]], [[5.0]]]), torch.tensor([[[4.0]], [[3.0]]])
    actual = measured(task, y, p, series=torch.tensor([0, 1]))
    assert actual["mase"] == 0.5 and actual["mse"] == 2.5 and actual["mae"] == 1.5
    assert math.isnan(measured(task, y, p, series=torch.tensor([1, 1]))["mase"])


def test_perplexity_and_bits_follow_from_the_loss():
    actual = compute_scores(
        {"nats": np.array([2.0, 4.0]), "targets": np.array([1.0, 2.0]), "language": np.ones(2)}
    ).values
    assert actual == {"loss": 2.0, "perplexity": pytest.approx(math.exp(2)), "bits": pytest.approx(2 / math.log(2))}


def test_bleu_is_sacrebleus():
    from sacrebleu.metrics import BLEU

    names = [f"w{i}" for i in range(12)]
    task = Plain("translate", Tokens(12, "words"), Tokens(12, "words"), names)
    right, said = torch.randint(4, 8, (30, 9)), torch.randint(4, 8, (30, 8))
    right[:, :5] = said[:, :5].clone()
    lengths = torch.randint(5, 10, (30,))
    made = Prediction(said, torch.randint(4, 9, (30,)))
    rows = score_texts(task, batch(right, y_lengths=lengths), made)
    references, texts = task.decode(right, lengths - 1), task.decode(said, made.lengths)
    assert compute_scores(rows).values["bleu"] == pytest.approx(BLEU().corpus_score(texts, [references]).score)
    assert compute_scores(rows).values["exact"] == sum(a == b for a, b in zip(references, texts, strict=True)) / 30


def test_error_rates_are_jiwers():
    import jiwer

    names = [*"....", " ", *"abcdef"]
    task = Plain("transcribe", Features(("a",)), Tokens(11, "characters"))
    task.decode = lambda v, n: [
        "".join(names[k] for k in row[:m]).strip() for row, m in zip(v.tolist(), n, strict=True)
    ]
    y, p = torch.randint(4, 11, (20, 12)), torch.randint(4, 11, (20, 12))
    n, m = torch.randint(4, 13, (20,)), torch.randint(1, 13, (20,))
    y[:, 0] = 5
    actual = compute_scores(KINDS["transcribe"].score(task, batch(y, y_lengths=n), Prediction(p, m))).values
    right, said = task.decode(y, n), task.decode(p, m)
    assert actual["cer"] == pytest.approx(jiwer.cer(right, said)) and actual["wer"] == pytest.approx(
        jiwer.wer(right, said)
    )


@pytest.mark.slow
def test_intervals_cover_the_true_value_about_as_often_as_stated():
    random, inside = np.random.default_rng(0), 0
    for number in range(60):
        right = (random.random(150) < 0.7).astype(float)
        low, high = compute_scores({"right": right, "scored": np.ones(150)}, intervals=True, seed=number).intervals[
            "accuracy"
        ]
        inside += low <= 0.7 <= high
    assert 50 <= inside <= 60
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.7 * 0.3 / 150), rel=0.2)


def test_a_share_of_rows_has_wilsons_interval_even_if_all_are_right():
    right = (np.arange(25) < 21).astype(float)
    actual = compute_scores({"right": right, "scored": np.ones(25)}, intervals=True).intervals["accuracy"]
    assert actual == pytest.approx(tuple(binomtest(21, 25).proportion_ci(method="wilson")), abs=1e-6)
    y = np.arange(25) % 3
    columns = {"right": np.ones(25), "scored": np.ones(25), "y": y, "p": y}
    actual = compute_scores(columns, intervals=True).intervals
    low = binomtest(25, 25).proportion_ci(method="wilson").low
    assert actual["accuracy"] == actual["macro_f1"] == (pytest.approx(low, abs=1e-6), 1.0)


@pytest.mark.slow
def test_intervals_of_overlapping_windows_cover_the_true_value_too():
    random, inside, alone = np.random.default_rng(0), 0, 0
    for number in range(30):
        steps = random.standard_normal(24 * 30 - 1) ** 2 + 1  # windows of 24 steps, each a step after the one before
        windows = np.convolve(steps, np.ones(24), "valid")
        columns = {"square": windows, "values": np.full(len(windows), 24.0)}
        for block in (1, 24):
            low, high = compute_scores(columns, intervals=True, seed=number, overlap=block).intervals["mse"]
            inside, alone = inside + (block > 1 and low <= 2 <= high), alone + (block == 1 and low <= 2 <= high)
    assert inside >= 26 and alone < 20
    assert not compute_scores(columns, intervals=True, overlap=1000).intervals  # one window is not enough for one


def test_a_metric_knows_which_value_is_better():
    assert is_better("accuracy", 0.9, 0.8) and not is_better("loss", 0.9, 0.8) and is_better("loss", 0.8, 0.9)
    assert (
        is_better("loss", 3.0, math.nan)
        and not is_better("loss", math.nan, 3.0)
        and not is_better("loss", math.nan, math.nan)
    )
    assert (
        KINDS["tag"].choose_selecting({"accuracy": 1, "span_f1": 1}) == "span_f1"
        and KINDS["tag"].choose_selecting({"accuracy": 1}) == "accuracy"
    )
    assert (
        KINDS["translate"].choose_selecting({"bleu": 1}) == "loss"
        and KINDS["transcribe"].choose_selecting({"cer": 1}) == "cer"
    )


def test_a_split_is_scored_alike_whatever_the_batches(tmp_path):
    from seqloom.lab.data.registry import open_task
    from seqloom.lab.kinds.settings import TrainSettings
    from seqloom.lab.training.model import build

    task = open_task("reverse", steps=5, valid=40)
    model = build(task, TrainSettings(hidden=8, embedding=8))
    one, other = (score(model, task, "valid", batch=size, intervals=True) for size in (7, 40))
    assert one.rows == other.rows == 40
    assert one.values == pytest.approx(other.values, rel=1e-5)
    assert model.training
    with pytest.raises(ValueError, match="has no end"):
        score(model, task, "train")

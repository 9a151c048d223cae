import numpy as np
import polars as pl
import pytest
from sacrebleu.metrics import bleu

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.search import rank
from seqloom.lab.compare.significance import bootstrap, estimate
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import UNKNOWN
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.kinds.for_task import Prediction
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.kinds.translate import score_texts
from seqloom.lab.stats.metrics import METRICS, compute_scores
from seqloom.lab.stats.ngrams import compute_bleu
from seqloom.lab.training.model import build


def test_bleu_of_sums_is_sacrebleus():
    random = np.random.default_rng(0)
    for _ in range(200):
        totals = np.sort(random.integers(0, 30, 4))[::-1]
        matches = (totals * random.uniform(0, 1, 4) * random.integers(0, 2, 4)).astype(int)
        sums = np.array([totals[0], random.integers(1, 40), *matches, *totals])
        expected = bleu.BLEU.compute_bleu(matches.tolist(), totals.tolist(), int(sums[0]), int(sums[1])).score
        assert compute_bleu(sums) == pytest.approx(expected, abs=1e-9)


def test_translations_are_ranked_by_bleu(monkeypatch):
    monkeypatch.setattr(row_scores, "MOST_DECODED", 100)
    task = open_task("reverse", kinds=4)
    columns = row_scores.score_rows(baselines(task)["bigram"](task), task, "test", 64)
    assert columns["bleu"].shape == (len(columns["nats"]), 10)
    decoded = columns["bleu"][:, 1] > 0  # rows with a reference
    assert 64 <= decoded.sum() <= 164
    values = compute_scores(columns).values
    bleu_metric = METRICS[kind_of(task).list_metrics(task)[0]]
    assert bleu_metric.name == "bleu" and bleu_metric.higher
    assert rank(bleu_metric, values) == (-values["bleu"], values["loss"])
    one = bootstrap({"bigram": [columns]}, bleu_metric)["bigram"]
    assert estimate(one).mean == pytest.approx(values["bleu"])


def test_a_perfect_translation_has_a_bleu_of_100_and_reads_no_reference(monkeypatch):
    task = open_task("reverse", kinds=4)
    model = build(task, TrainSettings(model="gru", hidden=8, embedding=8))
    batches = {int(b.rows[0]): b for b in task.batches("test", batch=64)}

    def predict(batch):
        assert batch.y is None and batch.y_lengths is None
        full = batches[int(batch.rows[0])]
        return Prediction(full.y, full.y_lengths - 1)

    monkeypatch.setattr(model, "predict", predict)
    assert compute_scores(row_scores.score_rows(model, task, "test", 64)).values["bleu"] == pytest.approx(100)


def test_an_unknown_word_is_never_right(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    rare = [f"word{i} one two three four five" for i in range(60)]
    pl.DataFrame({"a": rare, "b": rare}).write_csv(tmp_path / "t.csv")
    task = open_task(str(tmp_path / "t.csv"), input="a", target="b", kind="translate", near_duplicates=False)
    batch = next(iter(task.batches("test", batch=8)))
    columns = score_texts(task, batch, Prediction(batch.y, batch.y_lengths - 1))
    assert (batch.y[:, 0] == UNKNOWN).all()
    assert columns["exact"].sum() == 0
    assert columns["bleu"][0].tolist() == [6, 6, 5, 4, 3, 2, 6, 5, 4, 3]  # of six words, all but the first match

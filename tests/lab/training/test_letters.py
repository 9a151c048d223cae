import numpy as np
import polars as pl
import pytest
import torch

from seqloom.core.errors import InputError
from seqloom.lab.compare.baselines.registry import fit_baseline
from seqloom.lab.compare.data import load_task
from seqloom.lab.compare.row_scores import load, score_rows
from seqloom.lab.data.coders.letters import UNKNOWN_LETTER, WORD_LETTERS
from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.data.registry import load_task as load_saved
from seqloom.lab.data.registry import open_task
from seqloom.lab.kinds.baselines import window
from seqloom.lab.kinds.baselines.registry import WINDOW
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.model import build
from seqloom.lab.training.run import Run


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def write_words(folder, rows=120):
    """Write words that occur once; capitals, digits and the ending -ing decide the tag."""
    random = np.random.default_rng(0)

    def word():
        stem = "".join(random.choice(list("abcdefgh"), random.integers(3, 7)))
        kind = random.integers(4)
        return (stem, stem.title(), f"{stem}ing", "".join(random.choice(list("0123456789"), 4)))[kind], "ONVD"[kind]

    pairs = [[word() for _ in range(random.integers(3, 9))] for _ in range(rows)]
    frame = pl.DataFrame({"tokens": [[w for w, _ in p] for p in pairs], "tags": [[t for _, t in p] for p in pairs]})
    frame.write_parquet(folder / "words.parquet")
    return {"data": str(folder / "words.parquet"), "options": {"target": "tags"}}


def test_a_batch_holds_the_letters_of_each_word_also_of_unknown_words(tmp_path):
    task = load_task(write_words(tmp_path))
    batch = next(iter(task.batches("train", batch=8)))
    assert batch.letters.shape[:2] == batch.x.shape and batch.letters.max() < task.input.alphabet
    assert bool((batch.letters.any(-1) == (torch.arange(batch.x.shape[1]) < batch.lengths[:, None])).all())
    task.save(tmp_path / "saved")
    for one in (task, load_saved(tmp_path / "saved")):
        new = one.encode([["abba", "Qabba", "x" * 50], ["ab"]])
        ids = {c: i for i, c in enumerate(one.encoding.letters.letters, 2)}
        assert new.letters.shape == (2, 3, WORD_LETTERS)
        assert new.letters[0, 0].tolist()[:5] == [ids[c] for c in "abba"] + [0]
        assert new.letters[0, 1, 0] == UNKNOWN_LETTER and not new.letters[1, 1:].any()


def test_characters_and_other_kinds_of_task_have_no_letters(tmp_path):
    chinese = pl.DataFrame({"tokens": [list("我爱北京"), list("你好")] * 30, "tags": [list("OOBI"), list("OO")] * 30})
    chinese.write_parquet(tmp_path / "zh.parquet")
    task = open_task(str(tmp_path / "zh.parquet"), target="tags", near_duplicates=False)
    assert task.input.alphabet == 0 and next(iter(task.batches("train", batch=4))).letters is None


def test_a_task_in_memory_has_letters_too():
    words, tags = [["Ann", "runs"], ["dogs", "sleep", "long"]], [[0, 1], [0, 1, 2]]
    task = MemoryTask("tag", words * 3, tags * 3, {"train": np.arange(6)}, {"limit": 2})
    batch = next(iter(task.batches("train", batch=6)))
    assert batch.x.shape == (6, 2) and batch.letters.shape == (6, 2, 5)


def test_a_tagger_reads_letters_by_default(tmp_path):
    task = load_task(write_words(tmp_path))
    settings = TrainSettings(model="gru", hidden=8, embedding=4, letters=6)
    assert TrainSettings().letters > 0
    model, batch = build(task, settings).eval(), next(iter(task.batches("train", batch=4)))
    loss = model(batch)[0]
    loss.backward()
    assert model.model.characters.embed.table.weight.grad.abs().sum() > 0
    assert build(task, settings.model_copy(update={"letters": 0})).model.characters is None
    with pytest.raises(InputError, match="letters"):
        model.model(batch.x, batch.lengths)


@pytest.mark.parametrize("name", [WINDOW, "window + CRF"])
def test_a_window_of_words_learns_from_endings_and_capitals(name, tmp_path):
    source = write_words(tmp_path)
    fit_baseline(source, name, 32, str(tmp_path / "run"), None, tmp_path)
    columns = load(tmp_path)
    assert compute_scores(columns).values["accuracy"] > 0.95
    again = score_rows(Run.load(tmp_path / "run").model(), load_task(source), "test", 32)
    for key, column in columns.items():
        np.testing.assert_array_equal(again[key], column)


def test_features_of_a_step_do_not_depend_on_padding():
    random = np.random.default_rng(0)
    x, lengths = random.integers(4, 30, (3, 7)), np.array([7, 4, 1])
    letters = random.integers(0, 9, (3, 7, 5))
    alphabet = (np.arange(9), np.arange(9) % 4)
    for some in (letters, None):
        together = window.list_features(x, lengths, some, *alphabet)
        parts = []
        for row, n in enumerate(lengths):
            part = None if some is None else some[row : row + 1, :n]
            parts.append(window.list_features(x[row : row + 1, :n], lengths[row : row + 1], part, *alphabet))
        np.testing.assert_array_equal(together, np.concatenate(parts))

import gzip
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from research.studies.data.examples import LabelledRows
from research.studies.data.mnist import read_idx
from research.studies.data.place import find
from research.studies.data.text import encode, imdb, split_words, vocabulary
from research.studies.family import Family
from research.studies.family import at as of_layers
from research.studies.imdb import MEAN, PADDED, READING, Imdb, WithoutLengths
from research.studies.imdb import at as reading
from research.studies.long import Long, recall
from research.studies.mnist import Mnist
from research.studies.support.conditions import TrialSettings
from research.studies.support.contenders import count_trained
from research.studies.support.epochs import SnapshotModel
from research.studies.support.ledger import Ledger
from research.studies.support.outcome import Trial
from seqloom.lab.training.many import train_many
from seqloom.lab.training.recipe import Recipe, SmallTraining
from seqloom.tools.measure import parameters

TASK = {"vocabulary": 30, "width": 4, "rounds": 2, "train": 24, "words": 8}
CONDITIONS = tuple(replace(reading(read, 2, 8, task=TASK, models=()), steps=3) for read in (MEAN, PADDED))
TINY = TrialSettings(CONDITIONS, ("gru", "transformer", "mean"), 2, 300, 0, (1e-2,), ("default",), 4, valid=6, test=10)


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """Write review files to the data folder; one review is in both splits."""
    (tmp_path / "imdb").mkdir()
    for split, word in (("train", "train"), ("test", "test")):
        texts = [f"{word} film {i} is {'good' if i % 2 else 'bad'}<br />" for i in range(30)] + ["in both"]
        lines = (json.dumps({"text": text, "label": i % 2}) + "\n" for i, text in enumerate(texts))
        with gzip.open(tmp_path / "imdb" / f"{split}.jsonl.gz", "wt") as file:
            file.writelines(lines)
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))


def run(study):
    return list(study.run(lambda _: None))


def test_keeping_the_weights_of_every_round_does_not_change_a_training():
    def draw(random, device):
        return (torch.randn(4, 3, generator=random, device=device),)

    def count_trained(kept):
        def loss(model, batch):
            return model(*batch).square().mean()

        def prepare(model, random, done):
            if kept:
                model.keep(done)

        def build():
            model = nn.Linear(3, 2)
            return SnapshotModel(model, 3, 6) if kept else model

        return train_many([SmallTraining("", build, draw, loss, Recipe(6, 0.1), 0, prepare=prepare)], "cpu")[0].model

    plain, kept = count_trained(False), count_trained(True)
    torch.testing.assert_close(list(kept.model.parameters()), list(plain.parameters()), rtol=0, atol=0)
    kept.finish()
    assert torch.equal(kept.kept[0][2], plain.weight)
    again = SnapshotModel(nn.Linear(3, 2), 3, 6)
    weights = []
    for done in range(6):
        with torch.no_grad():
            again.keep(done)
            again.model.weight += 1
        weights.append(again.model.weight.detach().clone())
    again.finish()
    for place in range(3):  # after two steps, four and six
        again.go_to(place)
        assert torch.equal(again.model.weight, weights[2 * place + 1])


@pytest.mark.parametrize(("steps", "rounds"), [(6, 3), (7, 3), (100, 40), (3, 5), (1, 1)])
def test_every_round_has_the_weights_of_its_last_step(steps, rounds):
    model = SnapshotModel(nn.Linear(1, 1, bias=False), rounds, steps)
    with torch.no_grad():
        model.model.weight.zero_()
        for done in range(steps):
            model.keep(done)
            model.model.weight += 1
    model.finish()
    assert model.kept[0].flatten().tolist() == [(k + 1) * steps // rounds for k in range(rounds)]


def test_the_best_round_is_chosen_on_validation_rows_before_the_test(reviews):
    study = Imdb(TINY)
    asked = []
    real = study._accuracy
    study._accuracy = lambda model, place, c, split, device: (
        asked.append((place, split)) or real(model, place, c, split, device)
    )
    rows = run(study)
    assert len(rows) == study.parts == 2 * 3 * 2 and not any(t.failed for t in rows)
    left = iter(asked)
    for trial in rows:
        curve = [trial.scores["round 1"], trial.scores["round 2"]]
        best = max(range(2), key=lambda k: curve[k])
        tested = [(best, "test"), (1, "test")] if best == 0 else [(1, "test")]  # once where the last is the best
        wanted = [(0, "valid"), (1, "valid"), *tested]
        assert [next(left) for _ in wanted] == wanted
        assert best == 0 or trial.scores["accuracy"] == trial.scores["last round"]
    assert next(left, None) is None
    blocks = study.blocks(rows)
    assert {"epochs", "never"} <= set(blocks[-1].rows[0])
    assert "lost by reading the padding: gru" in study.verdict(rows)


def test_the_paper_protocol_reads_the_whole_training_set_and_chooses_on_the_test_set(reviews):
    study = Imdb(TINY, protocol="paper")
    c = CONDITIONS[1]
    assert len(study.examples(c, "train")) == 24 and len(Imdb(TINY).examples(c, "train")) == 24
    assert len(study._read(1, 30)["train"]) == 31 and len(Imdb(TINY)._read(1, 30)["train"]) == 30  # one is tested too
    trial = run(Imdb(replace(TINY, models=("gru",), seeds=1), protocol="paper"))[0]
    assert trial.scores["accuracy"] == max(trial.scores["round 1"], trial.scores["round 2"])
    (row,) = study.blocks([trial])[-1].rows
    assert (row["highest"], row["highest, article"], row["last, article"]) == (
        trial.scores["accuracy"],
        0.784,
        0.7703,
    )


def test_padding_changes_results_only_if_it_is_read(reviews):
    study = Imdb(TINY)
    for model in TINY.models[:2]:
        short = study.examples(CONDITIONS[0], "test")
        aware, unaware = (study.network(model, 8, "default", c).eval() for c in CONDITIONS)
        assert isinstance(unaware, WithoutLengths)
        x, lengths = short.x, short.lengths
        other = torch.where(torch.arange(8) < lengths.unsqueeze(1), x, torch.full_like(x, 5))
        assert not torch.equal(x, other)
        torch.testing.assert_close(aware(x, lengths), aware(other, lengths))
        assert not torch.allclose(unaware(x, lengths), unaware(other, lengths))


def test_the_layers_of_the_article_have_the_printed_parameter_counts():
    study = Imdb(protocol="paper")
    (c,) = study.settings.conditions
    made = {model: study.network(model, 128, "default", c).model.layer for model in READING}
    counted = {model: parameters(layer) for model, layer in made.items()}
    printed = {"rnn": 33_024, "gru": 99_072, "lstm": 132_096, "attn_rnn": 66_176, "transformer": 1_186_048}
    assert counted == printed


def test_the_study_of_long_sequences_asks_for_the_first_symbol():
    c = recall(5, 3, 2, 20)
    study = Long(TrialSettings((c,), ("gru", "local"), 2, 400, 0, (1e-2,), ("default",), 2, valid=10, test=20))
    x, _, y = study.draw(c)(torch.Generator().manual_seed(0), torch.device("cpu"))
    assert x.shape == (2, 5) and torch.equal(x[:, 0], y)
    assert not torch.equal(study.examples(c, "test").x[:10], study.examples(c, "valid").x)
    assert not any(t.failed for t in run(study))


@pytest.mark.parametrize("kind", [Long, Imdb, Family])
def test_every_model_is_tuned_over_as_many_settings(kind):
    study = kind()
    assert len({len(study.grid(model)) for model in study.settings.models}) == 1


def layers(study, condition, models):
    """Return the number of trained parameters of each model's layer, with the hidden sizes of a GPU."""
    study._sizes = {}
    made = {m: study.network(m, study.find_hidden(m, condition), "default", condition) for m in models}
    return {m: count_trained(model.layer) for m, model in made.items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("condition", Family.full.conditions, ids=lambda c: c.name)
def test_the_family_has_one_size_at_every_depth(condition):
    actual = layers(Family(device="cuda"), condition, Family.full.models)
    assert actual["attn_rnn"] == pytest.approx(78_000, rel=0.15)
    assert all(count == pytest.approx(actual["attn_rnn"], rel=0.05) for count in actual.values()), actual


def test_layers_that_read_reviews_are_of_one_size():
    actual = layers(Imdb(device="cuda"), Imdb.full.conditions[0], ("lstm", "gru", "attn_rnn", "rnn"))
    assert actual["attn_rnn"] == 66_176  # as in the AttnRNN article
    assert all(count == pytest.approx(66_176, rel=0.07) for count in actual.values()), actual


def test_the_family_study_shows_costs_and_the_ranks_of_the_article():
    c = of_layers(2, 3, both=True, data="digits")
    cells = ("rnn", "lstm", "gru", "attn_rnn")
    study = Family(TrialSettings((c,), cells, 1, 900, 0, (1e-2,), ("default",), 4, valid=50, test=50))
    rows = run(study)
    assert all(t.scores["ms per batch"] > 0 for t in rows)
    # how much is saved for the backward pass depends on the kernels, and they on the processor
    for t, kept in zip(rows, (1.0, 4.0, 3.0, 5.0), strict=True):
        t.scores["MB saved"] = kept
    shown = study.blocks(rows)[-1].rows
    assert [row["MB saved, here"] for row in shown] == ["least memory", "most memory", "between", None]
    assert [row["MB saved, here"] for row in shown] == [row["MB saved, article"] for row in shown]
    assert re.match(
        r"Agreement with the 3 ranks in the RNN family article: ms per batch in \d, MB saved in 3\. ",
        study.verdict(rows),
    )  # one seed: no spread
    assert "places" not in study.verdict([t for t in rows if t.model != "lstm"])


def test_missing_data_is_one_line_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"'imdb' \(train.jsonl.gz\) is not in .*; set .* --data or SEQLOOM_DATA"
    ):
        imdb("train", 5)
    monkeypatch.delenv("SEQLOOM_DATA")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared/data/some").mkdir(parents=True)
    (tmp_path / "shared/data/some/file").touch()
    assert find("some", "file") == [tmp_path / "shared/data/some/file"]


def test_words_are_counted_cut_and_padded():
    assert split_words("It's GREAT!<br />10/10", 9) == ["it's", "great", "!", "10", "10"]
    ids = vocabulary([["b", "a", "b"], ["c", "a"]], 4)
    assert ids == {"a": 2, "b": 3}
    made = encode(([["a", "c", "b", "b"], []], [1, 0]), ids, 3)
    assert made.x.tolist() == [[2, 1, 3], [1, 0, 0]] and made.lengths.tolist() == [3, 1]


def test_rows_are_shuffled_the_same_way_every_time():
    data = LabelledRows(torch.arange(20).view(20, 1), torch.ones(20, dtype=torch.long), torch.arange(20))
    one, two = data.shuffle(), data.shuffle()
    assert torch.equal(one.x, two.x) and torch.equal(one.x[:, 0], one.y) and not torch.equal(one.y, data.y)


def test_an_idx_file_is_read_and_a_torn_one_is_refused(tmp_path):
    file = tmp_path / "images.gz"
    whole = b"\0\0\x08\3" + struct.pack(">III", 2, 1, 3) + bytes(range(6))
    file.write_bytes(gzip.compress(whole))
    assert read_idx(file).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    file.write_bytes(gzip.compress(whole[:-1]))
    with pytest.raises(ValueError, match=r"2 x 1 x 3 bytes, but is truncated"):
        read_idx(file)
    file.write_bytes(gzip.compress(b"\0\0\x0d\1"))
    with pytest.raises(ValueError, match="not an idx file"):
        read_idx(file)


def test_real_images_are_digits_of_784_steps(monkeypatch):
    place = Path(__file__).parents[3] / "../shared/data"
    if not (place / "mnist").is_dir():
        pytest.skip("the public data sets are not beside this checkout")
    monkeypatch.setenv("SEQLOOM_DATA", str(place))
    study = Mnist()
    sequential, permuted, *_ = study.settings.conditions
    one, two = study.examples(sequential, "test"), study.examples(permuted, "test")
    assert one.x.shape == (10_000, 784) and one.y.bincount().tolist()[:2] == [980, 1135]
    assert torch.equal(one.y, two.y) and not torch.equal(one.x, two.x)
    assert torch.equal(one.x.sort(1).values, two.x.sort(1).values)


def made_up_trials(condition, accuracies, lr=1e-2):
    rounds = {f"round {k + 1}": 0.96 if k < 10 else 0.98 for k in range(30)}
    return [
        Trial(
            condition,
            model,
            lr,
            "default",
            seed,
            "test",
            64,
            50_000,
            {"accuracy": a, "last round": a} | rounds,
            [],
            1.0,
        )
        for model, values in accuracies.items()
        for seed, a in enumerate(values)
    ]


def test_a_model_at_a_lower_rate_is_compared_with_the_others_at_their_own():
    study = Mnist()
    usual = {"attn_rnn": (0.90, 0.91), "gru": (0.93, 0.94), "lstm": (0.92, 0.93)}
    rows = made_up_trials("permuted MNIST", usual)
    lower = {"attn_rnn": (0.95, 0.951, 0.952), "lstm": (0.90, 0.901, 0.902)}
    rows += made_up_trials("permuted MNIST, lower rate", lower, 3e-3)
    better = {(c.condition, c.other): c.better for c in study.compare_models(rows)}
    assert set(better) == {(c, other) for c in {t.condition for t in rows} for other in ("gru", "lstm")}
    assert better["permuted MNIST, lower rate", "lstm"] and not better["permuted MNIST", "gru"]
    rows = made_up_trials("sequential MNIST", usual) + made_up_trials(
        "sequential MNIST, lower rate", {"lstm": (0.9, 0.9)}
    )
    assert [c.other for c in study.compare_models(rows)] == ["gru", "lstm", "lstm"]  # no second attn_rnn - gru


def test_accuracy_is_drawn_against_the_seconds_of_a_training_alone(tmp_path):
    study = Mnist(folder=tmp_path)
    study.known_sizes = {(model, "sequential MNIST"): 64 for model in study.settings.models}
    study._sizes, study.ledger = dict(study.known_sizes), Ledger(tmp_path)
    rows = made_up_trials("sequential MNIST", {"attn_rnn": (0.98, 0.98), "gru": (0.98, 0.98)})
    assert "Training time" not in [block.title for block in study.blocks(rows)]
    study.ledger.add({"study": "mnist", "timed": ["gru", 64], "batch": 128, "device": "cpu"}, {"ms": 2.0})
    (times,) = [block for block in study.blocks(rows) if block.title == "Training time"]
    seconds = 2e-3 * 30 * 430
    assert times.rows == [
        {"condition": "sequential MNIST", "model": "gru", "ms per step": 2.0, "s": pytest.approx(seconds)}
        | {"to accuracy": 0.97, "s to it": pytest.approx(seconds * 11 / 30)}
    ]
    assert "Seconds of one training alone, sequential MNIST to 97%: gru 9." in study.verdict(rows)

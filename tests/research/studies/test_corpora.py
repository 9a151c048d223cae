import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from research.studies.applications import HOURS, MOTIONS, Applications
from research.studies.data import series
from research.studies.data.target_texts import frame_texts, join_tokens
from research.studies.speed import Speed, SpeedSettings
from research.studies.support.conditions import TrialSettings
from research.studies.support.contenders import count_trained
from research.studies.support.corpora import Corpus
from research.studies.support.ledger import Ledger
from research.studies.topologies import FORMS, INTENT, SENTENCES, Topologies
from research.studies.translation import Translation
from seqloom.lab.bench.race import Timing
from seqloom.lab.report.page import Words
from seqloom.models.generate import Generate
from seqloom.models.translate import Translate

DATA = Path(__file__).parents[3] / "../shared/data"
TINY = {"seeds": 1, "lrs": (1e-2,), "starts": ("default",), "batch": 4, "valid": 20, "test": 20}


@pytest.fixture
def data(monkeypatch):
    if not DATA.is_dir():
        pytest.skip("the public data sets are not beside this checkout")
    monkeypatch.setenv("SEQLOOM_DATA", str(DATA))


def tiny(study, models, names=None, **task):
    """Return the full study with some of its models and conditions, trained for two steps."""
    conditions = [
        replace(c, steps=2, task=c.task | {"every": 40, "width": 4, "vocabulary": 60, "budget": 2_500} | task)
        for c in study.full.conditions
        if names is None or c.name in names
    ]
    return study(TrialSettings(tuple(conditions), models, **TINY))


def run(study):
    return list(study.run(lambda _: None))


def test_a_corpus_is_cut_into_parts_that_share_no_row():
    rows = torch.arange(20), torch.arange(20) * 2
    parts = Corpus.split(rows, 3, 4).parts
    assert {name: len(part[0]) for name, part in parts.items()} == {"test": 4, "valid": 3, "train": 13}
    assert sorted(torch.cat([part[0] for part in parts.values()]).tolist()) == list(range(20))
    assert all(torch.equal(2 * a, b) for a, b in parts.values())
    with pytest.raises(ValueError, match="20 rows are too few"):
        Corpus.split(rows, 10, 10)


def test_the_vocabulary_comes_from_the_counted_texts_only():
    x, lengths, words = frame_texts([["a", "b", "a"], ["c"]], 5, 4, counted=1)
    assert words == ["<padding>", "<start>", "<stop>", "<unknown>", "a"]
    assert x.tolist() == [[1, 4, 3, 4], [1, 3, 2, 0]] and lengths.tolist() == [4, 3]  # the first is cut


@pytest.mark.slow
def test_every_topology_is_trained_and_writes(data):
    study = tiny(Topologies, ("gru", "transformer"))
    rows = run(study)
    assert [t.failed for t in rows] == [""] * 10
    assert all(0 <= t.scores["accuracy"] <= 1 and t.scores["bits"] > 0 for t in rows)
    written = [block for block in study.blocks(rows) if isinstance(block, Words)]
    assert len(written) == len(FORMS) - 1 and all(len(block.paragraphs) == 3 for block in written)


@pytest.mark.slow
def test_only_the_real_tokens_of_a_text_count(data):
    study = tiny(Topologies, ("gru",), [name for name in FORMS if name != INTENT])
    study._sizes = {}
    for c in study.settings.conditions:
        model = study.build("gru", 8, "default", c).eval()
        part = study.read(c).parts["test"]
        with torch.no_grad():
            mean = study.loss(model, part).item()
            own = model.loss(*part).item()
            bits, asked = study.tally(model, part)["bits"]
        assert math.isclose(mean, own, rel_tol=1e-5) and math.isclose(
            float(bits / asked) * math.log(2), own, rel_tol=1e-5
        )
        lengths = part[3] if isinstance(model, Translate) else part[1]
        assert isinstance(model, (Translate, Generate)) and int(asked) == int((lengths - 1).sum())


def test_the_last_day_again_has_the_known_error_on_the_temperature(data):
    study = Applications()
    hours = next(c for c in study.settings.conditions if c.name == HOURS)
    assert len(study.read(hours).parts["test"][0]) == 2_785
    assert study.trivial_error(hours, "test") == pytest.approx(0.512, abs=5e-4)


@pytest.mark.parametrize(("kind", "name"), [(Applications, HOURS), (Topologies, SENTENCES)])
def test_models_of_a_corpus_have_almost_the_same_number_of_parameters_on_a_gpu(kind, name):
    study = kind(kind.choose_settings(conditions=name), device="cuda")
    study._sizes = {}
    (c,) = study.settings.conditions
    sizes = [count_trained(study.builder(m, c)(study.find_hidden(m, c))) for m in study.models(c)]
    assert max(sizes) / min(sizes) < 1.2


def test_every_application_is_trained_and_compared_with_a_trivial_baseline(data):
    study = tiny(Applications, ("gru",), [HOURS, MOTIONS], T=24)
    rows = run(study)
    assert [t.failed for t in rows] == [""] * 2
    for trial, c in zip(rows, study.settings.conditions, strict=True):
        assert trial.scores["error"] == pytest.approx(trial.scores["absolute error"] / study.trivial_error(c, "test"))


@pytest.mark.slow
def test_spoken_digits_are_split_by_recording(data):
    parts = series.spoken_digits(48, every=45)
    assert [tuple(parts[name][0].shape) for name in ("valid", "test")] == [(300, 48, 24)] * 2
    assert all(part[1].bincount().tolist() == [len(part[1]) // 10] * 10 for part in parts.values())


def test_translations_are_scored_and_timed_beside_the_article(data):
    study = tiny(Translation, ("none", "dot", "transformer"), pairs=50, T=8, layers=1, beam=1)
    rows = run(study)
    assert [t.failed for t in rows] == [""] * 3
    first = study._relative(rows)[0]
    assert first.pop("ms per step") > 0 and first == {"model": "none", "time": 1.0, "article": 1.0}
    with pytest.raises(ValueError, match="no model 'gru'; known are none, additive"):
        study.grid("gru")


def test_tokens_are_put_together_again():
    assert join_tokens(["it", "'s", "a", "dog", ",", "isn", "'t", "it", "?", "&amp;"]) == "it's a dog, isn't it? &"


@pytest.mark.slow
def test_every_kernel_that_runs_is_timed_once(tmp_path):
    told = SpeedSettings(("rnn",), (4,), (2,), (3,), 1)
    said = []
    study = Speed(told, folder=tmp_path)
    rows = list(study.run(said.append))
    assert len(said) == study.parts == 2
    assert {"rnn_cpu", "rnn_aten", "any_loop", "torch"} <= {row.kernel for row in rows}
    assert all(row.us_per_step for row in rows)
    assert list(Speed(told, folder=tmp_path).run(said.append)) == rows and len(said) == 4
    assert "RNN is faster than GRU and GRU faster than LSTM" in study.verdict(rows) and len(study.blocks(rows)) == 2


def test_times_of_a_gpu_are_described_on_a_machine_without_one(tmp_path):
    told = SpeedSettings(("rnn",), (4,), (2,), (3,), 1)
    machine = {
        "versions": {"torch": "2.11", "seqloom": "0.1", "python": "3.12"},
        "hardware": {"gpus": [{"name": "H200"}]},
    }
    machine["hardware"]["cores"] = 16
    row = Timing("rnn", "any_loop", "", "cuda", "float32", 4, 2, 3, 1, "forward", 1.0)
    study = Speed(told, folder=tmp_path, device="cuda")
    study.replays = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "get", lambda *_: {"rows": [asdict(row)]} | machine)
        assert list(study.run(print)) == [row, row]  # float32 and bfloat16
    assert study.caption().startswith("H200, 16 cores;") and "torch 2.11" in study.caption()

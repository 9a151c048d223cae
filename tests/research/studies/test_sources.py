"""The studies of what the sources argue: memory, stages, extensions, designs, irregular samples."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from research.studies import designs, extensions, stages
from research.studies.data.symbols import (
    CHARACTERS,
    COPY,
    FIRST,
    KINDS,
    PIXEL_ROWS,
    SPACES,
    TEXT,
    make_problem,
    split_text,
)
from research.studies.designs import Designs
from research.studies.extensions import Extensions
from research.studies.irregular import GAPS, MODELS, ODE, Irregular, draw_waves, wave
from research.studies.memory import ALL_BITS, RECALL, UNTRAINED, Memory, probe
from research.studies.stages import Stages
from research.studies.support.conditions import Spec
from research.studies.support.outcome import Trial
from research.studies.support.probe import fit_probes
from research.studies.support.symbol_trials import read_symbols
from seqloom.lab.data.task import IGNORE
from seqloom.lab.training.many import train_many
from seqloom.lab.training.stacked import StackedStep

DATA = Path(__file__).parents[3] / "../shared/data"
CPU = torch.device("cpu")
TINY = {"seeds": 2, "budget": 1_500, "lrs": (1e-2,), "starts": ("default",), "batch": 4, "valid": 16, "test": 32}


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny(study, *conditions):
    return study(replace(study.quick, conditions=conditions, models=study.full.models, **TINY))


def trial(condition, model, seed, **scores):
    return Trial(condition, model, 0.01, "default", seed, "test", 8, 100, scores, [], 1.0)


def test_a_probe_reads_all_bits_of_a_symbol_that_is_there_and_none_of_one_that_is_not():
    labels = torch.randint(8, (600,), generator=rng())
    there = torch.nn.functional.one_hot(labels, 8).float() + 0.01 * torch.randn(600, 8, generator=rng(1))
    result = fit_probes(torch.stack([there, torch.randn(600, 8, generator=rng(2))]), labels, 8, 300, 100)
    bits = [math.log2(8) - nats / math.log(2) for nats in result.nats.tolist()]
    assert bits[0] > 2.95 and abs(bits[1]) < 0.3
    assert result.accuracy[0] == 1 and result.accuracy[1] < 0.3


def test_a_probe_accepts_features_that_never_change():
    labels = torch.randint(2, (60,), generator=rng())
    result = fit_probes(torch.ones(1, 60, 3), labels, 2, 30, 10)
    assert result.nats[0] == pytest.approx(math.log(2), abs=0.1)


def test_an_untrained_model_keeps_its_weights_and_is_never_tuned():
    study = Memory(replace(Memory.quick, **TINY | {"lrs": (1e-2, 3e-2)}))
    untrained, *_, trained = study.settings.conditions
    assert (untrained.name, trained.name) == (UNTRAINED, RECALL)
    assert not study.tunes(untrained, "gru") and study.tunes(trained, "gru")
    model = study.build("gru", 8, "default", untrained)
    draw = study.draw(untrained)
    draw.prepare(rng(), 0)
    loss = study.loss(model, draw(rng(), CPU))
    loss.backward()
    assert float(loss.detach()) == 0 and all(not p.grad.any() for p in model.parameters())


def test_states_are_those_after_each_distance_and_labels_are_the_first_symbols():
    c = probe("early", FIRST, start="default", distances=(1, 3), T=8, before=2)
    study = tiny(Memory, c)
    model = study.build("lstm", 8, "default", c)
    with torch.no_grad():
        features, labels = study.read_states(model, c, 5, CPU)
    assert features.shape == (2, 5, 16) and labels.shape == (5,)  # h and c
    only = probe("late", FIRST, start="default", distances=(3,), T=8, before=2)
    with torch.no_grad():
        again, _ = study.read_states(model, only, 5, CPU)
    assert again.shape == (1, 5, 16)


def test_the_state_of_attn_rnn_keeps_more_of_the_first_input_than_that_of_a_gru():
    c = probe(UNTRAINED, FIRST, start="default", distances=(1, 8, 16), T=8)
    settings = replace(
        Memory.quick, conditions=(c,), models=("attn_rnn", "gru"), seeds=2, valid=100, test=300, lrs=(1e-2,)
    )
    study = Memory(settings)
    rows = list(study.run(lambda _: None))
    bits = {(t.model, t.seed): t.scores["bits at 16"] for t in rows}
    assert min(bits["attn_rnn", i] for i in (0, 1)) > 2
    assert max(bits["gru", i] for i in (0, 1)) < 0.5
    assert all(0 <= value <= ALL_BITS for value in bits.values())
    document = study.document(rows)
    assert "Exploratory: attn_rnn is better than gru" in document["verdict"]
    assert study.page(rows, document).blocks


def test_a_copy_asks_for_the_symbols_in_order_and_tests_are_of_full_length():
    x, y = make_problem(COPY).draw(rng(), 50, 13, "train")
    for row, labels in zip(x.tolist(), y.tolist(), strict=True):
        n = row.index(KINDS)
        assert 1 <= n <= 6 and row[n + 1 :] == [KINDS + 1] * (12 - n)
        assert labels == [IGNORE] * (n + 1) + row[:n] + [IGNORE] * (12 - 2 * n)
    x, _ = make_problem(COPY).draw(rng(), 3, 13, "test")
    assert (x[:, 6] == KINDS).all()


def test_labels_of_the_first_symbol_stay():
    x, y = make_problem(FIRST).draw(rng(), 4, 9, "train")
    assert (y == x[:, :1]).all()


def test_real_data_have_the_symbols_and_shares_that_tables_name_without_reading_them(monkeypatch):
    if not DATA.is_dir():
        pytest.skip("the public data sets are not beside this checkout")
    monkeypatch.setenv("SEQLOOM_DATA", str(DATA))
    parts = split_text()
    counts = torch.cat([*parts.values()]).bincount()
    assert len(counts) == CHARACTERS and (counts > 0).all()
    assert float(parts["train"].bincount().max()) / len(parts["train"]) == pytest.approx(SPACES, abs=5e-5)
    x, y = make_problem(TEXT).draw(rng(), 3, 20, "valid")
    assert torch.equal(x[:, 1:], y[:, :-1])
    x, y = make_problem(PIXEL_ROWS).draw(rng(), 500, 784, "test")
    assert x.shape == (500, 784) and int(x.max()) == 15
    assert (y[:, :-1] == IGNORE).all() and set(y[:, -1].tolist()) == set(range(10))
    small, labels = make_problem(PIXEL_ROWS).draw(rng(), 500, 196, "test")
    assert small.shape == (500, 196) and torch.equal(labels[:, -1], y[:, -1])
    whole = x.view(500, 14, 2, 14, 2).float().mean((2, 4)).flatten(1)
    assert (small - whole).abs().max() < 2  # both are rounded down


@pytest.mark.parametrize(
    ("kind", "model"),
    [(Stages, m) for m in stages.MODELS]
    + [(Extensions, m) for m in (*extensions.MEMORIES, *extensions.DECODERS, *extensions.SLOTS)]
    + [(Designs, m) for m in designs.CELLS],
)
def test_every_model_answers_after_every_symbol_and_is_causal(kind, model):
    c = read_symbols("S3", "S3", 2, 12)
    study = tiny(kind, c)
    torch.manual_seed(0)
    network = study.build(model, 16, study.grid(model)[0][1], c).eval()
    x, _ = make_problem("S3").draw(rng(), 2, 12, "test")
    changed = x.clone()
    changed[:, 9:] = (x[:, 9:] + 1) % 6
    with torch.no_grad():
        y, other = network(x), network(changed)
    assert y.shape == (2, 12, 6)
    torch.testing.assert_close(other[:, :9], y[:, :9])
    assert not torch.allclose(other[:, 9:], y[:, 9:])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of fused attention under vmap, on CPUs
@pytest.mark.parametrize(
    ("kind", "model"),
    [(Stages, stages.ALONE), (Extensions, extensions.XL_GRU), (Designs, designs.NTM), (Irregular, ODE)],
)
def test_settings_of_a_model_that_are_trained_as_one_model_have_the_losses_of_each_alone(kind, model):
    c = wave("waves", 2, 6, True) if kind is Irregular else read_symbols("S3", "S3", 2, 8)
    study = kind(replace(tiny(kind, c).settings, hidden=8))
    assert study.can_stack(model) and not study.can_stack("gru")
    specs = [Spec(c, model, lr, "default", seed, "valid") for lr, seed in ((1e-3, 0), (1e-2, 1))]
    stacked = StackedStep([study._training(spec) for spec in specs], CPU)
    for done in range(2):
        stacked.prepare(done)
        stacked()
    alone = train_many([study._training(spec) for spec in specs], CPU)
    assert len({training.stack for training in stacked.trainings}) == 1
    torch.testing.assert_close(stacked.losses.T.tolist(), [one.losses for one in alone], rtol=1e-3, atol=1e-4)


def test_squared_errors_are_compared_below_half_a_test_row():
    study = tiny(Irregular, wave("waves", 2, 6, True))
    errors = {ODE: 1e-5, "gru": 3e-5}  # half of 32 test rows would be 0.016
    rows = [trial("waves", m, i, MSE=e * (1 + 0.01 * i), MAE=0.1) for m, e in errors.items() for i in range(3)]
    (contest,) = study.compare_models(rows)
    assert (contest.model, contest.other, contest.better) == (ODE, "gru", True)


def test_each_condition_is_compared_with_its_own_reference_model():
    conditions = (
        read_symbols("memory: first symbol", FIRST, 2, 12, models=extensions.MEMORIES, against=extensions.XL_ATTN),
        read_symbols("states: recall", "recall", 2, 24, models=("1 state", "2 states"), against="1 state"),
    )
    study = tiny(Extensions, *conditions)
    rows = [
        trial(c.name, m, i, accuracy=base + 0.001 * i, bits=1.0, **{f"T = {c.task['T']}": base})
        for c in conditions
        for m, base in zip(study.models(c), (0.9, 0.3, 0.2, 0.8), strict=False)
        for i in range(3)
    ]
    pairs = [(c.model, c.other, c.better) for c in study.compare_models(rows)]
    assert pairs == [
        *((extensions.XL_ATTN, other, True) for other in extensions.MEMORIES[1:]),
        ("1 state", "2 states", True),
    ]
    verdict = study.verdict(rows)
    assert verdict.startswith("Exploratory, 2 seeds; accuracy: memory: first symbol: attn_rnn memory 0.901")
    assert "1 state is better than 2 states" in verdict


def test_a_study_tests_longer_sequences_than_it_trains_on():
    study = tiny(Designs, read_symbols("copy", COPY, 2, 7, (7, 13), models=("ntm", "gru"), against="ntm"))
    rows = list(study.run(lambda _: None))
    assert [t.failed for t in rows] == [""] * 4
    assert all(t.scores["accuracy"] == t.scores["T = 13"] for t in rows)
    assert [b.title for b in study.blocks(rows)][-1] == "copy: accuracy against length"


def test_waves_hide_samples_of_the_second_half_only_and_gaps_are_positive():
    values, known, gaps = draw_waves(rng(), 200, 16, True)
    assert (known[:, :8] == 1).all() and 0.4 < float(known[:, 8:].mean()) < 0.6
    assert (gaps >= 0).all() and float(gaps.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(values.square().mean()) == pytest.approx(0.5, abs=0.05)
    assert (draw_waves(rng(), 2, 4, False)[2] == 0.5).all()


def test_only_models_that_know_the_gaps_use_them_and_hidden_values_are_not_read():
    study = tiny(Irregular, wave("irregular gaps", 2, 8, True))
    values, known, gaps = draw_waves(rng(), 3, 8, True)
    for model in MODELS:
        torch.manual_seed(0)
        network = study.build(model, 8, "default", study.settings.conditions[0])
        with torch.no_grad():
            y = network(values, known, gaps)
            assert y.shape == (3, 8)
            assert torch.equal(network(torch.where(known == 0, 9.0, values), known, gaps), y)
            assert torch.allclose(network(values, known, 2 * gaps), y) == (not model.endswith(GAPS) and model == "gru")


def test_irregular_samples_are_scored_by_their_squared_error():
    study = tiny(Irregular, wave("irregular gaps", 2, 8, True))
    rows = list(study.run(lambda _: None))
    assert [t.failed for t in rows] == [""] * 8 and all(0 < t.scores["MSE"] < 2 for t in rows)
    assert study.verdict(rows).startswith("Exploratory, 2 seeds; MSE: irregular gaps:")

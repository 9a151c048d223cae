from dataclasses import replace

import pytest
import torch

from research.studies.kinds import MODELS, Kinds
from research.studies.linear import Linear
from research.studies.long import Long
from research.studies.support.contenders import count_trained
from research.studies.support.mixers import make_linear
from research.studies.support.outcome import Trial
from research.studies.support.state_report import contrasts
from seqloom.core.errors import UserError


def trial(model, seed, accuracy):
    scores = {"accuracy": accuracy, "T = 500": accuracy}
    return Trial("parity", model, 1e-2, "default", seed, "test", 8, 100, scores, [1.0, 0.5], 1.0)


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_answers_after_every_symbol_and_is_causal(model):
    study = Kinds(Kinds.quick)
    c = Kinds.quick.conditions[0]
    network = study.build(model, 16, "default", c).eval()
    x, _ = study.problem(c).draw(torch.Generator().manual_seed(0), 2, 24, "test")
    y = network(x)
    assert y.shape == (2, 24, 16)
    torch.testing.assert_close(network(x[:, :20]), y[:, :20], rtol=1e-4, atol=1e-5)


def test_every_kind_has_about_as_many_parameters():
    study = Kinds(Kinds.full)
    study._sizes = {}
    c = Kinds.full.conditions[0]
    counts = [count_trained(study.build(m, study.find_hidden(m, c), "default", c)) for m in MODELS]
    assert max(counts) < 1.25 * min(counts)


def test_recall_of_32_pairs_asks_for_the_value_that_stood_after_the_key():
    x, y = Kinds(Kinds.full).problem(Kinds.full.conditions[0]).draw(torch.Generator().manual_seed(0), 3, 80, "test")
    for symbols, labels in zip(x.tolist(), y.tolist(), strict=True):
        values = dict(zip(symbols[0:64:2], symbols[1:64:2], strict=True))
        assert len(values) == 32
        assert labels[64:] == [values[key] - 64 for key in symbols[64:]]


def test_negative_eigenvalues_are_compared_with_positive_ones():
    rows = [trial("gated_deltanet", seed, 0.5) for seed in range(3)]
    rows += [trial("gated_deltanet negative", seed, 1.0) for seed in range(3)]
    (contrast,) = contrasts(Linear(Linear.full), rows)
    assert contrast.question == "negative eigenvalues - positive"
    assert (contrast.a.hits, contrast.b.hits) == (3, 0)


def test_a_linear_recurrence_counts_as_linear():
    rows = [trial(model, seed, 1.0) for model in ("gru", "mamba2") for seed in range(3)]
    assert [c.question for c in contrasts(Linear(Linear.full), rows)] == ["nonlinear - linear"]


def test_negative_eigenvalues_of_a_recurrence_without_them_are_refused():
    with pytest.raises(UserError, match="mamba2 has no setting for negative eigenvalues"):
        make_linear("mamba2 negative", 16)


def test_a_linear_recurrence_recalls_the_first_of_long_sequences():
    c = replace(Long.quick.conditions[0], models=("mamba2",), steps=3)
    study = Long(replace(Long.quick, models=("mamba2",), conditions=(c,), seeds=1))
    (row,) = study.run(lambda _: None)
    assert row.model == "mamba2" and not row.failed and 0 <= row.scores["accuracy"] <= 1


def test_gates_can_start_with_a_long_memory():
    for name in ("gated_deltanet negative", "mamba2", "deltaproduct", "deltanet negative"):
        parts = []
        for start in ("default", "keep 8"):
            torch.manual_seed(0)
            stack = make_linear(name, 16, start=start)
            parts.append(next(m for m in stack.modules() if hasattr(m, "W_qkv") or hasattr(m, "A")))
        if hasattr(parts[1], "A"):
            decay = torch.exp(-parts[1].A.exp() * torch.nn.functional.softplus(parts[1].b))
            torch.testing.assert_close(decay, torch.full_like(decay, 1 / (1 + torch.tensor(-8.0).exp())))
        if hasattr(parts[1], "W_b"):
            torch.testing.assert_close(parts[1].W_b.weight, 8 * parts[0].W_b.weight)


def test_a_condition_may_train_on_longer_sequences():
    study, c = Linear(Linear.full), Linear.full.conditions[1]
    batches = study.draw(c)
    batches.prepare(torch.Generator().manual_seed(0), 0)
    x, _, labels = batches(torch.Generator(), torch.device("cpu"))
    assert x.shape == (128, 128) and int(labels) == 128

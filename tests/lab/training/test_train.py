"""The training loop: every kind of task, its guards, and its settings."""

import math
import re
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from torch import nn

from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import END, IGNORE, UNSEEN, Batch
from seqloom.lab.files.checkpoint import load_weights
from seqloom.lab.kinds.layers import Timed
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training import loop, step
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.model import build
from seqloom.lab.training.optimiser import Average, Schedule, build_optimiser
from seqloom.lab.training.results import summarise_run
from seqloom.lab.training.run import Run
from seqloom.lab.training.step import Stepper
from seqloom.lab.training.train import train
from seqloom.layers.recurrent.layer import Recurrent

N = 80
SMALL = {"hidden": 8, "embedding": 8, "device": "cpu", "batch": 16}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))


def series(i):
    return [[float(i % 7 + t), float(-t)] for t in range(i % 5 + 2)]


def waves(n=400):
    return {"a": [math.sin(i / 5) for i in range(n)], "b": [math.cos(i / 7) for i in range(n)]}


TABLES = {
    "classify": ({"text": [f"some w{i % 9} words {i}" for i in range(N)], "label": ["a", "b"] * (N // 2)}, {}),
    "regress": ({"series": [series(i) for i in range(N)], "value": [i / 3 for i in range(N)]}, {}),
    "tag": ({"tokens": [["a", "b", f"c{i % 7}"] for i in range(N)], "tags": [["O", "B-x", "I-x"]] * N}, {}),
    "translate": (
        {"source": [f"one {i % 9} two" for i in range(N)], "target": [f"eins {i % 9} zwei" for i in range(N)]},
        {"input": "source", "target": "target", "kind": "translate"},
    ),
    "generate": ({"text": [f"name{i}" for i in range(N)]}, {"kind": "generate"}),
    "forecast": (waves(), {"kind": "forecast", "lookback": 24, "horizon": 8}),
    "transcribe": (
        {
            "audio": [[0.1 * (t % (i + 2)) for t in range(2500)] for i in range(N)],
            "rate": [8000] * N,
            "text": [f"n {i % 4}" for i in range(N)],
        },
        {"kind": "transcribe", "input": "audio", "target": "text"},
    ),
}
MEASURED = {
    "classify": {"accuracy", "macro_f1"},
    "regress": {"mse", "rmse", "mae"},
    "tag": {"accuracy", "span_f1"},
    "translate": {"perplexity", "bits", "accuracy", "exact", "bleu"},
    "generate": {"perplexity", "bits", "accuracy"},
    "forecast": {"mse", "rmse", "mae", "mase"},
    "transcribe": {"cer", "wer"},
}


def opened(kind):
    columns, options = TABLES[kind]
    return open_task(pl.DataFrame(columns), **options)


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_task_trains_saves_loads_and_predicts(kind, tmp_path):
    task = opened(kind)
    assert task.kind == kind
    made = train(task, TrainSettings(steps=4, **SMALL), tmp_path / "run", source={"path": "x"})
    run = Run.load(tmp_path / "run")
    assert (run.finished, run.record["source"], run.settings) == ("steps", {"path": "x"}, made.settings)
    tested = run.metrics()[-1]
    assert tested["split"] == "test" and MEASURED[kind] | {"loss"} <= tested.keys()
    low, high = tested["loss_interval"]
    assert low <= tested["loss"] <= high
    model, batch = run.model(), next(iter(task.batches("test", batch=3)))
    assert not model.training
    actual = model.predict(batch)
    lengths = None if kind in ("classify", "regress", "forecast") else actual.lengths
    said = run.task.decode(actual.values, lengths)
    assert len(said) == 3
    if actual.probabilities is not None:
        torch.testing.assert_close(actual.probabilities.sum(-1), torch.ones(actual.probabilities.shape[:-1]))


@pytest.mark.parametrize("kind", ["classify", "tag", "forecast", "translate"])
@pytest.mark.parametrize("model", ["transformer", "bi_lstm", "tcn"])
def test_other_layers_train_too(kind, model, tmp_path):
    if (kind, model) == ("translate", "bi_lstm"):
        model = "lstm"
    train(opened(kind), TrainSettings(steps=2, model=model, **SMALL), tmp_path / "run")
    assert Run.load(tmp_path / "run").model() is not None


def test_the_options_of_models_reach_them(tmp_path):
    crf = build(opened("tag"), TrainSettings(crf=True, **SMALL))
    assert crf.model.crf is not None
    assert build(opened("forecast"), TrainSettings(**SMALL)).segment == 8
    assert build(opened("forecast"), TrainSettings(segment=0, **SMALL)).segment == 0
    assert build(opened("classify"), TrainSettings(**SMALL)).model.readout.name == "max_mean"
    assert build(opened("classify"), TrainSettings(readout="last", **SMALL)).model.readout.name == "last"
    assert isinstance(build(opened("classify"), TrainSettings(normalise=False, **SMALL)).model.head, nn.Linear)
    tied = build(opened("generate"), TrainSettings(tied=True, **SMALL))
    assert tied.model.head.linear.weight is tied.model.embed.table.weight
    with pytest.raises(ValueError, match="'tcn' is not one"):
        build(opened("classify"), TrainSettings(model="tcn", zoneout=0.1, **SMALL))
    with pytest.raises(ValueError, match="did you mean 'gru'"):
        build(opened("classify"), TrainSettings(model="gruu", **SMALL))


@pytest.mark.parametrize(
    ("kind", "steps", "pieces", "epochs"),
    [
        ("classify", 2, 1, 200),
        ("classify", 200, 90, 12),
        ("classify", 500, 20, 10),
        ("classify", 700, 800, 3),
        ("classify", 100_000, None, 3),
        ("translate", 5000, None, 10),
    ],
)
def test_small_data_is_trained_for_more_epochs_than_large(kind, steps, pieces, epochs):
    assert loop._choose_epochs(SimpleNamespace(kind=kind, count=lambda *_, **__: pieces), steps) == epochs


def test_word_vectors_start_small_where_a_text_has_one_answer():
    spread = {
        kind: build(opened(kind), TrainSettings(**SMALL)).model.embed.table.weight.std() for kind in ("classify", "tag")
    }
    assert spread["classify"] < 0.2 and spread["tag"] > 0.8
    attn = build(
        opened("classify"), TrainSettings(model="attn_rnn", **SMALL)
    ).model  # its input stands beside its state
    assert attn.embed.table.weight.std() * attn.embed.scale > 0.8 and attn.layer.bias_g_l0.max() < 0
    own = build(opened("classify"), TrainSettings(model="attn_rnn", chrono=0, **SMALL)).model
    assert own.layer.bias_g_l0.max() == 0


def test_weights_of_another_shape_are_refused_in_one_line(tmp_path):
    train(opened("classify"), TrainSettings(steps=1, **SMALL), tmp_path / "run")
    other = build(opened("classify"), TrainSettings(readout="last", **SMALL))
    with pytest.raises(ValueError, match=r"'model.head.0.weight' is \(16,\) in the file, not \(8,\)"):
        load_weights(other, Run.load(tmp_path / "run").checkpoint("best").tensors("weights"))


def test_tied_weights_and_a_crf_survive_the_disk(tmp_path):
    for kind, more in (("generate", {"tied": True}), ("tag", {"crf": True})):
        task = opened(kind)
        train(task, TrainSettings(steps=3, **more, **SMALL), tmp_path / kind)
        batch = next(iter(task.batches("test", batch=4)))
        one, two = (Run.load(tmp_path / kind).model("last") for _ in range(2))
        assert torch.equal(one(batch)[0], two(batch)[0])
        assert float(one(batch)[0].detach()) > 0


def test_a_forecast_of_some_features_reads_them_in_the_order_it_needs():
    task = open_task(pl.DataFrame(waves()), kind="forecast", lookback=24, horizon=8, input="a,b", target="b")
    model = build(task, TrainSettings(**SMALL)).eval()
    batch = next(iter(task.batches("test", batch=3)))
    assert model.order == [1, 0]
    # the last value of b comes back where the head says nothing
    nn.init.zeros_(model.model.head.weight)
    nn.init.zeros_(model.model.head.bias)
    torch.testing.assert_close(model.predict(batch).values, batch.x[:, -1:, 1:2].expand(3, 8, 1))


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("model", ["ode_gru", "bi_ode_gru", "gru"])
def test_irregular_time_stamps_reach_the_layer(model, tmp_path):
    """The values are the same for both classes; only the times differ."""
    steps = [[0.0, 1.0, 2.0, 3.0, 4.0] if i % 2 else [0.0, 0.5, 6.0, 6.5, 7.0] for i in range(N)]
    data = {
        "series": [[1.0, 2.0, 1.0, 2.0, i % 9 / 9] for i in range(N)],
        "times": steps,
        "label": ["a", "b"] * (N // 2),
    }
    task = open_task(pl.DataFrame(data), input="series", target="label", time="times")
    assert next(iter(task.batches("train", batch=4))).timespans is not None
    run = train(task, TrainSettings(epochs=15, model=model, lr=0.02, **SMALL), tmp_path / "run")
    assert run.metrics()[-1]["accuracy"] == 1.0
    assert run.model().predict(run.task.encode([{"series": [1.0, 2.0]}])).values.shape == (1,)


def test_a_layer_that_reads_time_spans_has_the_attributes_of_its_layer():
    layer = Recurrent("ode_gru", 2, 4, batch_first=True, bidirectional=True)
    timed = Timed(layer)
    assert (timed.input_size, timed.output_size) == (3, 8)
    assert all(getattr(timed, name) == getattr(layer, name) for name in ("batch_first", "bidirectional", "causal"))


def test_losses_skip_what_has_no_target():
    model = build(opened("classify"), TrainSettings(dropout=0, **SMALL)).eval()
    batch = next(iter(opened("classify").batches("valid", batch=4)))
    whole, some = batch.y.clone(), batch.y.clone()
    some[1] = UNSEEN
    each = model.row_losses(model.scores(batch)[0], batch)
    less = Batch(batch.x, batch.lengths, batch.rows, some)
    torch.testing.assert_close(model(less)[0], each[[0, 2, 3]].sum())
    assert (model.count_targets(batch).sum(), model.count_targets(less).sum()) == (len(whole), len(whole) - 1)
    task = opened("regress")
    model, batch = build(task, TrainSettings(**SMALL)).eval(), next(iter(task.batches("valid", batch=4)))
    each = model.row_losses(model.scores(batch)[0], batch)
    y = batch.y.clone()
    y[2] = torch.nan
    less = Batch(batch.x, batch.lengths, batch.rows, y)
    torch.testing.assert_close(model(less)[0], each[[0, 1, 3]].sum())
    assert int(model.count_targets(less).sum()) == 3


def test_the_past_of_a_forecast_is_taken_as_it_stands_or_refused():
    task, w = opened("forecast"), waves(30)
    steps = [list(step) for step in zip(w["a"], w["b"], strict=True)]
    by_name, listed = task.encode([{"b": w["b"], "a": w["a"], "c": 0}]), task.encode([steps])
    assert torch.equal(by_name.x, listed.x) and by_name.lengths.tolist() == [24]
    wrong = {
        "shape \\(30, 1\\); give \\(steps, 2\\)": [[a] for a in w["a"]],
        "shape \\(30,\\)": w["a"],
        "no column 'b'; it has a": {"a": w["a"]},
        "30 of 'a', 29 of 'b'": {"a": w["a"], "b": w["b"][1:]},
    }
    for message, row in wrong.items():
        with pytest.raises(ValueError, match=f"row 2: .*{message}"):
            task.encode([steps, row])


def test_a_translation_without_end_is_as_long_beside_a_longer_source_as_alone():
    task = opened("translate")
    model = build(task, TrainSettings(**SMALL)).eval()
    with torch.no_grad():
        model.model.decoder.head.linear.bias[END] = -1e9
    both, short = task.encode(["one", "one two " * 9]), task.encode(["one"])
    said, alone = model.predict(both), model.predict(short)
    assert said.lengths.tolist() == (2 * both.lengths + 20).tolist()
    assert said.values[0, : said.lengths[0]].tolist() == alone.values[0, : alone.lengths[0]].tolist()


@pytest.mark.parametrize("stack", [1, 3])
def test_a_recording_too_short_for_its_text_has_no_loss(stack):
    task = opened("transcribe")
    model = build(task, TrainSettings(dropout=0, stack=stack, **SMALL)).eval()
    batch = next(iter(task.batches("valid", batch=4)))
    y, steps = batch.y.clone(), torch.tensor([3, 3, 4, 2])
    y[:, :3] = torch.tensor([[5, 6, 7], [5, 5, 7], [5, 5, 7], [5, 6, 7]])
    batch = Batch(batch.x, steps * stack, batch.rows, y, torch.tensor([3, 3, 3, 3]))
    each = model.row_losses(model.scores(batch)[0], batch)
    assert (each > 0).tolist() == [True, False, True, False]
    assert model.count_targets(batch).tolist() == [3, 0, 3, 0]


def stepper(more=None, dropout=0.0):
    task = opened("tag")
    torch.manual_seed(0)
    settings = TrainSettings(dropout=dropout, **(SMALL | (more or {})))
    return Stepper(build(task, settings), settings, ProcessGroup()), task


def weights(made):
    return {name: p.detach().clone() for name, p in made.model.named_parameters()}


def ragged(task, n, seed=0):
    batch = next(iter(task.batches("train", batch=n, seed=seed)))
    y = batch.y.clone()
    y[0, 1:] = IGNORE  # parts with different numbers of targets
    return Batch(batch.x, batch.lengths, batch.rows, y)


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_a_batch_in_parts_makes_the_step_of_the_whole(parts):
    (whole, task), (halved, _) = stepper({"optimiser": "sgd"}), stepper({"optimiser": "sgd"})
    halved.parts = parts
    batch = ragged(task, 10)
    assert whole.step([batch], 0, 0.5)[0] == pytest.approx(halved.step([batch], 0, 0.5)[0], rel=1e-6)
    torch.testing.assert_close(weights(halved), weights(whole), rtol=1e-5, atol=1e-7)


def test_accumulated_batches_make_the_step_of_one_large_batch():
    (one, task), (many, _) = stepper({"optimiser": "sgd"}), stepper({"optimiser": "sgd"})
    large = ragged(task, 12)
    one.step([large], 0, 0.5)
    many.step([large.shard(k, 3) for k in range(3)], 0, 0.5)
    torch.testing.assert_close(weights(many), weights(one), rtol=1e-5, atol=1e-7)


def test_out_of_memory_halves_the_batch_says_so_and_makes_the_same_step(monkeypatch, capsys):
    (whole, task), (small, _) = stepper({"optimiser": "sgd"}), stepper({"optimiser": "sgd"})
    batch, forward, sizes = ragged(task, 8), small.model.forward, []

    def scarce(batch, state=None):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(batch, state)

    monkeypatch.setattr(small.model, "forward", scarce)
    whole.step([batch], 0, 0.5)
    small.step([batch], 0, 0.5)
    assert (sizes, small.parts) == ([8, 4, 2, 2, 2, 2], 4)
    assert "does not fit into memory; from now on it is split into 4 parts" in capsys.readouterr().err
    torch.testing.assert_close(weights(small), weights(whole), rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(small.model, "forward", lambda *_: scarce(ragged(task, 8)))
    with pytest.raises(MemoryError, match="a batch of 1 row of 3 steps does not fit"):
        small.step([batch], 1, 0.5)


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    made, task = stepper()
    monkeypatch.setattr(made.model, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes"):
        made.step([ragged(task, 4)], 0, 0.1)


def test_a_weight_that_is_not_finite_is_named_with_the_step_and_the_rows(tmp_path, monkeypatch):
    task, whole = opened("classify"), step.Stepper.step

    def poisoned(self, batches, number, lr):
        if number == 3:
            with torch.no_grad():
                self.model.model.layer.weight_hh_l0[0, 0] = torch.inf
        return whole(self, batches, number, lr)

    monkeypatch.setattr(step.Stepper, "step", poisoned)
    with pytest.raises(FloatingPointError) as raised:
        train(task, TrainSettings(steps=9, **SMALL), tmp_path / "run")
    text = str(raised.value)
    assert "in step 4, in the batch of rows " in text and "and 8 more" in text
    assert "first not finite: weight 'model.layer.weight_hh_l0'" in text


class Bad(nn.Module):
    """Fine forwards where `when` is "gradient", not at all where it is "output"."""

    def __init__(self, when):
        super().__init__()
        self.when, self.w = when, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * torch.sqrt(self.w - 1) if self.when == "gradient" else x / (self.w - 1)


@pytest.mark.parametrize(
    ("when", "said"), [("gradient", "the gradient of '1.w'"), ("output", r"the output of '1' \(Bad\)")]
)
def test_the_first_layer_or_gradient_that_is_not_finite_is_named(when, said):
    model = nn.Sequential(nn.Linear(2, 2), Bad(when), nn.Linear(2, 1))
    x = torch.randn(3, 2)
    assert re.fullmatch(said, step.find_not_finite(model, lambda: model(x).sum(), x))
    x[1, 0] = torch.nan
    assert step.find_not_finite(model, lambda: model(x).sum(), x) == "the input, in row 1 of the batch"


def test_a_step_that_is_not_finite_changes_no_weight():
    made, task = stepper()
    with torch.no_grad():
        made.model.model.head[1].weight[0, 0] = torch.nan
    before = weights(made)
    with pytest.raises(FloatingPointError, match=r"first not finite: weight 'model.head.1.weight'"):
        made.step([ragged(task, 4)], 0, 0.1)
    torch.testing.assert_close(weights(made), before, rtol=0, atol=0, equal_nan=True)


def poison_gradients(monkeypatch, made, steps):
    """Make the gradient of the first weight infinite in these steps."""
    compute, number = made._compute_gradients, iter(range(1000))

    def poisoned(batches):
        result = compute(batches)
        if next(number) in steps:
            made.weights[0].grad[0] = torch.inf
        return result

    monkeypatch.setattr(made, "_compute_gradients", poisoned)


def test_a_step_whose_gradient_is_not_finite_is_skipped_counted_and_named_once(monkeypatch, capsys):
    made, task = stepper()
    poison_gradients(monkeypatch, made, {0, 2})
    before = weights(made)
    made.step([ragged(task, 4)], 0, 0.1)
    torch.testing.assert_close(weights(made), before, rtol=0, atol=0)
    made.step([ragged(task, 4)], 1, 0.1)
    assert any((w != before[name]).any() for name, w in weights(made).items())
    made.step([ragged(task, 4)], 2, 0.1)
    assert (made.skipped, made.skipped_in_a_row) == (2, 1)
    assert capsys.readouterr().err == ("the gradient is not finite in step 1: such steps are skipped and counted\n")


def test_a_training_that_does_not_recover_ends_with_the_number_of_steps(monkeypatch):
    made, task = stepper()
    poison_gradients(monkeypatch, made, range(1000))
    for number in range(step.MAX_SKIPPED_IN_A_ROW - 1):
        made.step([ragged(task, 4)], number, 0.1)
    with pytest.raises(FloatingPointError, match="the gradient is not finite in step 20 and the 19 steps before"):
        made.step([ragged(task, 4)], step.MAX_SKIPPED_IN_A_ROW - 1, 0.1)


def test_a_gradient_whose_square_overflows_is_clipped_and_used(monkeypatch):
    made, task = stepper({"optimiser": "sgd", "weight_decay": 0.0})
    compute = made._compute_gradients

    def explode(batches):
        result = compute(batches)
        for p in made.weights:
            p.grad.mul_(1e30)
        return result

    monkeypatch.setattr(made, "_compute_gradients", explode)
    before = weights(made)
    made.step([ragged(task, 4)], 0, 1.0)
    moved = torch.cat([(w - before[name]).flatten() for name, w in weights(made).items()])
    assert made.skipped == 0 and moved.norm() == pytest.approx(1.0, rel=1e-3)


def test_a_run_stores_how_many_steps_were_skipped(tmp_path, monkeypatch):
    whole = step.Stepper._compute_gradients

    def poisoned(self, batches):
        result = whole(self, batches)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            self.weights[0].grad.fill_(torch.nan)
        return result

    monkeypatch.setattr(step.Stepper, "_compute_gradients", poisoned)
    run = train(opened("classify"), TrainSettings(steps=4, **SMALL), tmp_path / "run")
    assert summarise_run(run)["skipped_steps"] == 1


def test_noise_follows_from_the_seed_and_the_step_alone():
    (one, task), (two, _) = stepper(dropout=0.5), stepper(dropout=0.5)
    batch = ragged(task, 6)
    torch.rand(17)
    first = one.step([batch], 4, 0.0)
    torch.rand(5)
    assert two.step([batch], 4, 0.0) == first
    assert two.step([batch], 5, 0.0) != first


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_biases_norms_and_embeddings_do_not_decay(kind):
    model = build(opened("classify"), TrainSettings(**SMALL))
    made = build_optimiser(model, TrainSettings(optimiser=kind, weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    decays = {names[id(p)]: group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert decays.keys() == set(names.values())
    assert {name for name, decay in decays.items() if decay} == {
        "model.layer.weight_ih_l0",
        "model.layer.weight_hh_l0",
        "model.head.1.weight",
    }


def test_schedules():
    def shares(kind, progress=(), **more):
        made = Schedule(TrainSettings(schedule=kind, warmup=0.2, **more), 10)
        actual = []
        for number in range(10):
            actual.append(made.share(number))
            if number < len(progress):
                made.record_validation(progress[number])
        return actual

    assert shares("constant") == [0.5] + [1.0] * 9
    cosine = shares("cosine")
    assert (
        cosine[:3] == [0.5, 1.0, 1.0]
        and cosine[6] == pytest.approx(0.5)
        and cosine == cosine[:2] + sorted(cosine[2:], reverse=True)
    )
    progress = [True, True, False, False, False, True, False, False]
    assert shares("plateau", progress)[2:] == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert shares("step", [True] * 8, decay_after=3)[2:] == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


def test_the_average_follows_the_weights():
    model = nn.Linear(3, 2)
    made = Average(model, 0.9)
    start = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    made.update(model)  # d = 0.1
    torch.testing.assert_close(made.weights["weight"], 0.1 * start + 0.9 * (start + 1))
    for _ in range(200):
        made.update(model)
    torch.testing.assert_close(made.weights["weight"], start + 1)


def test_patience_stops_a_training_that_does_not_improve(tmp_path):
    settings = TrainSettings(epochs=50, patience=2, lr=1e-12, warmup=0, schedule="constant", **SMALL)
    run = train(opened("classify"), settings, tmp_path / "run")
    assert run.finished == "patience"
    assert len([line for line in run.metrics() if line["split"] == "valid"]) < 20


def test_the_best_weights_are_those_of_the_best_validation(tmp_path):
    run = train(open_task("digits"), TrainSettings(epochs=4, hidden=16, lr=0.02, device="cpu"), tmp_path / "run")
    lines = [line for line in run.metrics() if line["split"] == "valid"]
    best = max(lines, key=lambda line: (line["accuracy"], -line["loss"]))
    assert run.checkpoint("best").facts["step"] == best["step"] == run.metrics()[-1]["step"]
    assert lines[-1]["train_loss"] < 0.5 * lines[0]["train_loss"]
    assert run.metrics()[-1]["accuracy"] > 0.85


def test_the_average_is_what_is_validated_and_loaded(tmp_path):
    task = opened("classify")
    run = train(task, TrainSettings(steps=6, ema=0.99, lr=0.1, **SMALL), tmp_path / "run")
    actual = run.checkpoint("last")
    own, mean = actual.tensors("training"), actual.tensors("weights")
    assert not torch.equal(own["weights/model.head.1.weight"], mean["model.head.1.weight"])
    assert torch.equal(run.model("last").state_dict()["model.head.1.weight"], mean["model.head.1.weight"])


def test_the_mean_of_the_last_checkpoints_is_the_mean_of_their_weights(tmp_path):
    task, common = opened("classify"), dict(validate_every=3, warmup=0.0, schedule="constant", **SMALL)
    singles = [
        train(task, TrainSettings(steps=steps, **common), tmp_path / f"run{steps}")
        .checkpoint("last")
        .tensors("weights")
        for steps in (6, 9)
    ]
    run = train(task, TrainSettings(steps=9, average_checkpoints=2, **common), tmp_path / "run")
    stored = run.checkpoint("last").tensors("training")
    for name, w in singles[1].items():
        torch.testing.assert_close(stored[f"checkpoints/{name}"], (singles[0][name] + w) / 2)
    averaged = [line for line in run.metrics() if line.get("averaged_checkpoints")]
    assert [line["averaged_checkpoints"] for line in averaged] == [2]


def test_the_mean_of_checkpoints_becomes_the_model_only_if_it_is_better(tmp_path):
    for name, more in (("good", {"lr": 0.3, "seed": 1}), ("bad", {"lr": 1e-9})):
        settings = TrainSettings(steps=8, validate_every=2, average_checkpoints=3, **SMALL | more)
        run = train(opened("classify"), settings, tmp_path / name)
        lines = [line for line in run.metrics() if line["split"] == "valid"]
        single = [line for line in lines if "averaged_checkpoints" not in line]
        (mean,) = (line for line in lines if "averaged_checkpoints" in line)
        best = max(single, key=lambda line: (line["accuracy"], -line["loss"]))
        better = (mean["accuracy"], -mean["loss"]) > (best["accuracy"], -best["loss"])
        stored, averages = run.checkpoint("best").tensors("weights"), run.checkpoint("last").tensors("training")
        assert better == all(torch.equal(w, averages[f"checkpoints/{key}"]) for key, w in stored.items())


def test_half_precision_trains_on_a_cpu_and_fp16_asks_for_a_gpu(tmp_path):
    run = train(opened("classify"), TrainSettings(steps=3, precision="bf16", **SMALL), tmp_path / "run")
    assert math.isfinite(run.metrics()[-1]["loss"])
    with pytest.raises(ValueError, match="precision='fp16' needs a GPU"):
        train(opened("classify"), TrainSettings(steps=3, precision="fp16", **SMALL), tmp_path / "half")


@pytest.mark.long
def test_a_compiled_model_trains_as_a_plain_one_does(tmp_path):
    plain, fast = (
        train(opened("classify"), TrainSettings(steps=3, dropout=0, compile=c, **SMALL), tmp_path / f"run{c}")
        for c in (False, True)
    )
    torch.testing.assert_close(
        fast.checkpoint().tensors("weights"), plain.checkpoint().tensors("weights"), rtol=1e-4, atol=1e-5
    )


def test_tensorboard_files_are_written_on_request(tmp_path):
    pytest.importorskip("tensorboard")
    train(opened("classify"), TrainSettings(steps=3, tensorboard=True, **SMALL), tmp_path / "run")
    assert next(p.name for p in (tmp_path / "run/tensorboard").iterdir()).startswith("events")


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ValueError, match="give one of batch and tokens"):
        TrainSettings(batch=3, tokens=4)
    with pytest.raises(ValueError, match="give one of epochs and steps"):
        TrainSettings(epochs=3, steps=4)
    with pytest.raises(ValueError, match="tied needs embedding and hidden to be equal"):
        TrainSettings(tied=True, hidden=3)
    with pytest.raises(ValueError, match="has no end; give steps instead of epochs"):
        train(open_task("adding"), TrainSettings(epochs=3, **SMALL), tmp_path / "run")
    with pytest.raises(ValueError, match="device 'gpu' cannot be used"):
        train(open_task("adding"), TrainSettings(device="gpu"), tmp_path / "other")


def test_a_line_a_minute_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("seqloom.lab.training.progress.LINE_EVERY", 0.0)
    monkeypatch.setattr("seqloom.lab.training.progress.REFRESH_EVERY", 0.0)
    monkeypatch.setattr("seqloom.lab.training.progress.VALIDATION_LINE_EVERY", 0.0)
    train(opened("classify"), TrainSettings(steps=6, validate_every=3, **SMALL), tmp_path / "run")
    said = capsys.readouterr()
    assert "steps/s" in said.err and "left" in said.err and "accuracy" in said.err
    assert not said.out

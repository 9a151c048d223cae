"""One small comparison on the digits, in this process."""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from seqloom import Cell
from seqloom.cli.commands.compare import compare
from seqloom.lab.compare import rung, search, significance, timing
from seqloom.lab.compare.execution import score_quick_baselines
from seqloom.lab.compare.folder import choose_name, resume_comparison, start_comparison, store_models
from seqloom.lab.compare.jobs import CandidateTrial
from seqloom.lab.compare.leaderboard import build_leaderboard
from seqloom.lab.compare.page import build_document, build_page
from seqloom.lab.compare.plan import plan_steps
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.rung import Deadline, Rung
from seqloom.lab.compare.search import Search
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.digits import DigitsTask
from seqloom.lab.files import checkpoint
from seqloom.lab.jobs import runner
from seqloom.lab.kinds.baselines import counts, linear, registry
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats import metrics
from seqloom.lab.training.candidates import Hyperparameters
from seqloom.lab.training.folders import find_run
from seqloom.lab.training.results import evaluate
from seqloom.lab.training.run import Run

BROKEN = """
import torch, seqloom
class Broken(seqloom.Cell):
    '''Works until it is trained.'''
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = torch.nn.Parameter(torch.ones(hidden_size, input_size))
    def step(self, x, state):
        raise RuntimeError("a step that fails")
"""
TIMES = ("training (s)", "latency 1 (ms)", "latency 64 (ms)")


def run_jobs(comparison, stop=None):
    for number, result in enumerate(runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs"), 1):
        comparison.results[result.key] = result
        if number == stop:
            break
    return comparison


def score_of(results, name):
    return next(row.test.mean for row in results.rows if row.name == name)


def timeless_rows(comparison):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in build_leaderboard(collect_results(comparison))]


@pytest.fixture(scope="module", autouse=True)
def _quick_jobs():
    """Fit the slow baselines once or not at all, time few predictions, draw few samples; others do it in earnest."""
    models = {}

    def fit_once(task, *args, **more):
        if task.name not in models:
            models[task.name] = linear.fit_logistic(task, *args, **more)
        return models[task.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            registry.FITS, "rocket", registry.BaselineEntry((registry.ROCKET,) * 2, counts.fit_majority, lambda _: True)
        )
        patch.setitem(
            registry.FITS, "logistic", registry.BaselineEntry(("logistic regression",) * 2, fit_once, lambda _: True)
        )
        patch.setattr(timing, "LATENCY_SECONDS", 0.0)
        patch.setattr(metrics, "DRAWS", 100)
        patch.setattr(significance, "RESAMPLES", 100)
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    file = tmp_path_factory.mktemp("cell") / "broken.py"
    file.write_text(BROKEN)
    return CompareSettings(models=f"rnn,gru,tcn,lstm,{file}:Broken", steps=9, seeds=2, tune=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings):
    return run_jobs(start_comparison(None, {}, settings, tmp_path_factory.mktemp("whole") / "c"))


@pytest.mark.slow
def test_a_resumed_comparison_gives_the_same_table_as_an_uninterrupted_one(whole, settings, tmp_path):
    place = tmp_path / "c"
    run_jobs(start_comparison(None, {}, settings, place), stop=4)
    for stop in (9, 13, None):
        comparison = run_jobs(resume_comparison(None, {}, CompareSettings(), place), stop)
        assert build_leaderboard(collect_results(comparison))  # at any time
    assert timeless_rows(comparison) == timeless_rows(whole)
    assert (
        build_document(comparison, collect_results(comparison), True)["verdict"]
        == build_document(whole, collect_results(whole), True)["verdict"]
    )


@pytest.mark.slow
def test_every_model_has_a_row_and_a_failed_one_its_reason(whole):
    results = collect_results(whole)
    assert {r.name.rpartition("/")[2] for r in results.rows} == {
        *baselines(whole.task), "rnn", "gru", "tcn:2", "lstm", "broken.py:Broken"
    }  # fmt: skip
    assert len(results.models) == 3 and all(r.seeds == 2 and len(r.test.values) == 2 for r in results.models)
    dropped = [r for r in results.rows if r.note.startswith("stopped after ")]
    assert len(dropped) == 1 and dropped[0].test is None and dropped[0].valid is not None
    (broken,) = [r for r in results.rows if "Broken" in r.name]
    assert broken.note == "failed: RuntimeError: a step that fails"
    assert all(r.latency and r.memory and r.seconds for r in results.models)
    assert results.models == sorted(results.models, key=lambda r: r.rank)


@pytest.mark.slow
def test_the_test_rows_do_not_affect_the_ranking(settings, tmp_path, monkeypatch):
    wrong = DigitsTask()
    x, y = wrong._parts["test"]
    wrong._parts["test"] = x, (y + 1) % 10
    small = CompareSettings(models="rnn,gru", steps=9, seeds=1, tune=1)
    honest = run_jobs(start_comparison(None, {}, small, tmp_path / "honest"))
    monkeypatch.setattr(rung, "load_task", lambda _: wrong)
    fooled = run_jobs(start_comparison(None, {}, small, tmp_path / "fooled"))
    one, other = collect_results(honest), collect_results(fooled)
    assert [(r.name, r.valid) for r in one.models] == [(r.name, r.valid) for r in other.models]
    assert other.models[0].test.mean < 0.2 < one.models[0].test.mean


@pytest.mark.slow
def test_the_page_and_the_document_are_complete_and_the_winner_predicts(whole):
    results = collect_results(whole)
    page, stored = build_page(whole, results, True), build_document(whole, results, True)
    titles = [block.title for block in page.blocks]
    assert titles[:9] == [
        "Leaderboard", "Test results by seed", "Learning curves", "Classes", "Confusion matrix", "Reliability",
        "A test row of each class", "Worst test rows, drawn", "Worst test rows",
    ]  # fmt: skip
    classes, confusion, worst = page.blocks[3], page.blocks[4], page.blocks[8]
    assert sum(row["rows"] for row in classes.rows) == 360 and len(worst.rows) == 10
    assert len(confusion.values) == 10 and sum(map(sum, confusion.values)) == 360
    assert [row["loss"] for row in worst.rows] == sorted((row["loss"] for row in worst.rows), reverse=True)
    assert stored["verdict"] == page.verdict and stored["plan"]["steps"] == 9 and stored["versions"]["torch"]
    assert stored["command"].startswith("seqloom compare digits --models rnn,gru,tcn,lstm,")
    best = store_models(whole, results)
    assert Run.load(best).settings.model == results.chosen == stored["recommended"]
    assert page.blocks[-1].title == "Next" and f"{best} NEW_FILE" in page.blocks[-1].paragraphs[0]
    folders = {row["folder"] for row in stored["rows"] if row["folder"]}
    simple = {choose_name(name) for name in baselines(whole.task)}
    assert folders == simple | {"rnn", "gru", "tcn-2", "lstm"}
    for name in ["best", *folders]:  # everything that was trained or fitted can be used
        run = find_run(whole.folder / name)
        assert {row["prediction"] for row in run.predict(torch.zeros(2, 8, 8))} <= set("0123456789")
        tests = [line for line in run.metrics() if line["split"] == "test"]
        dropped = next(r for r in results.rows if r.note.startswith("stopped after "))
        assert len(tests) == (name != choose_name(dropped.name))
    assert evaluate(find_run(whole.folder / "majority"))["metrics"]["accuracy"] == score_of(results, "majority")
    runs = list((whole.folder / "runs").iterdir())
    assert len(runs) == 6 + 1 + len(simple)  # three models with two seeds, the dropped one, the baselines
    with pytest.raises(ValueError, match="with no model 'lst'; did you mean 'lstm'"):
        find_run(whole.folder / "lst")


@pytest.mark.slow
def test_a_comparison_is_not_mixed_with_another(whole, tmp_path):
    with pytest.raises(ValueError, match="already holds a comparison"):
        start_comparison(None, {}, CompareSettings(), whole.folder)
    with pytest.raises(ValueError, match="was started with seeds=2, not 5"):
        resume_comparison(None, {}, CompareSettings(seeds=5), whole.folder)
    with pytest.raises(ValueError, match="holds no comparison to resume"):
        resume_comparison(None, {}, CompareSettings(), tmp_path / "nothing")
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"report\.html exists and does not belong to a comparison"):
        start_comparison(None, {}, CompareSettings(), tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    (tmp_path / "compare.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="newer seqloom"):
        resume_comparison(None, {}, CompareSettings(), tmp_path)


def test_a_new_folder_appears_together_with_its_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, there = checkpoint.write_file, []

    def look(path, data):
        there.extend(path.name for path in Path("comparisons").iterdir() if path.name[0] != ".")
        write(path, data)

    monkeypatch.setattr(checkpoint, "write_file", look)
    assert start_comparison(None, {}, CompareSettings(), None).folder == tmp_path / "comparisons" / "digits"
    assert not there
    assert [path.name for path in Path("comparisons").rglob("*")] == ["digits", "compare.json"]


def test_a_speed_job_writes_only_to_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    comparison = start_comparison(None, {}, CompareSettings(models="rnn", steps=9), tmp_path / "c")
    trial = CandidateTrial(comparison.candidates["rnn"], Hyperparameters(1e-3), 8)
    (result,) = runner.run([comparison.job_factory.speed(trial, 0.0)], runner.Here(), comparison.folder / "jobs")
    assert result.value["valid"] > 0
    assert sorted(path.name for path in (comparison.folder / "jobs" / result.key).iterdir()) == [".lock", "result.json"]


class Clock:
    """A clock that moves when a job ends."""

    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


def run_with_clock(settings, folder, seconds):
    """Run a comparison in which a job of a kind takes `seconds` by the comparison's clock."""
    clock = Clock()
    comparison = start_comparison(None, {}, settings, folder, began=clock.now)
    comparison.clock = clock
    comparison.end = clock.now + settings.seconds
    left = comparison.seconds_for_jobs
    for result in runner.run(comparison.jobs(), runner.Here(), comparison.folder / "jobs", seconds_left=left):
        comparison.results[result.key] = result
        clock.now += next(s for kind, s in seconds.items() if result.key.startswith(kind))
    return comparison


def test_without_time_for_a_model_the_baselines_answer(tmp_path):
    settings = CompareSettings(models="gru", budget="30s")
    each = 26.4 / len(baselines(DigitsTask()))  # the report needs 3 s, a latency 0.6 s
    comparison = run_with_clock(settings, tmp_path / "c", {"baseline": each, "speed": 0.3})
    results = collect_results(comparison)
    assert comparison.plan.models == () and not results.models
    text = build_document(comparison, results, True)["verdict"]
    best = Run.load(store_models(comparison, results)).settings.model
    assert text.startswith(f"Use {best} (accuracy 9") and "there was no time to train a model." in text
    assert build_page(comparison, results, True).verdict == text


def test_jobs_end_with_the_budget_and_what_is_done_answers(tmp_path):
    settings = CompareSettings(models="gru", budget="60s")
    comparison = run_with_clock(settings, tmp_path / "c", {"baseline-majority": 5.0, "baseline-logistic": 60.0})
    results = collect_results(comparison)
    assert comparison.is_out_of_time and comparison.plan is None and len(results.baselines) == 2
    assert [row.name for row in results.rows if row.left_out] == ["MiniROCKET + ridge", "gru"]
    text = build_document(comparison, results, True)["verdict"]
    assert text.startswith("Use logistic regression (accuracy 9")
    assert text.endswith("there was no time to train a model. --budget 2m would leave time to train models.")
    assert store_models(comparison, results) is not None


def test_without_time_for_any_job_the_simplest_baseline_answers(tmp_path):
    comparison = start_comparison(None, {}, CompareSettings(models="gru", budget="1s"), tmp_path / "c")
    comparison.clock = lambda: comparison.end
    assert not list(runner.run(comparison.jobs(), runner.Here(), tmp_path / "jobs", None, comparison.seconds_for_jobs))
    for result in score_quick_baselines(comparison):
        comparison.results[result.key] = result
    results = collect_results(comparison)
    assert [row["model"] for row in build_leaderboard(results)] == ["majority *"]
    assert "only majority (accuracy 1" in build_document(comparison, results, True)["verdict"]
    assert Run.load(store_models(comparison, results)).settings.model == "majority"
    assert not list(score_quick_baselines(comparison))  # once


@pytest.mark.slow
def test_on_a_machine_that_becomes_slower_the_last_trainings_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "SPEED_SECONDS", 0.0)
    monkeypatch.setattr(Search, "_make_plan", lambda self: plan_steps(tuple(self.speeds), 9, 2, 1))
    settings = CompareSettings(models="rnn,gru", budget="10m", seeds=2, tune=1)
    slow = {"baseline": 1.0, "speed": 1.0, "latency": 1.0, "": 200.0}
    comparison = run_with_clock(settings, tmp_path / "c", slow)
    results = collect_results(comparison)
    assert (comparison.skipped or comparison.is_out_of_time) and comparison.clock() < comparison.end + 200
    assert 0 < sum(row.seeds for row in results.models) < 4
    assert "Use " in build_document(comparison, results, True)["verdict"]


def test_a_rung_stops_when_its_time_is_up(tmp_path, monkeypatch):
    task = DigitsTask()
    settings = TrainSettings(model="rnn", hidden=8, batch=64, steps=9, validate_every=9)
    run = Run.create(tmp_path / "run", settings, task)
    now = iter(range(100))
    monkeypatch.setattr(rung.time, "time", lambda: float(next(now)))
    training = Rung(task, run, 9, Deadline(at=10.0, valid=2.0, test=3.0))
    training.train()
    assert training.is_cut and 0 < training.at.step < 9 and training.at.validated == training.at.step
    assert run.checkpoint("best").facts["step"] == training.at.step


@pytest.mark.parametrize("command", ["folder", "baseline"])
def test_a_comparison_replaces_no_folder_of_the_user(tmp_path, command):
    (tmp_path / {"folder": "gru", "baseline": "majority"}[command]).mkdir()
    with pytest.raises(ValueError, match="exists; choose another folder"):
        start_comparison(None, {}, CompareSettings(models="gru"), tmp_path)
    assert not (tmp_path / "compare.json").exists()


@pytest.mark.slow
def test_only_the_json_document_is_printed_to_stdout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "Processes", lambda _: runner.Here())
    monkeypatch.setattr("seqloom.lab.compare.execution.describe_result", lambda *_: print("a machine died") or "")
    assert compare(settings=CompareSettings(models="rnn", steps=9, seeds=1, tune=1), out=tmp_path / "c", json=True) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["finished"] and "a machine died" in err


@pytest.mark.slow
def test_tuning_tries_what_optuna_proposes(tmp_path):
    comparison = run_jobs(
        start_comparison(None, {}, CompareSettings(models="rnn", steps=9, seeds=1, tune=5), tmp_path / "c")
    )
    trials = comparison.trials["rnn"]
    assert len(trials) == 5 and len({t.key for t in trials}) >= 4
    assert collect_results(comparison).models[0].lr == min(trials, key=comparison.rank_of).settings.lr


def test_the_broken_cell_is_not_registered():
    assert "Broken" not in Cell.registry


@pytest.mark.slow
def test_baselines_are_ranked_when_no_model_can_be_trained(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    comparison = run_jobs(start_comparison(None, {}, CompareSettings(models=f"{file}:Broken", steps=9), tmp_path / "c"))
    results = collect_results(comparison)
    assert [r.note for r in results.rows if not r.baseline] == ["failed: RuntimeError: a step that fails"]
    text = build_document(comparison, results, True)["verdict"]
    assert text.startswith("Use ") and text.endswith("%): no model was trained to the end.")

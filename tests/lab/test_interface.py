"""compare, advise, train and load in Python give what the commands give, and show it in a notebook."""

import json
import sys
from types import ModuleType

import nbclient
import nbformat
import polars as pl
import pytest

import seqloom
from seqloom.cli import main
from seqloom.core.errors import UserError
from seqloom.lab.compare import timing
from seqloom.lab.data import task as frames
from seqloom.lab.jobs import runner

TEXTS = [f"{word} film {n}" for n in range(40) for word in ("good", "bad")]
FILMS = pl.DataFrame({"text": TEXTS, "stars": ["five", "one"] * 40})
WORK = {"models": "gru", "steps": 6, "seeds": 1, "folds": 1, "workers": 1}  # a budget by work, not by time
NEW = pl.DataFrame({"text": ["a good film", "a bad film"]})


@pytest.fixture(scope="module", autouse=True)
def _jobs_here():
    """Run jobs in this process, since a worker takes seconds to start, and time few predictions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Processes", lambda _: runner.Here())
        patch.setattr(timing, "LATENCY_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison of the films as a DataFrame."""
    return seqloom.compare(FILMS, target="stars", out=tmp_path_factory.mktemp("films") / "frame", **WORK)


def read_scores(document):
    return [(row["name"], row["valid"], row["test"] and row["test"]["mean"]) for row in document["rows"]]


@pytest.mark.slow
def test_a_file_a_frame_and_the_command_give_the_same_verdict_and_scores(compared, tmp_path):
    FILMS.write_csv(tmp_path / "films.csv")
    flags = [word for name, value in WORK.items() for word in (f"--{name}", str(value))]
    words = ["compare", str(tmp_path / "films.csv"), "--target", "stars", *flags, "--out", str(tmp_path / "command")]
    with pytest.raises(SystemExit) as done:
        main.main(words)
    assert done.value.code == 0
    by_command = json.loads((tmp_path / "command" / "study.json").read_text())
    by_file = seqloom.compare(tmp_path / "films.csv", target="stars", out=tmp_path / "file", **WORK)
    for one in (compared, by_file):
        assert read_scores(one.document) == read_scores(by_command)
        assert one.document["recommended"] == by_command["recommended"]


@pytest.mark.slow
def test_a_comparison_has_a_table_a_page_and_models_that_predict_frames(compared):
    assert isinstance(compared.table, pl.DataFrame)
    rows = compared.table.filter("is_recommended")
    assert len(rows) == 1 and "gru" in " ".join(compared.table["model"])
    results = compared.best.predict(NEW, probabilities=True)
    assert results.columns == ["prediction", "probability", "probability_five", "probability_one"]
    assert results["probability_five"].to_list() == pytest.approx([1 - p for p in results["probability_one"]])
    assert compared.page.is_file() and compared.verdict in repr(compared)
    assert compared.verdict.partition("<")[0] in compared._repr_html_() and "<td>" in compared._repr_html_()
    assert compared.load("gru").settings.model == "gru"
    with pytest.raises(UserError, match="holds no model 'lstm'; it holds "):
        compared.load("lstm")


@pytest.mark.slow
def test_a_stored_comparison_is_loaded_and_is_not_started_again_in_its_folder(compared):
    again = seqloom.load(compared.folder)
    assert again.document == compared.document and again.best.folder == compared.best.folder
    with pytest.raises(UserError, match="already holds a comparison; give resume=True, or another folder"):
        seqloom.compare(FILMS, target="stars", out=compared.folder, **WORK)
    assert seqloom.compare(out=compared.folder, resume=True).document["rows"] == compared.document["rows"]


@pytest.mark.slow
def test_advice_has_a_sentence_a_table_and_commands():
    advice = seqloom.advise(FILMS, seconds=4, models="gru,rnn", target="stars")
    assert set(advice.table["model"]) >= {"gru", "rnn"} and len(advice.facts) > 3
    assert advice.sentence in advice._repr_html_() and advice.sentence in repr(advice)
    assert any(command.startswith("seqloom compare DATA") for command in advice.commands)


@pytest.mark.slow
def test_a_trained_run_is_loaded_from_its_folder(tmp_path):
    run = seqloom.train(FILMS, "rnn", target="stars", hidden=8, epochs=1, out=tmp_path / "films")
    assert run.folder == tmp_path / "films" and seqloom.load(run.folder).settings.model == "rnn"
    assert seqloom.load(run.folder).predict(NEW).columns == ["prediction", "probability"]
    assert run.predict(["a good film"])[0].keys() == {"prediction", "probability"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: seqloom.compare(FILMS, targt="stars"), "no setting 'targt'; did you mean 'target'"),
        (lambda: seqloom.compare(FILMS, seeds=0), "seeds must be at least 1, got 0"),
        (lambda: seqloom.advise(FILMS, seconds=1), "seconds must be between 4 and 3600, got 1"),
        (lambda: seqloom.load("nowhere"), "nowhere is not a run: there is no such folder"),
    ],
)
def test_a_mistake_is_named(call, says):
    with pytest.raises(UserError, match=says):
        call()


def test_a_table_has_the_library_of_the_data_or_that_of_pandas_if_it_is_installed(monkeypatch):
    class DataFrame(dict):
        pass

    pandas = ModuleType("pandas")
    pandas.DataFrame = DataFrame
    rows = [{"a": 1}, {"a": 2, "b": "x"}]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert frames.make_frame(rows) == DataFrame(a=[1, 2], b=[None, "x"])
    assert frames.make_frame(rows, like=DataFrame()) == DataFrame(a=[1, 2], b=[None, "x"])
    assert isinstance(frames.make_frame(rows, like=FILMS), pl.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert frames.make_frame(rows).to_dicts() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


NOTEBOOK = [
    "from seqloom.lab.jobs import runner\nrunner.Processes = lambda _: runner.Here()",
    f"import polars as pl, seqloom\nfilms = pl.DataFrame({FILMS.to_dict(as_series=False)!r})",
    f"compared = seqloom.compare(films, target='stars', out='films', **{WORK!r})",
    "compared",
    f"compared.best.predict(pl.DataFrame({NEW.to_dict(as_series=False)!r}), probabilities=True)",
    "import torch\nseqloom.explain(seqloom.GRU(4, 8), torch.randn(5, 3, 4))",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_shows_a_progress_bar_a_table_and_predictions(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in NOTEBOOK])
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    _, _, bar, table, predictions, kernels = (cell.outputs for cell in notebook.cells)
    assert any("<progress" in output["data"]["text/html"] for output in bar if "data" in output)
    assert "<td>gru" in table[0]["data"]["text/html"] and (tmp_path / "films" / "report.html").is_file()
    assert "probability_five" in predictions[0]["data"]["text/html"]
    assert "gru_" in kernels[0]["data"]["text/html"] and "Choice(" not in kernels[0]["data"]["text/plain"]

"""From a file to a model that is used, by commands alone."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib

import pytest
import torch

from seqloom.cli import main
from seqloom.core.cache import cache_home
from seqloom.lab.data.description import tabulate_columns
from seqloom.lab.data.registry import open_task
from seqloom.lab.files import sealed
from seqloom.lab.training.output import write_results
from seqloom.lab.training.run import Run

SMALL = ["--hidden", "8", "--embedding", "8", "--epochs", "2", "--batch", "8"]
GOOD, BAD = ("a fine and lovely film", "what a good story"), ("a dull and boring film", "what a bad story")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a folder with reviews and a run trained on them, by commands."""
    place = tmp_path_factory.mktemp("lab")
    (place / "reviews.csv").write_text(
        "id,text,label\n" + "".join(f"{n},{(GOOD, BAD)[n % 2][n % 4 // 2]} {n % 7},{'+-'[n % 2]}\n" for n in range(60))
    )
    before = os.environ.get("SEQLOOM_CACHE")
    os.environ["SEQLOOM_CACHE"] = str(place / "cache")
    yield place
    os.environ.pop("SEQLOOM_CACHE")
    if before is not None:
        os.environ["SEQLOOM_CACHE"] = before


@pytest.fixture
def here(capsys, monkeypatch, folder):
    """Return a function that runs a command in that folder: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)
    monkeypatch.chdir(folder)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def trained(folder, here):
    if not (folder / "runs" / "reviews-gru").exists():
        code, _, err = here("train", "reviews.csv", *SMALL, "--lr", "0.03")
        assert code == 0, err
    return "reviews-gru"


def test_look_prints_the_columns_and_what_can_be_learned(here):
    code, out, err = here("look", "reviews.csv")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["text", "text", "input"] in [line[:3] for line in lines]
    assert "classify, words" in out and "2 classes: +, -" in out
    code, out, _ = here("look", "reviews.csv", "--json")
    document = json.loads(out)
    assert (document["kind"], document["uses"]) == ("classify", {"label": "target", "text": "input"})


def test_the_columns_are_rows_of_a_table_for_the_page(folder):
    task = open_task(folder / "reviews.csv")
    columns = tabulate_columns(task.columns)
    assert [row["column"] for row in columns] == ["id", "text", "label"]
    assert columns[1] == {
        "column": "text",
        "type": "text",
        "used as": "input",
        "distinct": 28,
        "missing": 0,
        "example": "a fine and lovely film 0",
    }


def test_look_shows_the_columns_of_a_file_that_allows_two_tasks(here, folder):
    row = {"tokens": ["a", "b"], "slots": ["X", "O"], "intent": "ask"}
    lines = [row | {"intent": ("ask", "tell")[n % 2], "tokens": ["a", f"b{n}"]} for n in range(20)]
    (folder / "two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = here("look", "two.jsonl")
    assert code == 2
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["tokens", "tokens"],
        ["slots", "tags"],
        ["intent", "label"],
    ]
    first, *commands = err.splitlines()
    assert "more than one task is possible" in first
    assert commands == [
        "seqloom look two.jsonl --input tokens --target slots --kind tag",
        "seqloom look two.jsonl --input tokens --target intent --kind classify",
    ]


def test_columns_are_separated_by_commas_or_given_one_by_one(here, folder):
    (folder / "table.csv").write_text("a,b,c\n" + "".join(f"{n}.5,{n * n % 7}.25,{n % 3}.1\n" for n in range(300)))
    for words in (["--input", "a,b"], ["--input", "a", "--input", "b"]):
        words += ["--target", "a", "--kind", "forecast", "--lookback", "8", "--horizon", "2"]
        code, out, err = here("look", "table.csv", *words, "--json")
        assert code == 0, err
        assert json.loads(out)["input"]["names"] == ["a", "b"]


def test_init_writes_a_file_that_train_reads(here, folder):
    code, out, err = here("init", "reviews.csv", "--model", "rnn", "--min-count", "1")
    assert code == 0 and "text" in out
    assert "seqloom train --config reviews.toml" in err
    text = (folder / "reviews.toml").read_text()
    settings = tomllib.loads(text)
    wanted = {"data": "reviews.csv", "input": ["text"], "target": ["label"], "kind": "classify"}
    assert settings == wanted | {"model": "rnn", "min_count": 1}
    assert "# hidden = 128" in text and "# Hidden size of the layer." in text
    assert "already exists" in here("init", "reviews.csv")[2]

    code, out, err = here("train", "--config", "reviews.toml", *SMALL, "--out", "runs/by_file", "--json")
    assert code == 0, err
    run = Run.load(folder / "runs" / "by_file")
    assert (run.settings.model, run.settings.hidden) == ("rnn", 8)
    assert run.task.encoding.options.min_count == 1
    assert json.loads(out)["test"]["accuracy"] >= 0


def test_every_commented_setting_is_valid_when_the_mark_is_removed(here, folder):
    here("init", "reviews.csv", "--out", "all.toml")
    lines = (folder / "all.toml").read_text().splitlines()
    settings = [line[2:] if line.startswith("# ") and " = " in line and "`" not in line else line for line in lines]
    body = "\n".join(line for line in settings if not line.startswith("#"))
    assert len(tomllib.loads(body)) > 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = "reviews.csv"\nmodle = "gru"\n', "wrong.toml: no setting 'modle'; did you mean 'model'?"),
        ('data = "reviews.csv"\nhidden = 0\n', "hidden must be at least 1"),
        ("data = \n", "wrong.toml: Invalid value"),
        ('model = "gru"\n', "give the data to train on"),
    ],
)
def test_a_settings_file_that_is_wrong_is_one_line(here, folder, text, message):
    (folder / "wrong.toml").write_text(text)
    code, out, err = here("train", "--config", "wrong.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "no such settings file" in here("train", "--config", "nowhere.toml")[2]


def test_train_prints_results_on_stdout_and_the_rest_on_stderr(here, folder, trained):
    code, out, err = here("train", "reviews.csv", *SMALL)
    assert code == 0
    assert any(line.startswith("accuracy") for line in out.splitlines())
    assert "training" not in out and "training gru in runs/reviews-gru-2" in err
    assert "seqloom predict runs/reviews-gru-2 FILE" in err
    shutil.rmtree(folder / "runs" / "reviews-gru-2")


def test_a_task_by_name_takes_its_own_options(here, folder):
    words = ["--task.steps", "12", "--steps", "3", "--hidden", "4", "--out", "runs/sums"]
    code, out, err = here("train", "adding", *words, "--json")
    assert code == 0, err
    assert Run.load(folder / "runs" / "sums").record["source"]["options"] == {"steps": 12}
    assert json.loads(out)["steps"] == 3


def test_predict_reads_a_file_or_standard_input_and_writes_json_or_csv(here, folder, trained, monkeypatch):
    (folder / "new.csv").write_text("id,text\n7,a fine and lovely film\n8,a dull and boring film\n")
    code, out, err = here("predict", trained, "new.csv")
    assert (code, err) == (0, "")
    predictions = [json.loads(line) for line in out.splitlines()]
    assert [r["prediction"] for r in predictions] == ["+", "-"]
    assert all(0.5 <= r["probability"] <= 1 for r in predictions)

    monkeypatch.setattr(sys, "stdin", io.StringIO("a fine and lovely film\na dull and boring film\n"))
    assert here("predict", trained, "-")[1] == out
    code, table, err = here("predict", trained, "new.csv", "--keep", "id", "--format", "csv", "--probabilities")
    assert table.splitlines()[0] == "id,prediction,probability,probabilities:+,probabilities:-"
    assert [line.split(",")[:2] for line in table.splitlines()[1:]] == [["7", "+"], ["8", "-"]]
    code, none, err = here("predict", f"runs/{trained}", "new.csv", "--out", "out.csv")
    assert (code, none, err) == (0, "", "2 results written to out.csv\n")
    assert (folder / "out.csv").read_text().splitlines()[0] == "prediction,probability"


def test_standard_input_in_a_format_is_cached_while_it_is_read(here, folder, trained, monkeypatch):
    text = b"text\na fine and lovely film\na dull and boring film\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    code, out, err = here("predict", trained, "-", "--stdin", "csv")
    assert (code, err) == (0, "")
    assert [json.loads(line)["prediction"] for line in out.splitlines()] == ["+", "-"]
    assert not [path for path in cache_home().iterdir() if path.name.startswith(".")]


def test_results_never_overwrite_the_input_file(here, folder, trained):
    text = "id,text\n7,a fine and lovely film\n"
    (folder / "mine.csv").write_text(text)
    for out in ("mine.csv", "./runs/../mine.csv"):
        code, _, err = here("predict", trained, "mine.csv", "--out", out)
        assert code == 2 and "is the input file and would be overwritten" in err
    assert (folder / "mine.csv").read_text() == text


def test_results_are_written_through_links_and_pipes_without_replacing_them(folder):
    (folder / "to").mkdir()
    (folder / "latest.jsonl").symlink_to(folder / "to" / "real.jsonl")
    write_results([{"a": 1}], folder / "latest.jsonl")
    assert (folder / "latest.jsonl").is_symlink() and (folder / "to" / "real.jsonl").read_text() == '{"a": 1}\n'
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_results([{"a": 2}], folder / "pipe", "jsonl")
    assert (os.read(reader, 100), (folder / "pipe").is_fifo()) == (b'{"a": 2}\n', True)
    os.close(reader)
    with pytest.raises(ValueError, match="a folder; name a file in it"):
        write_results([], folder / "to", "csv")


def test_an_empty_text_is_a_warning_and_no_prediction(here, folder, trained):
    (folder / "gap.jsonl").write_text('{"text": "a fine film"}\n{"text": ""}\n')
    code, out, err = here("predict", trained, "gap.jsonl")
    assert code == 0
    assert json.loads(out.splitlines()[1]) == {"prediction": None, "probability": None}
    assert err == "warning: empty inputs: 1 of 2 (first: row 2); they have no prediction\n"


def test_evaluate_prints_scores_with_intervals(here, folder, trained):
    code, out, err = here("evaluate", trained)
    assert code == 0 and "95% interval" in out and "9 examples of reviews" in err
    (folder / "more.csv").write_text("text,label\na fine and lovely film,+\na dull film,?\n")
    code, out, err = here("evaluate", trained, "more.csv", "--json")
    assert json.loads(out)["metrics"]["accuracy"] == 0.5
    assert err.startswith(
        "warning: rows of 'test' with a label that does not occur in training: 1 (first: more.csv: row 2, '?')"
    )


def test_runs_lists_readable_and_unreadable_runs(here, folder, trained):
    shutil.copytree(folder / "runs" / trained, folder / "runs" / "newer")
    file = folder / "runs" / "newer" / "run.json"
    file.write_bytes(sealed.dumps(sealed.loads(file.read_bytes(), file, 1) | {"format": 99}))
    rows = {row["run"]: row for row in json.loads(here("runs", "--json")[1])}
    assert rows[trained]["state"] == "finished (epochs)" and rows[trained]["metric"] == "accuracy"
    assert "written by a newer seqloom" in rows["newer"]["state"]
    assert trained in here("runs")[1]
    shutil.rmtree(folder / "runs" / "newer")


def test_the_table_of_runs_fits_80_columns_with_the_state_beside_its_run(here, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, err = here("runs")
    line = next(line for line in out.splitlines() if line.startswith(trained))
    assert line.endswith(" finished") and max(map(len, out.splitlines())) <= 80
    assert "left out, since the terminal is narrow: epochs" in err and "validation" in out.splitlines()[0]


def test_a_language_model_generates_and_a_translator_translates(here, folder, monkeypatch):
    (folder / "long.txt").write_text("to be or not to be\n" * 150)
    assert here("train", "long.txt", *SMALL, "--lookback", "16", "--out", "runs/long")[0] == 0
    code, out, _ = here("generate", "long", "--prompt", "to ", "--length", "9", "--seed", "3")
    assert code == 0 and out.startswith("to ") and len(out) == 13
    again = here("generate", "long", "--prompt", "to ", "--length", "9", "--seed", "3", "--json")[1]
    assert json.loads(again) == {"prompt": "to ", "text": out[:-1]}
    (folder / "pairs.tsv").write_text("en\tde\n" + "".join(f"word {n}\tWort {n}\n" for n in range(40)))
    words = ["--input", "en", "--target", "de", "--kind", "translate", "--no-near-duplicates", "--out", "runs/pairs"]
    assert here("train", "pairs.tsv", *SMALL, *words)[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("word 1\n\nword 2\n"))
    code, out, _ = here("translate", "pairs", "--max-length", "5")
    assert code == 0 and len(out.splitlines()) == 3 and out.splitlines()[1] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "reviews.csv", "--model", "gur"], "there is no layer 'gur'; did you mean 'gru'?"),
        (
            ["train", "review.csv"],
            "'review.csv' is neither a file, nor a folder, nor a task; did you mean 'reviews.csv'?",
        ),
        (["train", "adding", "--epochs", "2"], "give steps instead of epochs"),
        (["train", "reviews.csv", "--input", "txet"], "no column 'txet'; did you mean 'text'?"),
        (["train", "empty.csv"], "empty.csv: the file is empty"),
        (["train", "reviews.csv", "--batch", "2", "--tokens", "9"], "give one of batch and tokens, got batch=2"),
        (["train", "reviews.csv", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["train", "--resume", "--out", "runs/nothing"], "there is no run 'runs/nothing'"),
        (["train"], "give the data to train on"),
        (["predict", "reviews-gur", "reviews.csv"], "there is no run 'reviews-gur'; did you mean 'reviews-gru'?"),
        (["predict", "reviews-gru", "nowhere.csv"], "nowhere.csv: no such file"),
        (["predict", "reviews-gru", "empty.csv"], "empty.csv: the file is empty"),
        (["predict", "reviews-gru", "other.csv"], "other.csv: row 1: no column 'text'; did you mean 'txt'?"),
        (["predict", "reviews-gru", "reviews.csv", "--keep", "nr"], "reviews.csv: row 1: no column 'nr' to keep"),
        (["predict", ".", "reviews.csv"], ". is not a run: it has no run.json"),
        (["evaluate", "reviews-gru", "other.csv"], "no column 'text'; the columns are txt"),
        (["evaluate", "reviews-gru", "--split", "dev"], "there is no split 'dev'; there are train, valid, test"),
        (["generate", "reviews-gru"], "was trained to classify, not to generate"),
        (["translate", "reviews-gru", "reviews.csv"], "was trained to classify, not to translate"),
        (["runs", "nowhere"], "nowhere: no such folder of runs"),
        (["look", "nowhere"], "one of the tasks adding, copy"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(here, folder, trained, words, message):
    (folder / "empty.csv").touch()
    (folder / "other.csv").write_text("txt\nhello\n")
    before = sorted((folder / "runs").iterdir())
    code, out, err = here(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.splitlines()[-1].startswith("seqloom: ") and "Traceback" not in err
    assert sorted((folder / "runs").iterdir()) == before


def test_a_truncated_checkpoint_is_reported_in_one_line(here, folder, trained):
    shutil.copytree(folder / "runs" / trained, folder / "runs" / "cut")
    weights = folder / "runs" / "cut" / "best" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    code, out, err = here("predict", "cut", "reviews.csv")
    assert code == 0 and len(out.splitlines()) == 60
    assert err.startswith("warning: ") and "using last/" in err and err.count("\n") == 1
    shutil.rmtree(folder / "runs" / "cut" / "last")
    code, out, err = here("predict", "cut", "reviews.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "weights.safetensors is damaged" in err
    shutil.rmtree(folder / "runs" / "cut")


@pytest.mark.slow
def test_ctrl_c_exits_with_130_and_the_run_can_be_resumed(here, folder, warm_python):
    words = ["train", "adding", "--task.steps", "10", "--steps", "40", "--hidden", "4", "--out", "runs/cut_short"]
    code = f"""
import os, signal
from seqloom.cli import main
from seqloom.lab.training import loop
validate = loop.Training._validate
def interrupted(self):
    validate(self)
    if self.at.step >= 12:
        os.kill(os.getpid(), signal.SIGINT)
loop.Training._validate = interrupted
main.main({words!r})
"""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = warm_python.run(code, cwd=folder, env=env)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "interrupted; continue with: seqloom train --resume --out runs/cut_short"
    assert not done.stdout and "Traceback" not in done.stderr
    assert next(r for r in json.loads(here("runs", "--json")[1]) if r["run"] == "cut_short")["state"] == "unfinished"

    assert "trained with hidden=4, not 5" in here("train", "--resume", "--out", "runs/cut_short", "--hidden", "5")[2]
    assert here("train", "--resume", "--out", "runs/cut_short")[0] == 0
    words[-2:] = "--name", "at_once"  # hidden from the help, still accepted
    assert here(*words)[0] == 0
    one, other = (Run.load(folder / "runs" / name) for name in ("cut_short", "at_once"))
    weights = [run.checkpoint("last").tensors("weights") for run in (one, other)]
    assert one.finished == other.finished == "steps"
    assert all(bool((weights[0][key] == weights[1][key]).all()) for key in weights[1])


def test_the_commands_without_torch_still_start_without_it():
    code = "import sys; from seqloom.cli import main; assert not {'torch', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_without_a_result_give_exit_code_3(here, trained, folder, monkeypatch):
    run = Run.load(folder / "runs" / trained)
    model = run.model()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(float("nan"))
    monkeypatch.setattr(Run, "model", lambda *_, **__: model)
    (folder / "odd.csv").write_text("id,text\n1,a fine film\n2,\n")
    code, out, err = here("predict", trained, "odd.csv", "--keep", "id")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert code == 3 and rows[0]["prediction"] is None and "NaN or infinity" in rows[0]["error"]
    assert "error" not in rows[1]  # an empty text is valid
    assert "rows without a result: 1 of 2 (first: odd.csv: row 1)" in err
    code, out, _ = here("predict", trained, "odd.csv", "--format", "csv")
    assert code == 3 and [row["prediction"] for row in csv.DictReader(io.StringIO(out))] == ["", ""]

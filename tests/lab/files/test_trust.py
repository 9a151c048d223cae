"""Code that came with a folder is not executed, unless its user says so."""

import json
import os
import py_compile
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from research.studies.support.replay import restore_study
from seqloom.cli import main
from seqloom.lab.compare.rung import train_rung
from seqloom.lab.compare.timing import measure_latency
from seqloom.lab.data.pipeline import files
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.registry import open_data, open_task
from seqloom.lab.export.hub_folder import read_hub_folder
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.files.trust import UntrustedError, digest, remember
from seqloom.lab.jobs import runner
from seqloom.lab.kinds import decision
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.serve.model_version import load_version
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.training.output import write_results
from seqloom.lab.training.predict import generate
from seqloom.lab.training.results import tabulate_runs
from seqloom.lab.training.run import Run
from seqloom.lab.training.train import train
from witness import CELL, WITNESS

SETTINGS = {"hidden": 4, "steps": 2, "batch": 4, "device": "cpu", "validate_every": 1}


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main.main([*map(str, words)])
    return ended.value.code


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Return a function that acts as another machine, which trusts no code; it reports if code is executed."""
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "mine"))

    def change():
        monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "theirs"))
        monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
        return tmp_path / "witness"

    return change


@pytest.fixture
def run(tmp_path, elsewhere):
    """Return a run of a user's cell, whose file was then removed."""
    (tmp_path / "mine.py").write_text(CELL)
    task, source = open_data("adding", {"steps": 5, "valid": 8, "test": 8})
    made = train(task, TrainSettings(model=f"{tmp_path / 'mine.py'}:Mine", **SETTINGS), tmp_path / "run", source=source)
    (tmp_path / "mine.py").unlink()
    return made


def test_a_run_made_here_by_this_user_needs_no_flag(run):
    assert Run.load(run.folder).model() is not None
    assert run.record["cell"]["sha256"] == digest(CELL.encode())


def test_a_run_from_elsewhere_is_not_executed(run, elsewhere):
    witness = elsewhere()
    with pytest.raises(UntrustedError, match=r"would execute the Python code in .*cell\.py .*trust=True"):
        Run.load(run.folder).model()
    assert not witness.exists()
    assert Run.load(run.folder, trust=True).model() is not None
    assert witness.exists()


def test_a_run_from_elsewhere_is_not_resumed(run, elsewhere):
    witness = elsewhere()
    shutil.rmtree(run.folder / "last")
    task = open_task("adding", steps=5, valid=8, test=8)
    with pytest.raises(UntrustedError):
        train(task, None, run.folder, resume=True)
    assert not witness.exists()
    train(task, None, run.folder, resume=True, trust=True)
    assert witness.exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("command_name", "task_name"),
    [("predict", "adding"), ("evaluate", "adding"), ("generate", "text"), ("translate", "pairs")],
)
def test_the_commands_say_what_would_be_executed(command_name, task_name, tmp_path, elsewhere, capsys, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(CELL)
    (tmp_path / "text.txt").write_text("\n".join(f"word{i * i % 17}" for i in range(400)))
    pairs = [{"de": f"ein wort{i} und wort{i * 7 % 40}", "en": f"a word{i} and word{i * 7 % 40}"} for i in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    data, options = {
        "adding": ("adding", {"steps": 5, "valid": 8, "test": 8}),
        "text": (str(tmp_path / "text.txt"), {"unit": "characters", "lookback": 8}),
        "pairs": (str(tmp_path / "pairs.jsonl"), {"kind": "translate", "input": ("de",), "target": ("en",)}),
    }[task_name]
    task, source = open_data(data, options)
    settings = TrainSettings(model=f"{tmp_path / 'mine.py'}:Mine", embedding=4, **SETTINGS)
    made = train(task, settings, tmp_path / "run", source=source)
    rows = tmp_path / "rows.txt"
    rows.write_text(json.dumps([[0.5, 1.0], [0.1, 0.0]]) if task_name == "adding" else "ein wort1 und wort2")
    words = [command_name, made.folder, *([rows] if command_name in ("predict", "translate") else [])]
    witness = elsewhere()
    assert command(*words) == 2 and not witness.exists()
    told = capsys.readouterr().err
    assert "would execute the Python code in" in told and "--trust" in told and told.count("\n") == 1
    command(*words, "--trust")
    assert witness.exists()


def test_a_model_named_by_a_changed_run_file_is_not_executed(tmp_path, elsewhere):
    """As a folder made by hand: "model": "evil.py:X" without a copy of that file."""
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, TrainSettings(model="gru", **SETTINGS), tmp_path / "run")
    witness = elsewhere()
    (tmp_path / "evil.py").write_text(CELL)
    file = made.folder / "run.json"
    record = sealed.loads(file.read_bytes(), file, 1)
    record["settings"]["model"] = f"{tmp_path / 'evil.py'}:Mine"
    file.write_bytes(sealed.dumps(record))
    for trusted in (False, True):
        with pytest.raises(ValueError, match=r"its copy of that file .* is missing"):
            Run.load(made.folder, trust=trusted).model()
    (made.folder / "cell.py").write_text(CELL)
    record["cell"] = {"file": "evil.py", "sha256": "0" * 64}
    file.write_bytes(sealed.dumps(record))
    with pytest.raises(ValueError, match=r"cell\.py is damaged"):
        Run.load(made.folder, trust=True).model()
    assert not witness.exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["run.json", "task/task.json", "best/state.json", "best/weights.safetensors"])
def test_a_flipped_bit_is_reported_and_never_changes_a_prediction(tmp_path, name):
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, TrainSettings(model="gru", **SETTINGS), tmp_path / "run")
    shutil.rmtree(made.folder / "last")  # nothing to fall back to
    x = task.encode([[[0.5, 1.0], [0.1, 0.0]]])
    before = Run.load(made.folder).model().predict(x).values
    file = made.folder / name
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 97)):
        for bit in (0, 3):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            told = ""
            try:
                run = Run.load(made.folder)
                assert run.task is not None
                after = run.model().predict(x).values
            except ValueError as error:
                told = str(error)
            if told:
                assert "damaged" in told and file.name in told
            else:  # white space
                assert torch.equal(after, before)
    file.write_bytes(whole)


@pytest.mark.parametrize("line", [b"null", b"[]", b"3", b"{", b'{"step": "x"}', b"[" * 5000])
def test_a_damaged_line_of_metrics_is_reported_and_other_runs_are_listed(tmp_path, line):
    task = open_task("adding", steps=5, valid=8, test=8)
    for name in ("a", "b"):
        train(task, TrainSettings(model="gru", **SETTINGS), tmp_path / name)
    file = tmp_path / "a" / "metrics.jsonl"
    file.write_bytes(line + b"\n" + file.read_bytes())
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: line 1"):
        Run.load(tmp_path / "a").metrics()
    first, second = tabulate_runs(tmp_path)
    assert "damaged" in first["state"] and second["state"] == "finished (steps)"


def test_weights_that_are_no_tensors_fall_back_to_the_other_checkpoint(tmp_path):
    """Their digest is valid, as in a forged file."""
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, TrainSettings(model="gru", **SETTINGS), tmp_path / "run")
    best = made.folder / "best"
    (best / "weights.safetensors").write_bytes(b"\xff" * 64)
    facts = sealed.loads((best / "state.json").read_bytes(), best, 1)
    facts["files"]["weights.safetensors"] = digest(b"\xff" * 64)
    (best / "state.json").write_bytes(sealed.dumps(facts))
    with pytest.warns(UserWarning, match=r"weights\.safetensors is damaged.*; using last/"):
        assert made.model() is not None


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match=r"rows\.csv is a pipe or a device"):
        open_task(tmp_path / "rows.csv")
    task = open_task("adding", steps=5, valid=8, test=8)
    made = train(task, TrainSettings(model="gru", **SETTINGS), tmp_path / "run")
    with pytest.raises(ValueError, match=r"rows\.csv is a pipe or a device"):
        made.predict(tmp_path / "rows.csv")

    def replaced(*names):
        for name in names:
            (made.folder / name).unlink()
            os.mkfifo(made.folder / name)
        return Run.load(made.folder)

    assert replaced("metrics.jsonl").metrics() == []
    with pytest.raises(ValueError, match=r"state\.json is missing or damaged"):
        replaced("best/state.json", "last/state.json").model()
    with pytest.raises(ValueError, match="not a saved task"):
        _ = replaced("task/task.json").task
    with pytest.raises(ValueError, match="not a run"):
        replaced("run.json")


def test_another_number_of_threads_is_reported_on_resume(tmp_path):
    task = open_task("adding", steps=5, valid=8, test=8)
    train(task, TrainSettings(model="gru", threads=1, **SETTINGS), tmp_path / "run")
    with pytest.warns(
        UserWarning, match=r"was trained with threads=1, and continues with 2: the order of sums changes"
    ):
        train(task, TrainSettings(model="gru", threads=2, **SETTINGS), tmp_path / "run", resume=True)


def test_a_field_that_a_spreadsheet_would_run_is_written_as_text(tmp_path):
    rows = [{"a": "=1+1", "b": -1.5}, {"a": "@x", "b": "-1.5"}, {"a": "+", "b": "-"}, {"a": "+cmd|x", "b": "plain"}]
    with pytest.warns(UserWarning, match="so that a spreadsheet does not run them"):
        write_results(rows, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "a,b\n'=1+1,-1.5\n'@x,-1.5\n+,-\n'+cmd|x,plain\n"
    write_results(rows, tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows


def test_a_run_that_a_comparison_reaches_through_a_link_is_not_executed(run, tmp_path, elsewhere):
    """The check of the folder does not follow links, so each job checks its own run."""
    witness = elsewhere()
    (tmp_path / "link").symlink_to(run.folder)
    _, source = open_data("adding", {"steps": 5, "valid": 8, "test": 8})
    with pytest.raises(UntrustedError):
        measure_latency(source, str(tmp_path / "link"), tmp_path)
    with pytest.raises(UntrustedError):
        train_rung(source, run.settings.model_dump(), str(tmp_path / "link"), 2, False, None, tmp_path)
    assert not witness.exists()


def test_a_run_file_without_settings_is_damaged(tmp_path):
    """Its digest is valid, as in a forged file."""
    (tmp_path / "run.json").write_bytes(sealed.dumps({"format": 1}))
    with pytest.raises(ValueError, match=r"run\.json is damaged: it has no settings"):
        Run.load(tmp_path)


SIBLING = CELL.replace(
    "import os\n", "import os\nimport sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport helper_of_the_cell\n"
)


def test_code_beside_a_trusted_cell_is_not_imported(run, elsewhere, tmp_path):
    """The text of a user's cell that imports what lies beside it is trusted, and the folder is a stranger's."""
    witness, evil = elsewhere(), "import os\nfrom pathlib import Path\nPath(os.environ['SEQLOOM_WITNESS']).touch()\n"
    code = SIBLING.replace("if os.environ", "if False and os.environ").encode()
    remember(code)
    (run.folder / "cell.py").write_bytes(code)
    for name in ("helper_of_the_cell.py", "torch.py", "numpy.py", "__init__.py"):
        (run.folder / name).write_text(evil)
    (run.folder / "__pycache__").mkdir()
    compile_file(tmp_path / "evil.py", evil, run.folder / "__pycache__" / f"cell.{sys.implementation.cache_tag}.pyc")
    rewrite(run.folder / "run.json", lambda record: record["cell"].update(sha256=digest(code)))
    before = list(sys.path)
    try:
        with pytest.raises(ValueError, match=r"cannot be loaded from .*cell\.py: ModuleNotFoundError: .*helper_of_the"):
            Run.load(run.folder).model()
    finally:
        sys.path[:] = before
    assert not witness.exists()


def compile_file(source, text, target):
    source.write_text(text)
    py_compile.compile(str(source), cfile=str(target), doraise=True)


def rewrite(file, change):
    """Change a sealed record and give it a valid digest, as a person may."""
    record = sealed.loads(file.read_bytes(), file, 9)
    change(record)
    file.write_bytes(sealed.dumps(record))


def test_the_copy_of_a_cell_is_read_once(run, monkeypatch):
    """The file is replaced as soon as it has been read; what was read is checked and executed."""
    read = Path.read_bytes

    def read_and_replace(path):
        content = read(path)
        if path.name == "cell.py":
            path.write_text("raise RuntimeError('read twice')")
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_replace)
    assert Run.load(run.folder).model() is not None


def test_a_served_run_does_not_execute_code_that_changed_after_the_start(run, elsewhere):
    witness = elsewhere()
    version = load_version("mine", run.folder, ServeSettings(device="cpu"), trust=True)
    assert witness.exists()
    assert load_version("mine", run.folder, ServeSettings(device="cpu"), version.trusted_code).step == version.step
    witness.unlink()
    changed = CELL.encode() + b"\nCHANGED = True\n"
    (run.folder / "cell.py").write_bytes(changed)
    rewrite(run.folder / "run.json", lambda record: record["cell"].update(sha256=digest(changed)))
    with pytest.raises(UntrustedError):
        load_version("mine", run.folder, ServeSettings(device="cpu"), version.trusted_code)
    assert not witness.exists()


@pytest.mark.slow
def test_a_process_of_a_job_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    """The command was called in a downloaded folder."""
    for name in ("torch.py", "json.py", "seqloom.py", "queue.py"):
        (tmp_path / name).write_text("from pathlib import Path\nPath('witness').touch()\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    (result,) = runner.run([runner.Job("a", "builtins:dict")], runner.Processes(1), tmp_path / "jobs")
    assert "not JSON serializable" in result.failed
    assert not (tmp_path / "witness").exists()


def test_a_large_file_is_read_without_importing_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("json.py", "seqloom.py"):
        (tmp_path / name).write_text("from pathlib import Path\nPath('witness').touch()\nraise SystemExit(3)\n")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "LARGE", 1)
    monkeypatch.setattr(files, "ENTRY", "import json; print(json.dumps({'error': 'started'}))")
    with pytest.raises(ValueError, match="started"):
        files.fill_cache("rows.csv", Reading())
    assert not (tmp_path / "witness").exists()


def test_links_in_a_run_are_refused_before_it_is_resumed(run, tmp_path):
    """metrics.jsonl is cut at the last checkpoint: through a link, another file would be."""
    (tmp_path / "letter").write_text("dear reader")
    (run.folder / "metrics.jsonl").unlink()
    (run.folder / "metrics.jsonl").symlink_to(tmp_path / "letter")
    task = open_task("adding", steps=5, valid=8, test=8)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is a link to .*letter"):
        train(task, None, run.folder, resume=True)
    assert (tmp_path / "letter").read_text() == "dear reader"


def test_the_document_of_a_study_that_names_a_file_executes_nothing(tmp_path, elsewhere):
    witness = elsewhere()
    (tmp_path / "evil.py").write_text(CELL)
    document = {
        "study": "adding",
        "protocol": "fair",
        "device": "cpu",
        "rows": [],
        "settings": {"models": [f"{tmp_path}/evil.py:Mine"]},
    }
    (tmp_path / "study.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="names the cell of a file"):
        restore_study(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize("name", ["evil.py:Mine", "bi_evil.py:Mine", "evil.py:d/evil.pyc:Mine"])
def test_an_exported_folder_that_names_a_file_executes_nothing(name, tmp_path, elsewhere):
    witness = elsewhere()
    (tmp_path / "evil.py").write_text(CELL)
    open_task("adding", steps=5, valid=8, test=8).save(tmp_path / "task")
    settings = {"model": name.replace("evil.py", str(tmp_path / "evil.py"), 1)}
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "settings": settings}))
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"never executed|write FILE\.py:CLASS"):
        read_hub_folder(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    """An empty text would look like an answer."""
    (tmp_path / "text.txt").write_text("\n".join(f"word{i * i % 17}" for i in range(400)))
    task, source = open_data(str(tmp_path / "text.txt"), {"unit": "characters", "lookback": 8})
    settings = TrainSettings(model="gru", embedding=4, **SETTINGS)
    made = train(task, settings, tmp_path / "run", source=source)
    best = made.checkpoint("best")
    weights = {name: tensor.clone() for name, tensor in best.tensors("weights").items()}
    name = next(name for name, tensor in weights.items() if tensor.dim() == 2)
    weights[name][0, 0] = value
    checkpoint.write(made.folder / "best", {"step": 2, "format": 1}, weights=weights)
    expected = rf"run: weight '{name}' has 1 of [\d,]+ values that are NaN or infinite.*train again with a smaller"
    with pytest.raises(ValueError, match=expected):
        list(generate(made, ["word"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reject", float("inf")),
        ("reject", -1),
        ("threshold", 2.0),
        ("temperature", 0),
        ("weights", [float("nan")]),
        ("positive", -1),
    ],
)
def test_a_decision_that_is_out_of_range_is_damaged(name, value, tmp_path):
    """Its digest is valid, as in a forged file; with reject=inf every row would silently have no prediction."""
    decision.save(tmp_path, decision.Decision())
    rewrite(tmp_path / "decision.json", lambda record: record.update({name: value}))
    with pytest.raises(ValueError, match=r"decision\.json is damaged"):
        decision.load(tmp_path)

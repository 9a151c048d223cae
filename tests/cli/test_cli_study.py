import json
import sys
from dataclasses import dataclass

import pytest

from research.studies import study
from research.studies.study import Study
from seqloom.cli import main


@dataclass(frozen=True)
class Size:
    rows: int = 3


@dataclass(frozen=True)
class Found:
    n: int


@pytest.fixture
def tiny(monkeypatch):
    """Register a study that takes no time."""
    monkeypatch.setattr(Study, "registry", dict(Study.registry))

    class Tiny(Study[Size, Found], name="tiny"):
        """Numbers from 0 on."""

        full, quick = Size(), Size(1)
        stop = False

        @property
        def parts(self):
            return self.settings.rows

        def run(self, before):
            for n in range(self.settings.rows):
                before(f"number {n}")
                if self.stop and n:
                    raise KeyboardInterrupt
                yield Found(n)

        def table(self, rows):
            return [{"n": row.n} for row in rows]

        def caption(self):
            return "counted"

        def verdict(self, rows):
            return f"There are {len(rows)}."

    return Tiny


@pytest.fixture
def here(capsys, monkeypatch):
    """Return a function that runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_every_study_is_listed_with_what_it_shows(here):
    code, out, err = here("study", "--list")
    assert (code, err) == (0, "")
    assert any(line.startswith("complexity ") and "longest path" in line for line in out.splitlines())
    rows = json.loads(here("study", "--list", "--json")[1])
    assert [row["study"] for row in rows] == study.list_studies()
    assert all(row["shows"].endswith(".") for row in rows)
    assert here("study")[1] == out


def test_the_table_is_on_stdout_and_the_log_on_stderr(here, tiny):
    code, out, err = here("study", "tiny")
    assert code == 0
    assert [line.strip() for line in out.split("\n\n")[0].splitlines()[2:]] == ["0", "1", "2"]
    assert out.endswith("counted\n\nThere are 3.\n\nseqloom study tiny\n")
    assert err.splitlines() == ["Found(n=0)", "Found(n=1)", "Found(n=2)"]


def test_quick_is_smaller_and_json_is_the_document(here, tiny):
    code, out, _ = here("study", "tiny", "--quick", "--json")
    document = json.loads(out)
    assert (code, document["rows"], document["settings"]) == (0, [{"n": 0}], {"rows": 1})
    assert document["command"] == "seqloom study tiny --quick"
    assert document["shows"] == "Numbers from 0 on." and document["finished"]
    assert {"date", "versions", "hardware"} <= document.keys()


def test_out_contains_a_page_a_table_and_the_document(here, tiny, tmp_path):
    code, _, err = here("study", "tiny", "--out", str(tmp_path / "new"))
    folder = tmp_path / "new" / "tiny-fair"
    assert code == 0 and str(folder / "report.html") in err
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "report.md", "study.json", "tiny.csv"]
    assert json.loads((folder / "study.json").read_text())["verdict"] == "There are 3."


def test_flags_set_the_settings_and_appear_in_the_command(here, tiny, monkeypatch):
    document = json.loads(here("study", "parameters", "--protocol", "paper", "--json")[1])
    assert document["command"] == "seqloom study parameters --protocol paper" and document["protocol"] == "paper"
    gradients = study.find_study("gradients")
    monkeypatch.setattr(gradients, "run", lambda *_: iter(()))
    words = ["study", "gradients", "--quick", "--models", "gru, rnn", "--seeds", "2", "--json"]
    document = json.loads(here(*words)[1])
    assert document["command"] == "seqloom study gradients --quick --models gru,rnn --seeds 2"
    assert (document["settings"]["models"], document["settings"]["seeds"]) == (["gru", "rnn"], 2)


def test_ctrl_c_keeps_finished_results_and_exits_with_130(here, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "stop", True)
    code, out, err = here("study", "tiny", "--json", "--out", str(tmp_path))
    document = json.loads(out)
    assert code == 130 and "interrupted" in err
    assert document["rows"] == [{"n": 0}] and not document["finished"]
    assert document["verdict"].startswith("Interrupted; preliminary results: ")
    assert json.loads((tmp_path / "tiny-fair" / "study.json").read_text()).items() >= document.items()


def test_data_sets_the_folder_that_studies_read(here, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_DATA", "elsewhere")
    code, _, err = here("study", "imdb", "--quick", "--device", "cpu", "--data", str(tmp_path))
    assert code == 2 and f"is not in {tmp_path}; set the folder that contains imdb/ with --data or SEQLOOM_DATA" in err
    code, _, err = here("study", "tiny", "--data", str(tmp_path / "none"))
    assert code == 2 and "none is not a folder; give the folder that contains imdb/" in err


def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(here, tmp_path):
    (tmp_path / "file").write_text("")
    for words, message in (
        (["complexiti"], "there is no study 'complexiti'; did you mean 'complexity'?"),
        (["xyz"], "there is no study 'xyz'; choose one of ablation, adding, applications, co"),
        (["complexity", "--out", str(tmp_path / "file")], "is a file; choose a folder"),
        (["complexity", "--quik"], "--quick"),
        (["complexity", "--protocol", "paper"], "'complexity' has no protocol 'paper'"),
        (["complexity", "--models", "gru"], "'complexity' has no setting models"),
        (["adding", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["adding", "--models", "gruu"], "did you mean 'gru'"),
        (["adding", "--effort", "nan"], "effort must be above 0 and finite, got nan"),
        (["adding", "--effort", "inf"], "effort must be above 0 and finite, got inf"),
    ):
        code, out, err = here("study", *words)
        assert (code, out) == (2, "")
        assert err.startswith("seqloom: ") and err.count("\n") == 1 and message in err


def test_a_read_only_folder_is_an_error_before_any_training(here, tiny, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("os.access", lambda place, _: asked.append(place))
    monkeypatch.setattr(tiny, "run", None)
    code, out, err = here("study", "tiny", "--out", str(tmp_path / "a" / "b"))
    assert (code, out, asked[0]) == (2, "", tmp_path) and f"{tmp_path} is not writable" in err


def test_a_model_that_is_named_twice_is_trained_once():
    assert study.find_study("adding").choose_settings(models=["gru", "rnn", "gru"]).models == ("gru", "rnn")


def test_shared_modules_are_not_listed_as_studies(here):
    assert "ledger" not in study.list_studies()
    assert here("study", "ledger")[0] == 2 and "research.studies.support.ledger" in sys.modules


def test_conditions_are_chosen_by_name_and_stand_in_the_command(here):
    from research.studies.long import Long
    from research.studies.state import State

    settings = State.choose_settings(conditions="S3,parity")
    assert [c.name for c in settings.conditions] == ["parity", "S3"]
    assert State(settings).command() == "seqloom study state --conditions parity,S3"
    spaced = State(State.choose_settings(conditions="mod 5"))
    assert spaced.command() == 'seqloom study state --conditions "mod 5"'
    one = Long.choose_settings(conditions="first symbol, T = 1,024")
    assert [c.task["T"] for c in one.conditions] == [1024]
    assert Long(one).command() == 'seqloom study long --conditions "first symbol, T = 1,024"'
    code, _, err = here("study", "state", "--conditions", "party")
    assert code == 2 and "the study has no condition 'party'; did you mean 'parity'?" in " ".join(err.split())
    code, _, err = here("study", "parameters", "--conditions", "party")
    assert code == 2 and "has no setting conditions" in " ".join(err.split())

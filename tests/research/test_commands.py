"""The evidence has one command line, one clock and one trainer, and the package does not need it."""

import re
import sys
from pathlib import Path

import pytest
import torch

from research import __main__ as commands
from research import record
from seqloom.cli import main
from seqloom.cli.commands import study

ROOT = Path(__file__).parents[2]
FILES = sorted(file for file in (ROOT / "research").rglob("*.py"))


UPDATE = "src/seqloom/lab/training/update.py"
CLOCK = r"perf_counter|monotonic|process_time|thread_time|time\.time\(|enable_timing=True"


def find(pattern, files=FILES):
    return sorted({str(file.relative_to(ROOT)) for file in files if re.search(pattern, file.read_text())})


def test_there_is_one_parser_and_one_clock():
    assert find(r"ArgumentParser\(") == ["research/record.py"]
    assert find(CLOCK) == ["research/record.py"]
    assert find(r"(?m)^def measure\(") == ["research/record.py"]
    assert find(r"__name__ == .__main__.") == ["research/__main__.py"]


def test_there_is_one_trainer():
    everything = [*FILES, *(ROOT / "src").rglob("*.py")]
    assert find(r"(optimi[sz]er|scaler|opt)\.step\(", everything) == ["research/record.py", UPDATE]
    makers = find(r"optim\.[A-Z]\w+\((?!\))", everything)
    users = find(r"\bUpdate\(|take_plain_step\(", everything)
    # the settings of a training become an optimiser in a file; a baseline fits one matrix by a rule of its own
    others = {"src/seqloom/lab/training/optimiser.py", "src/seqloom/lab/kinds/baselines/window.py"}
    assert set(makers) - set(users) == others
    assert find(r"clip_grad_norm_\(", everything) == ["research/record.py"]


def test_every_command_has_a_name_of_its_own_and_a_first_line(capsys, monkeypatch):
    found = commands.find_commands()
    assert len(found) == sum(
        "\ndef main(" in file.read_text() for file in FILES if file.parent.name in commands.FOLDERS
    )
    monkeypatch.setattr(sys, "argv", ["research"])
    assert commands.main() == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(found) and all(len(line.split()) > 2 for line in lines)


def test_a_mistyped_command_is_named_with_a_near_one(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["research", "speed_tabel"])
    assert commands.main() == 2
    assert "there is no command 'speed_tabel'; did you mean speed_table?" in capsys.readouterr().err


def test_a_record_says_how_to_repeat_it_and_a_command_starts_itself_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["python -m research calls", "--json", "a b.json"])
    assert record.describe_run()["command"] == "python -m research calls --json 'a b.json'"
    assert record.start_again() == [sys.executable, "-m", "research", "calls"]


def test_the_clock_counts_seconds_of_a_call_on_either_device(monkeypatch):
    now, calls = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = now[0]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    def call():
        calls.append(None)
        now[0] += 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for device in ("cpu", "cuda"):
        assert record.measure(call, 3, device, clock=lambda: now[0]) == 2.0
    assert len(calls) == 6
    assert record.time_best(call, 2, 4, clock=lambda: now[0]) == 2.0 and len(calls) == 16


@pytest.mark.parametrize("words", [["study", "adding", "--quick"], ["results", "--rebuild"]])
def test_without_the_repository_the_commands_say_where_studies_are(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study.errors, "__file__", str(tmp_path / "lib" / "seqloom" / "core" / "errors.py"))
    with pytest.raises(SystemExit) as done:
        main.main(words)
    message = capsys.readouterr().err
    assert done.value.code == 2 and message.count("\n") == 1
    assert (
        "studies are not part of the installed package; clone the repository, run `pip install -e '.[lab]'`" in message
    )


def test_the_package_holds_no_studies_scripts_or_page_generators():
    assert not (ROOT / "src/seqloom/lab/studies").exists() and not (ROOT / "benchmarks").exists()
    assert not list((ROOT / "docs").glob("*.py"))

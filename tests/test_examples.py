"""The scripts in examples/ run and show what they promise."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
SMALL = {  # settings of main() that take under a second
    "word_language_model": {"epochs": 1, "chunk": 100},
    "recurrent_policy": {"updates": 2, "copies": 4},
    "ppo_single_file": {"cell": "lstm", "frames": 64, "copies": 4, "steps": 8, "units": 8},
    "streaming_audio": {"steps": 1},
    "my_cell": {"steps": 2},
}
NEEDS = {
    "lightning_module": ("lightning",),
    "huggingface_trainer": ("transformers", "accelerate"),
    "skorch_grid_search": ("skorch", "sklearn"),
    "export_to_onnx": ("onnx", "onnxscript", "onnxruntime"),
    "recurrent_ppo": ("gymnasium", "stable_baselines3", "sb3_contrib"),
}
LINES = {"ppo_single_file": 180}  # at most, where it is more than 90: PPO itself is in this file
# Five seconds or more. `make test` runs the policies with small settings, and exports in tests/tools/test_onnx.py.
TAKES_LONG = {"export_to_onnx", "ppo_single_file", "recurrent_policy"}
LAST_NUMBER = {  # the range of the last number that a script prints after these words
    "word_language_model": ("perplexity", 1.5, 2.5),
    "lightning_module": ("epochs:", 0.9, 1),
    "huggingface_trainer": ("steps:", 0.9, 1),
    "skorch_grid_search": ("test accuracy", 0.9, 1),
    "recurrent_policy": ("update 80:", 0.95, 1),
    "recurrent_ppo": ("reward", 0.9, 1),
    "ppo_single_file": ("reward", 0.9, 1),
    "streaming_audio": ("difference", 0, 1e-4),
    "export_to_onnx": ("from torch", 0, 1e-4),
    "my_cell": ("error", 0, 0.05),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_script_runs_with_small_settings(name):
    runpy.run_path(str(FOLDER / f"{name}.py"))["main"](**SMALL[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other libraries warn about their own code
@pytest.mark.parametrize(
    "name", [pytest.param(s.stem, marks=pytest.mark.long if s.stem in TAKES_LONG else ()) for s in SCRIPTS]
)
def test_a_script_prints_a_good_result(name, monkeypatch, capsys):
    missing = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: run make test-examples")
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    words, low, high = LAST_NUMBER[name]
    number = re.findall(rf"{words} ([\d.e+-]+)", capsys.readouterr().out)[-1]
    assert low <= float(number) <= high


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_says_how_to_run_it(script):
    text = script.read_text()
    assert 30 <= len(text.splitlines()) <= LINES.get(script.stem, 90)
    assert f"python examples/{script.name}" in text.split('"""')[1]


def test_the_table_lists_every_script():
    listed = re.findall(r"^\| \[(\w+\.py)\]", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [script.name for script in SCRIPTS]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cell": "grru"}, "unknown cell 'grru'; did you mean 'gru'"),
        ({"back": 60}, "back=60, but an episode has 51 steps; take 0 to 50"),
        ({"export_to": Path("nowhere/policy.onnx")}, "nowhere is no folder; make it first"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_ppo_is_named_before_training(settings, message):
    with pytest.raises(ValueError, match=message):
        runpy.run_path(str(FOLDER / "ppo_single_file.py"))["main"](**settings)

"""The Dockerfile follows the rules that a linter would check, and copies what exists."""

import re
import shlex
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line.strip() and not line.startswith("#")]
LIMITS = {"serve": 900, "onnx": 250}  # MB of an image


def list_stages():
    """Return the instructions of each stage by its name."""
    stages = {}
    for word, rest in LINES:
        if word == "FROM":
            stages[rest.split(" AS ")[1]] = current = []
        elif stages:
            current.append((word, rest))
    return stages


STAGES = list_stages()


def test_both_images_run_as_a_user_without_rights():
    for name in LIMITS:
        users = [rest for word, rest in STAGES[name] if word == "USER"]
        assert users == ["10001"], name
        after = STAGES[name][[word for word, _ in STAGES[name]].index("USER") :]
        assert not [rest for word, rest in after if word in ("RUN", "COPY", "ADD")]


def test_bases_have_a_version_and_every_stage_has_a_name():
    bases = [rest.split(" AS ")[0] for word, rest in LINES if word == "FROM"]
    assert set(bases) == {"python:${PYTHON}"}
    default = dict(rest.split("=") for word, rest in LINES if word == "ARG" and "=" in rest)["PYTHON"]
    assert re.fullmatch(r"3\.\d+-slim-\w+", default)


def test_commands_are_lists_and_stop_on_sigterm():
    for name in LIMITS:
        (entry,) = [rest for word, rest in STAGES[name] if word == "ENTRYPOINT"]
        assert entry.startswith("[")
    assert ("STOPSIGNAL", "SIGTERM") in STAGES["serve"]
    assert any(word == "HEALTHCHECK" for word, _ in STAGES["serve"])


def test_packages_are_pinned_and_caches_are_left_out():
    for lines in STAGES.values():
        for _, rest in [line for line in lines if line[0] == "RUN"]:
            if "apt-get install" in rest:
                assert "--no-install-recommends" in rest
                assert "rm -rf /var/lib/apt/lists/*" in rest
            if " install --no-compile" in rest:
                assert "-c constraints.txt" in rest
                assert any(word == "ENV" and "PIP_NO_CACHE_DIR=1" in value for word, value in lines)


def test_no_secret_is_part_of_an_image():
    for word, rest in LINES:
        if word in ("ENV", "ARG"):
            assert not re.search(r"TOKEN|SECRET|PASSWORD|KEY", rest)
    assert not [rest for word, rest in LINES if word == "ADD"]


def test_copied_files_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for word, rest in LINES:
        parts = shlex.split(rest)
        if word != "COPY" or parts[0].startswith("--from") or parts[0].startswith("${"):
            continue
        for part in parts[:-1]:
            assert (ROOT / part).exists(), part
            assert f"!{part}" in ignored, part


def test_the_server_starts_without_the_rest_of_the_lab():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[>=<;\[ ]", one)[0] for one in extras["serve"]}
    assert {"fastapi", "uvicorn", "polars", "pydantic", "safetensors", "cyclopts", "rich"} <= names
    assert not names & {"scikit-learn", "scipy", "matplotlib"}  # 200 MB

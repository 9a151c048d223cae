import json

import pytest

from seqloom.cli import main


@pytest.fixture
def here(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("SEQLOOM_TRACEBACK", raising=False)
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{'good' if n % 2 else 'bad'} film number {n} of {n * 7 % 50},{'+-'[n % 2]}\n" for n in range(80))
    (tmp_path / "films.csv").write_text("text,label\n" + rows)

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_advice_is_printed_with_facts_reasons_and_commands(here):
    code, out, _ = here("advise", "films.csv", "--seconds", "4")
    assert code == 0
    for part in (
        "classify (N to 1)",
        "linear",
        "network architecture notes, section 7",
        "seqloom compare films.csv",
        "seqloom train films.csv --",
    ):
        assert part in out


@pytest.mark.slow
def test_advice_is_one_json_document(here):
    code, out, err = here("advise", "recall", "--task.steps", "8", "--seconds", "4", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["facts"]["examples"] is None and document["facts"]["information"]["reach"] == 7
    assert any("--task.steps 8" in line for line in document["commands"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["film.csv"], "did you mean 'films.csv'?"),
        (["films.csv", "--target", "labl"], "did you mean 'label'?"),
        (["films.csv", "--seconds", "1"], "--seconds must be between 4 and 3600, got 1"),
        (
            ["films.csv", "--kind", "forecast"],
            "these columns cannot be used to forecast, which needs columns of numbers",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(here, words, message):
    code, _, err = here("advise", *words)
    assert code == 2
    assert message in err and len(err.splitlines()) == 1

import json

from research.speed import advice as script
from research.speed.advice_records import collect
from seqloom.lab.advise import measurements


def test_the_measurements_of_the_package_are_those_of_the_records():
    assert collect(script.RESULTS) == json.loads(measurements.FILE.read_text())


def row(name, mean, baseline=False):
    return {"name": name, "baseline": baseline, "test": None if mean is None else {"mean": mean, "half": 0.02}}


def compared(metric, *rows, finished=True):
    return {"study": "compare", "task": {"name": "films"}, "metric": metric, "finished": finished, "rows": list(rows)}


def test_the_winner_has_the_best_test_score_for_rising_and_falling_metrics():
    rows = [row("gru", 0.9), row("lstm", 0.89), row("TF-IDF + ridge", 0.7, baseline=True), row("rnn", None)]
    assert script.winner(compared("accuracy", *rows)) == ("gru", ["lstm"])
    assert script.winner(compared("mse", *rows)) == ("linear", [])


def test_the_table_says_whether_the_winner_was_advised(tmp_path):
    facts = {"kind": "classify", "median": 8.0, "information": {"reach": 3}, "baseline": None}
    advice = {"sets": {"films": {"facts": facts, "models": [{"model": name} for name in ("a", "b", "c", "gru")]}}}
    assert "winner" not in script.table(advice, {}) and "a, b, c |" in script.table(advice, {})
    (tmp_path / "films.json").write_text(json.dumps(compared("accuracy", row("b", 0.9), row("gru", 0.5))))
    (tmp_path / "books.json").write_text(json.dumps(compared("accuracy", row("gru", 1.0), finished=False)))
    told = script.table(advice, script.comparisons(tmp_path))
    assert "| b | yes |" in told and "on 1 of 1 data sets,\n" in told and told.endswith("on 1.")
    assert "| no |" in script.table(advice, {"films": compared("accuracy", row("b", 0.5), row("gru", 0.9))})

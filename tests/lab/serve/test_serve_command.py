"""The commands `seqloom serve` and `seqloom bench serve`."""

import json
import math

import pytest
from test_server import serve

from seqloom.cli.main import main
from seqloom.lab.bench import load, serving


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "nothing"], "there is no run 'nothing'"),
        (["serve", "{folder}", "--host", "0.0.0.0"], "clients need a bearer token"),
        (["serve", "{folder}", "--port", "70000"], "--port"),
        (["serve", "{folder}"], "is not a run: it has no run.json"),
        (["bench", "serve", "nothing"], "there is no run 'nothing'"),
        (["bench", "serve", "{folder}", "--plot", "x.gif"], "must end in .svg, .png or .pdf"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.delenv("SEQLOOM_SERVE_TOKEN", raising=False)
    with pytest.raises(SystemExit) as stop:
        main([word.replace("{folder}", str(tmp_path)) for word in words])
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_an_example_is_repeated_to_a_length():
    assert serving.lengthen({"a": [1, 2], "b": "x y", "c": 3.0}, 5) == {
        "a": [1, 2, 1, 2, 1],
        "b": "x y x y x",
        "c": 3.0,
    }


def test_quantiles_are_those_of_the_sorted_values():
    answers = load.Answers([float(n) for n in range(100, 0, -1)])
    assert (answers.find_quantile(0.5), answers.find_quantile(0.99)) == (51.0, 100.0)
    assert math.isnan(load.Answers().find_quantile(0.5))


def test_loops_count_answers_and_failures(folder):
    import asyncio

    async def measure(address):
        good = load.Client(address, "/v1/predict", json.dumps({"rows": ["mint"]}).encode())
        bad = load.Client(address, "/v1/predict", b"{")
        nobody = load.Client("http://127.0.0.1:1", "/v1/predict", b"{}")
        results = [await load.send_closed(good, 2, 0.2), await load.send_open(good, 50, 0.4, seed=1)]
        results += [await load.send_open(one, 50, 0.2) for one in (bad, nobody)]
        streams = await load.send_steps(address, "cups", "mint", streams=5, connections=2, rate=20, seconds=0.2)
        for client in (good, bad):
            client.close()
        return results, streams

    with serve(folder) as (server, _):
        (closed, opened, refused, lost), streams = asyncio.run(measure(server.address))
    assert set(closed.statuses) == set(opened.statuses) == {200}
    assert len(opened.milliseconds) == opened.statuses[200] > 0
    assert refused.failed == refused.statuses[400] > 0
    assert lost.failed == lost.statuses[0] > 0
    assert len(streams.milliseconds) == 5 * 4
    assert streams.failed == 0

"""The answers of the page's server, and the page as one file."""

import http.client
import json
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from seqloom.cli.main import main
from seqloom.core.errors import UserError
from seqloom.lab.explore.saved_page import build_page, choose_rows, read_page, record_examples
from seqloom.lab.explore.server import make_server, read_static
from seqloom.lab.explore.service import Entry, Service, open_entries
from seqloom.lab.training.run import Run

TEXT = "the plot is not good"


@pytest.fixture(scope="module")
def service(run):
    return Service([Entry("turns", run), Entry("broken", problem="runs/broken is not a run: it has no run.json")])


@pytest.fixture(scope="module")
def server(service):
    with make_server(service) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, document=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    if document is None:
        connection.request("GET", path, headers=headers)
    else:
        headers = {"Content-Type": "application/json"} | headers
        connection.request("POST", path, json.dumps(document), headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_the_page_and_its_answers_come_from_this_machine(server):
    response, body = ask(server, "/")
    assert response.status == 200 and b'id="app"' in body
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    response, body = ask(server, "/api/explain", {"run": "turns", "input": TEXT})
    document = json.loads(body)
    assert document["steps"] == TEXT.split()
    response, body = ask(server, f"/api/array?key={document['key']}&name=layer.l0/z")
    info = document["arrays"]["layer.l0/z"]
    z = np.frombuffer(body, "<u2").reshape(info["shape"]) / 65535 * (info["high"] - info["low"]) + info["low"]
    assert z.shape == (5, 24) and z.min() >= 0 and z.max() <= 1


def test_a_run_that_cannot_be_opened_is_a_sentence_beside_the_others(server):
    runs = json.loads(ask(server, "/api/about", {})[1])["runs"]
    assert [run["problem"] for run in runs] == ["", "runs/broken is not a run: it has no run.json"]
    response, body = ask(server, "/api/explain", {"run": "broken", "input": TEXT})
    assert response.status == 400 and "it has no run.json" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"run": "turns", "input": ""}, "the input is empty"),
        ({"run": "turns"}, "type an input"),
        ({"run": "turns", "row": 10**9}, "there is no row"),
        ({"run": "turns", "row": "x"}, "there is no row"),
        ({"run": "nothing", "input": TEXT}, "there is no run 'nothing'"),
        ({"run": "turns", "input": "x" * 1_000_001}, "at most 1,000,000"),
        ({"run": "turns", "input": TEXT, "output": "z"}, "output must be a whole number"),
        ({"run": "turns", "input": TEXT, "clamps": [{"layer": "layer.l0"}]}, "must be a number"),
        ({"run": "turns", "input": TEXT, "clamps": [3]}, "must be an object"),
        ({"run": "turns", "input": TEXT, "clamps": [{"layer": "x", "letter": "z", "value": 1}]}, "no layer 'x'"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(server, document, message):
    response, body = ask(server, "/api/explain", document)
    assert response.status == 400
    assert message in json.loads(body)["error"]


def test_other_sites_and_other_files_are_refused(server):
    assert ask(server, "/api/about", {}, Host="evil.example")[0].status == 403
    assert ask(server, "/api/about", {}, Origin="http://evil.example")[0].status == 403
    assert ask(server, "/api/about", {}, **{"Content-Type": "text/plain"})[0].status == 415
    for path in ("/../service.py", "/%2e%2e/service.py", "/static/../../service.py"):
        assert ask(server, path)[0].status == 404


def test_rows_similar_moments_and_curves_are_answered(service):
    rows = service.answer("rows", {"run": "turns"})["rows"]
    assert rows and {"row", "text", "truth", "prediction", "loss", "confidence"} == set(rows[0])
    found = service.answer("similar", {"run": "turns", "input": TEXT, "span": [3, 3]})
    assert found["matches"][0]["share"] > 0.5
    with pytest.raises(UserError, match="mark a span"):
        service.answer("similar", {"run": "turns", "input": TEXT, "span": [3]})
    curves = service.answer("curves", {"run": "turns"})
    assert curves["finished"] == "steps" and curves["lines"]


def test_a_run_without_weights_is_a_sentence(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "empty")
    for which in ("best", "last"):
        shutil.rmtree(tmp_path / "empty" / which)
    service = Service(open_entries({"empty": Run.load(tmp_path / "empty")}))
    with pytest.raises(UserError, match="has no checkpoint yet; train it longer first"):
        service.answer("explain", {"run": "empty", "input": TEXT})


def test_a_saved_page_holds_its_examples_and_runs_nothing_else(service):
    hostile = "</script><script>alert(1)</script> not good"
    recording = record_examples(service, 3, [hostile, TEXT])
    page = build_page(recording, "a <b> title")
    stored = read_page(page)
    kinds = re.findall("<script[^>]*>", page)
    assert [kind for kind in kinds if "text/plain" not in kind and "json" not in kind] == ['<script type="module">']
    assert len(kinds) == 2 + len(stored["arrays"])
    assert "alert(1)</script>" not in page and "a &lt;b&gt; title" in page
    assert [row["text"] for row in stored["rows"]["turns"]][:2] == [hostile, TEXT]
    assert len(stored["explanations"]["turns"]) == 5
    for number, document in stored["explanations"]["turns"].items():
        for name in document["arrays"]:
            assert f"{document['key']}/{name}" in stored["arrays"], number
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page
    assert len(page) < 2_000_000


def test_the_rows_to_record_are_good_bad_and_surprising_ones(service):
    rows = service.entries["turns"].rows
    chosen = choose_rows(rows, 9)
    losses = [row.loss for row in rows]
    assert len(set(chosen)) == 9
    assert rows[chosen[0]].loss == min(losses) and rows[chosen[1]].loss == max(losses)


def test_the_command_saves_a_page(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as done:
        main(["explore", str(run.folder), "--save", str(page), "--examples", "1", "--json"])
    assert not done.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == page.stat().st_size and facts["examples"] == {"turns": 1}


@pytest.mark.long
def test_the_command_writes_the_attributions_of_the_held_out_rows(run, tmp_path, capsys):
    table = tmp_path / "table.parquet"
    with pytest.raises(SystemExit) as done:
        main(["explore", str(run.folder), "--export-attributions", str(table), "--json"])
    assert not done.value.code
    frame = pl.read_parquet(table)
    assert json.loads(capsys.readouterr().out)["rows"] == frame["row"].n_unique() >= 70
    turned = frame.filter((pl.col("token") == "not") & (pl.col("step") == 3))
    assert turned["occlusion"].median() > 0.5 and not frame["gradient"].has_nulls()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--export-attributions", "{folder}/a.txt"], "must end with .parquet or .csv"),
        ([], "explore needs at least one run"),
        (["no-such-run"], "there is no run 'no-such-run'"),
        (["{run}", "--port", "99999"], "between 0 and 65535"),
        (["{run}", "--save", "{folder}"], "is a folder"),
        (["{run}", "--save", "{folder}/p.html", "--examples", "0"], "no examples to record"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, capsys, words, message):
    words = [word.format(run=run.folder, folder=tmp_path) for word in words]
    with pytest.raises(SystemExit) as done:
        main(["explore", *words])
    assert done.value.code == 2
    assert message in capsys.readouterr().err


def test_the_built_page_is_part_of_the_package():
    assert b"app.js" in read_static("index.html")
    with pytest.raises(FileNotFoundError):
        read_static("../server.py")


def test_the_playground_is_built_from_the_same_page():
    playground = Path(__file__).parents[3] / "docs" / "playground.html"
    assert read_static("app.js").decode() in playground.read_text(), "run python docs/playground.py --page"

"""The answers of the page's server, and the page as one file."""

import json
import re
import shutil
import socket
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient

from research.pages.playground import read_page
from seqloom.cli.main import main
from seqloom.core.errors import UserError
from seqloom.lab.explore.saved_page import build_page, choose_rows, read_static, record_examples
from seqloom.lab.explore.server import Session, build_app, make_server
from seqloom.lab.explore.service import RunEntry, Service
from seqloom.lab.training.run import Run
from seqloom.lab.web import logs

TEXT = "the plot is not good"


@pytest.fixture(scope="module")
def service(run):
    return Service([RunEntry("turns", run), RunEntry("broken", problem="runs/broken is not a run: it has no run.json")])


@pytest.fixture(scope="module")
def session():
    return Session()


@pytest.fixture(scope="module")
def client(service, session):
    with TestClient(build_app(service, session), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.headers["authorization"] = f"Bearer {session.token}"
        yield client


def test_the_page_its_answers_and_its_arrays_are_served(client):
    page = client.get("/")
    assert page.status_code == 200 and b'id="app"' in page.content
    assert "default-src 'none'" in page.headers["content-security-policy"]
    document = client.post("/api/explain", json={"run": "turns", "input": TEXT}).json()
    assert document["steps"] == TEXT.split()
    array = client.get("/api/array", params={"key": document["key"], "name": "layer.l0/z"})
    info = document["arrays"]["layer.l0/z"]
    z = np.frombuffer(array.content, "<u2").reshape(info["shape"]) / 65535 * (info["high"] - info["low"]) + info["low"]
    assert z.shape == (5, 24) and z.min() >= 0 and z.max() <= 1


def test_a_run_that_cannot_be_opened_is_a_sentence_beside_the_others(client):
    runs = client.post("/api/about", json={}).json()["runs"]
    assert [run["problem"] for run in runs] == ["", "runs/broken is not a run: it has no run.json"]
    answer = client.post("/api/explain", json={"run": "broken", "input": TEXT})
    assert answer.status_code == 400 and "it has no run.json" in answer.json()["error"]


EXPLAIN = {"run": "turns", "input": TEXT}
CLAMP = {"layer": "layer.l0", "letter": "z", "value": 1}


@pytest.mark.parametrize(
    ("question", "document", "status", "message"),
    [
        ("explain", {"run": "turns", "input": ""}, 400, "the input is empty"),
        ("explain", {"run": "turns"}, 400, "type an input"),
        ("explain", {"run": "turns", "row": 10**9}, 400, "there is no row"),
        ("explain", {"run": "turns", "row": "x"}, 422, "row must be a whole number"),
        ("explain", {"run": "turns", "row": True}, 422, "row must be a whole number"),
        ("explain", {"run": "turns", "row": -1}, 422, "row is not valid"),
        ("explain", {"run": ["turns"], "input": TEXT}, 422, "run must be a text"),
        ("explain", {"run": "nothing", "input": TEXT}, 400, "there is no run 'nothing'"),
        ("explain", {"run": "turns", "input": 5}, 422, "input must be a text"),
        ("explain", {"run": "turns", "input": "x" * 1_000_001}, 413, "at most 1,000,000"),
        ("explain", EXPLAIN | {"zanzibar": 1}, 422, "zanzibar is not a field"),
        ("explain", EXPLAIN | {"output": "z"}, 422, "output must be a whole number"),
        ("explain", EXPLAIN | {"output": 10**30}, 422, "output is not valid"),
        ("explain", EXPLAIN | {"clamps": [{"layer": "layer.l0", "letter": "z"}]}, 422, "clamps[0].value is missing"),
        ("explain", EXPLAIN | {"clamps": [CLAMP | {"value": "z"}]}, 422, "clamps[0].value must be a number"),
        ("explain", EXPLAIN | {"clamps": [CLAMP | {"value": 10**400}]}, 422, "clamps[0].value"),
        ("explain", EXPLAIN | {"clamps": [CLAMP | {"steps": [0, 10**30]}]}, 422, "clamps[0].steps[1] is not valid"),
        ("explain", EXPLAIN | {"clamps": [3]}, 422, "clamps[0] must be an object"),
        ("explain", EXPLAIN | {"clamps": [CLAMP | {"layer": "x"}]}, 400, "no layer 'x'"),
        ("similar", EXPLAIN, 422, "span is missing"),
        ("similar", EXPLAIN | {"span": [3]}, 422, "span is not valid"),
        ("similar", EXPLAIN | {"span": [0, 99]}, 400, "the span must lie within steps"),
        ("similar", EXPLAIN | {"span": [0, 1], "units": [[0]]}, 422, "units[0] must be a whole number"),
        ("zanzibar", {}, 404, "there is no such question"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(client, question, document, status, message):
    answer = client.post(f"/api/{question}", content=json.dumps(document), headers={"content-type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert message in answer.json()["error"]


def test_other_sites_and_other_files_are_refused(client):
    for headers in (
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ):
        assert client.post("/api/about", json={}, headers=headers).status_code == 403, headers
    answer = client.post("/api/about", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    for path in ("/../service.py", "/%2e%2e/service.py", "/static/../../service.py", "/service.py"):
        assert client.get(path).status_code == 404
    assert client.get("/api/about").status_code == 405


def test_nobody_without_the_token_reads_anything(client):
    for path in (
        "/",
        "/app.js",
        "/api/array?key=1&name=x",
        "/?token=",
        "/?token=x",
        "/?token=%c3%a4",
        f"/?{'a=1&' * 200}",
        "/nothing",
    ):
        for headers in ({}, {"authorization": "Bearer x"}, {"cookie": b"seqloom=x; a=\xff"}):
            answer = client.get(path, headers={"authorization": ""} | headers)
            assert answer.status_code == 401, (path, headers)
            assert "open the address that seqloom explore printed" in answer.json()["error"]
            assert "set-cookie" not in answer.headers
    assert client.post("/api/about", json={}, headers={"authorization": ""}).status_code == 401


def enter(service, session, token):
    app = build_app(service, session)
    client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
    return client, client.get("/", params={"token": token})


def test_the_address_with_the_token_sets_a_cookie_that_only_the_page_has(service, session):
    client, entrance = enter(service, session, session.token)
    assert entrance.status_code == 200
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(entrance.headers["set-cookie"].split("; "))
    assert session.token not in entrance.text + entrance.headers["set-cookie"]
    assert "location.replace('/' + location.hash)" in entrance.text
    assert "script-src 'sha256-" in entrance.headers["content-security-policy"]
    assert client.get("/").status_code == client.post("/api/about", json={}).status_code == 200


def test_a_single_use_token_works_once(service, session):
    token = session.make_single_use_token()
    client, entrance = enter(service, session, token)
    assert entrance.status_code == client.get("/").status_code == 200
    assert enter(service, session, token)[1].status_code == 401
    assert enter(service, session, "")[1].status_code == 401


def test_a_bug_is_a_sentence_and_its_place_is_logged(client, service, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("zanzibar")

    monkeypatch.setattr(service, "answer", fail)
    answer = client.post("/api/about", json={})
    assert (answer.status_code, answer.json()) == (
        500,
        {"error": "internal error of the server; its log has the place"},
    )
    assert "fail" in "".join(logs.JsonLines().format(record) for record in caplog.records)


def test_numbers_that_json_does_not_have_are_null(client, service, monkeypatch):
    monkeypatch.setattr(service, "answer", lambda *_: {"value": float("nan")})
    assert client.post("/api/about", json={}).json() == {"value": None}


def test_the_server_answers_over_a_socket_and_stops(service):
    ready, session = threading.Event(), Session()
    server = make_server(service, session, lambda _: ready.set())
    thread = threading.Thread(target=server.serve_site)
    thread.start()
    assert ready.wait(60)
    port = int(server.address.rpartition(":")[2])
    for length in (b"-1", b"x", b"1e9", b"99999999999999999999999999"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(b"POST /api/about HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n{}")
            assert one.recv(1000).split()[1] in (b"400", b"401")
    request = Request(f"{server.address}/api/about", b"{}", {"Authorization": f"Bearer {session.token}"})
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=30) as answer:  # of the server above
        assert json.load(answer)["runs"]
    with pytest.raises(UserError, match="cannot listen on 127"):
        make_server(service, session, print, port)
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def test_rows_similar_moments_and_curves_are_answered(service):
    rows = service.answer("rows", {"run": "turns"})["rows"]
    assert rows and {"row", "text", "truth", "prediction", "loss", "confidence"} == set(rows[0])
    found = service.answer("similar", {"run": "turns", "input": TEXT, "span": [3, 3]})
    assert found["matches"][0]["share"] > 0.5
    curves = service.answer("curves", {"run": "turns"})
    assert curves["finished"] == "steps" and curves["lines"]


def test_a_run_without_weights_is_a_sentence(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "empty")
    for which in ("best", "last"):
        shutil.rmtree(tmp_path / "empty" / which)
    service = Service([RunEntry("empty", Run.load(tmp_path / "empty"))])
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
        main(["explore", str(run.folder), "--out", str(page), "--examples", "1", "--json"])
    assert not done.value.code
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == page.stat().st_size and facts["examples"] == {"turns": 1}


@pytest.mark.long
def test_the_command_writes_the_attributions_of_the_held_out_rows(run, tmp_path, capsys):
    table = tmp_path / "table.parquet"
    with pytest.raises(SystemExit) as done:
        main(["explore", str(run.folder), "--out", str(table), "--json"])
    assert not done.value.code
    frame = pl.read_parquet(table)
    assert json.loads(capsys.readouterr().out)["rows"] == frame["row"].n_unique() >= 70
    turned = frame.filter((pl.col("token") == "not") & (pl.col("step") == 3))
    assert turned["occlusion"].median() > 0.5 and not frame["gradient"].has_nulls()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--out", "{folder}/a.txt"], "a.txt must end with .html (a page), or with .parquet or .csv"),
        (["{run}", "--out", "{folder}/a.csv", "--save", "{folder}/a.html"], "give one file as --out"),
        (["{run}", "--export-attributions", "{folder}/a.txt"], "must end with .parquet or .csv"),
        ([], "explore needs at least one run"),
        (["no-such-run"], "there is no run 'no-such-run'"),
        (["{run}", "--port", "99999"], "between 0 and 65535"),
        (["{run}", "--out", "{folder}"], "is a folder"),
        (["{run}", "--out", "{folder}/p.html", "--examples", "0"], "no examples to record"),
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
    assert read_static("app.js").decode() in playground.read_text(), "run python -m research playground --page"

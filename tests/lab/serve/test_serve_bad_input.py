"""Requests that are wrong have the right status and one sentence; the next request is served; logs quote nothing."""

import json
import logging

import pytest
from small_runs import open_site

from seqloom.core.errors import UserError
from seqloom.lab.serve.runs import load_runs
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.web import logs

JSON = {"content-type": "application/json"}
SECRET = "zanzibar"  # what a user sends and no log may hold

BODIES = {
    "malformed": (b'{"rows": [', 400, "not valid JSON"),
    "nothing": (b"", 400, "not valid JSON"),
    "nested": (b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "recursion limit"),
    "not UTF-8": (b'{"rows": ["zanzibar \xff\xfe"]}', 400, "not valid JSON"),
    "half a surrogate": (b'{"run": "cups", "rows": ["\\ud800 zanzibar"]}', 400, "not valid JSON"),
    "NaN": (b'{"run": "pulses", "rows": [{"pulse": [NaN], "flow": [1]}]}', 400, "not valid JSON"),
    "infinity": (b'{"run": "pulses", "rows": [{"pulse": [1e999], "flow": [1]}]}', 422, "finite number"),
    "not an object": (b'["zanzibar"]', 422, "must be a JSON object"),
    "no rows": (b'{"run": "cups"}', 422, "rows is missing"),
    "rows no list": (b'{"run": "cups", "rows": "zanzibar"}', 422, "rows must be a list"),
    "another field": (b'{"run": "cups", "rows": [], "zanzibar": 1}', 422, "is not a field"),
    "flag no flag": (b'{"run": "cups", "rows": [], "probabilities": "zanzibar"}', 422, "probabilities"),
    "no run": (b'{"rows": ["zanzibar"]}', 422, "run is missing; name one of cups, pulses"),
    "unknown run": (b'{"run": "zanzibar", "rows": []}', 404, "there is no such run; this server has cups"),
    "run is a path": (b'{"run": "../../../etc/passwd", "rows": []}', 404, "no such run"),
    "run is a number": (b'{"run": 3, "rows": []}', 422, "run must be a text"),
    "number for text": (b'{"run": "cups", "rows": [{"order": 3}]}', 422, "rows[0].order must be a text"),
    "text for number": (
        b'{"run": "pulses", "rows": [{"pulse": ["zanzibar"], "flow": [1]}]}',
        422,
        "rows[0].pulse[0] must be a number",
    ),
    "text for list": (b'{"run": "pulses", "rows": [{"pulse": "zanzibar", "flow": [1]}]}', 422, "must be a list"),
    "true for number": (b'{"run": "pulses", "rows": [{"pulse": [true], "flow": [1]}]}', 422, "must be a number"),
    "no column": (b'{"run": "pulses", "rows": [{"pulse": [1]}]}', 422, "rows[0].flow is missing"),
    "no columns at all": (b'{"run": "pulses", "rows": [[1, 2]]}', 422, "rows[0]"),
    "too large a number": (b'{"run": "pulses", "rows": [{"pulse": [1e300], "flow": [1]}]}', 422, "too large"),
    "other lengths": (b'{"run": "pulses", "rows": [{"pulse": [1, 2], "flow": [1]}]}', 422, "as many steps"),
    "a million steps": (
        b'{"run": "level", "rows": [{"level": [' + b"1," * 999_999 + b"1]}]}",
        413,
        "rows[0].level is too long; this server reads at most 10,000 items",
    ),
    "a long text": (b'{"run": "cups", "rows": ["' + b"zanzibar " * 100_000 + b'"]}', 413, "too long"),
    "too many rows": (b'{"run": "cups", "rows": [' + b'"",' * 5000 + b'""]}', 413, "rows is too long"),
    "too large a body": (b'{"rows": ["' + b"zanzibar" * 700_000 + b'"]}', 413, "larger than 4,194,304 bytes"),
    "a text of a language model": (b'{"run": "verse", "rows": ["zanzibar"]}', 409, "use /v1/generate"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_has_its_status_and_one_sentence(client, caplog, name):
    body, status, part = BODIES[name]
    with caplog.at_level(logging.DEBUG):
        answer = client.post("/v1/predict", content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert part in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert SECRET not in _format(caplog)
    assert client.post("/v1/predict", json={"run": "cups", "rows": ["mint"]}).status_code == 200


def _format(caplog):
    return "\n".join(logs.JsonLines().format(record) for record in caplog.records)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/zanzibar", 404),
        ("GET", "/v1/predict", 405),
        ("DELETE", "/", 405),
        ("PUT", "/v1/predict", 405),
        ("GET", "/v1/runs/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/v1/runs/%2e%2e", 404),
        ("GET", "/v1/runs/zanzibar", 404),
        ("GET", "/page.html", 404),
        ("GET", "/../settings.py", 404),
        ("GET", "/docs.html", 404),
        ("POST", "/v1/stream/zanzibar/reset", 404),
        ("DELETE", "/v1/stream/zanzibar", 404),
        ("GET", "/v1/predict/", 404),
    ],
)
def test_an_unknown_route_or_method_has_one_sentence(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


def test_a_body_must_be_declared_as_json(client):
    body = b'{"run": "cups", "rows": []}'
    assert client.post("/v1/predict", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/v1/predict", content=body).status_code == 415


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://"])
def test_a_request_of_a_page_of_another_origin_is_refused(client, origin):
    answer = client.post("/v1/predict", json={"run": "cups", "rows": []}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    preflight = client.options("/v1/predict", headers={"origin": origin, "access-control-request-method": "POST"})
    assert preflight.status_code == 403
    own = client.post("/v1/predict", json={"run": "cups", "rows": []}, headers={"origin": "http://127.0.0.1"})
    assert own.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", "", "localhost:port"])
def test_a_name_that_is_not_this_machine_is_refused(client, host):
    assert client.get("/v1/runs", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"])
def test_names_of_this_machine_are_served(client, host):
    assert client.get("/v1/runs", headers={"host": host}).status_code == 200


def test_a_websocket_of_another_origin_is_refused(client):
    from starlette.testclient import WebSocketDenialResponse

    with pytest.raises(WebSocketDenialResponse) as refused:
        client.websocket_connect("ws://127.0.0.1/v1/stream", headers={"origin": "http://evil.example"}).__enter__()
    assert refused.value.status_code == 403


def test_a_token_is_needed_where_there_is_one(folder):
    token = "0123456789abcdef0123"
    with (site := open_site([folder / "cups"], token=token)).client:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": token}, {"authorization": "Basic x"}):
            answer = site.client.get("/v1/runs", headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert site.client.get("/metrics", headers=given).status_code == 401
        assert site.client.get("/v1/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200
        assert site.client.get("/healthz").status_code == 200
        assert site.client.get("/").status_code == 200
        with site.client.websocket_connect("ws://127.0.0.1/v1/stream", subprotocols=["bearer", token]) as socket:
            socket.send_json({"do": "start"})
            assert "token" in socket.receive_json()


def test_another_address_needs_a_token(tmp_path, monkeypatch):
    monkeypatch.delenv("SEQLOOM_SERVE_TOKEN", raising=False)
    assert ServeSettings().read_token() is None
    for host in ("0.0.0.0", "192.168.0.1", "::", "example.com"):
        with pytest.raises(UserError, match="need a bearer token"):
            ServeSettings(host=host).read_token()
    file = tmp_path / "token"
    file.write_text("short\n")
    with pytest.raises(UserError, match="at least 16"):
        ServeSettings(host="0.0.0.0", token_file=file).read_token()
    file.write_text("0123456789abcdef0123\n")
    assert ServeSettings(host="0.0.0.0", token_file=file).read_token() == "0123456789abcdef0123"


def test_a_folder_that_is_no_run_is_refused(tmp_path, folder):
    from seqloom.lab.serve.metrics import Metrics

    with pytest.raises(UserError, match=r"is not a run: it has no run\.json"):
        load_runs([str(tmp_path)], ServeSettings(), Metrics())
    with pytest.raises(UserError, match="there is no run"):
        load_runs([str(tmp_path / "nothing")], ServeSettings(), Metrics())
    with pytest.raises(UserError, match="two runs are called 'cups'"):
        load_runs([str(folder / "cups")] * 2, ServeSettings(), Metrics())
    with pytest.raises(UserError, match="cannot name a run"):
        load_runs([f"a b={folder / 'cups'}"], ServeSettings(), Metrics())


def test_too_many_requests_are_refused_and_health_is_not(folder):
    with (site := open_site([folder / "cups"], max_requests=1)).client:
        site.app.requests.take("another client")
        answer = site.client.get("/v1/runs")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert site.client.get("/healthz").status_code == 200
        site.app.requests.give_back("another client")
        assert site.client.get("/v1/runs").status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(folder):
    import threading

    with (site := open_site([folder / "cups"], max_seconds=0.2)).client:
        run, blocked = site.runs.by_name["cups"], threading.Event()
        call = run.rows._call
        run.rows._call = lambda key, jobs: blocked.wait(10) and call(key, jobs)
        answer = site.client.post("/v1/predict", json={"rows": ["mint"]})
        assert answer.status_code == 503
        assert "more than 0.2 s" in answer.json()["error"]
        blocked.set()
        run.rows._call = call


def test_a_bug_is_answered_with_500_and_logged_without_its_message(site, caplog):
    run = site.runs.by_name["cups"]
    call = run.rows._call

    def fail(key, jobs):
        raise KeyError(jobs[0].rows[0]["order"])

    run.rows._call = fail
    try:
        with caplog.at_level(logging.DEBUG):
            answer = site.client.post("/v1/predict", json={"run": "cups", "rows": [SECRET]})
    finally:
        run.rows._call = call
    assert answer.status_code == 500
    assert SECRET not in answer.text
    lines = [json.loads(logs.JsonLines().format(record)) for record in caplog.records]
    assert any(line.get("exception") == "KeyError" and "fail:" in str(line["places"]) for line in lines)
    assert SECRET not in json.dumps(lines)


def test_the_log_names_the_route_not_the_path(client, caplog):
    with caplog.at_level(logging.INFO, logger=logs.NAME):
        client.get(f"/v1/runs/{SECRET}")
        client.get(f"/{SECRET}?{SECRET}={SECRET}")
    lines = [json.loads(logs.JsonLines().format(record)) for record in caplog.records if record.msg == "request"]
    assert [line["route"] for line in lines] == ["/v1/runs/{run}", "unknown"]
    assert SECRET not in json.dumps(lines)


def test_generated_texts_have_limits(client):
    for change, status in (
        ({"max_tokens": 10**6}, 413),
        ({"prompts": ["a" * 20_000]}, 413),
        ({"prompts": [""] * 100}, 413),
        ({"count": 10**6}, 422),
        ({"temperature": 0}, 422),
        ({"top_p": 2}, 422),
        ({"seed": 10**30}, 422),
    ):
        assert client.post("/v1/generate", json={"run": "verse"} | change).status_code == status, change
    assert client.post("/v1/generate", json={"run": "cups"}).status_code == 409

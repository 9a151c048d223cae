"""Streams: one step at a time with kept state."""

import json
import threading

import pytest
import torch
from small_runs import TRAINING, open_site, write_pulses

import seqloom
from seqloom.lab.serve.model_version import load_version
from seqloom.lab.serve.settings import ServeSettings

PULSE = [{"pulse": round(0.1 * n, 1), "flow": 1.0 - n} for n in range(6)]


def start(client, run):
    return client.post("/v1/stream", json={"run": run}).json()["token"]


def join(steps):
    return {name: [step[name] for step in steps] for name in steps[0]}


def is_same(result, expected):
    for name, value in expected.items():
        if isinstance(value, (float, list)):
            assert result[name] == pytest.approx(value, rel=1e-4, abs=3e-6), name
        else:
            assert result[name] == value, name
    return True


@pytest.mark.parametrize("sizes", [[1] * 6, [2, 1, 3], [6]], ids=str)
def test_a_step_has_the_result_of_all_steps_so_far(client, folder, sizes):
    token, done, results = start(client, "pulses"), 0, []
    for size in sizes:
        answer = client.post(f"/v1/stream/{token}/steps", json={"steps": PULSE[done : done + size]})
        results += answer.json()["results"]
        done += size
    assert [result["step"] for result in results] == [1, 2, 3, 4, 5, 6]
    expected = seqloom.Run.load(folder / "pulses").predict([join(PULSE[:n]) for n in range(1, 7)])
    assert all(is_same(*pair) for pair in zip(results, expected, strict=True))


def test_a_text_is_read_word_by_word(client, folder):
    token = start(client, "cups")
    words = ["mint", "honey", "kettle"]
    results = [client.post(f"/v1/stream/{token}/steps", json={"steps": [word]}).json()["results"][0] for word in words]
    expected = seqloom.Run.load(folder / "cups").predict([" ".join(words[:n]) for n in (1, 2, 3)])
    assert all(is_same(*pair) for pair in zip(results, expected, strict=True))


def test_a_forecast_follows_each_step(client, folder):
    token, values = start(client, "level"), [2.0, 2.5, 2.25]
    results = client.post(f"/v1/stream/{token}/steps", json={"steps": values}).json()["results"]
    expected = seqloom.Run.load(folder / "level").predict([{"level": values[:n]} for n in (1, 2, 3)])
    assert all(is_same(*pair) for pair in zip(results, expected, strict=True))


def test_a_language_model_predicts_the_next_token(client):
    result = client.post(f"/v1/stream/{start(client, 'verse')}/steps", json={"steps": ["kettle"]}).json()["results"]
    assert result[-1]["step"] >= 1
    assert 0 < result[-1]["probability"] <= 1


def test_a_reset_stream_begins_again(client):
    token = start(client, "pulses")
    path = f"/v1/stream/{token}"
    first = client.post(f"{path}/steps", json={"steps": PULSE[:1]}).json()
    client.post(f"{path}/steps", json={"steps": PULSE[1:]})
    assert client.post(f"{path}/reset").json()["step"] == 0
    assert client.post(f"{path}/steps", json={"steps": PULSE[:1]}).json() == first


def test_a_stopped_stream_is_gone(client):
    token = start(client, "pulses")
    assert client.delete(f"/v1/stream/{token}").json() == {"stopped": True}
    assert client.post(f"/v1/stream/{token}/steps", json={"steps": PULSE[:1]}).status_code == 404


def test_a_step_that_cannot_be_read_does_not_move_the_stream(client):
    token = start(client, "pulses")
    path = f"/v1/stream/{token}/steps"
    wrong = [PULSE[0], {"pulse": "x", "flow": 1}]
    assert client.post(path, json={"steps": wrong}).json() == {"error": "steps[1].pulse must be a number"}
    assert client.post(path, json={"steps": [{"pulse": 1e35, "flow": 1}]}).status_code == 422
    assert client.post(path, json={"steps": PULSE[:1]}).json()["results"][0]["step"] == 1


def test_a_token_of_another_run_is_refused(client):
    token = start(client, "pulses")
    answer = client.post(f"/v1/stream/{token}/steps", json={"run": "cups", "steps": ["mint"]})
    assert answer.status_code == 403
    assert "another run" in answer.json()["error"]


def test_a_websocket_carries_several_streams(client, folder):
    with client.websocket_connect("ws://127.0.0.1/v1/stream") as socket:

        def ask(**message):
            socket.send_json(message)
            return socket.receive_json()

        tokens = [ask(do="start", run="pulses")["token"] for _ in range(3)]
        assert ask(do="step", token=tokens[0], x=PULSE[0])["step"] == 1
        both = ask(do="steps", x=[[tokens[0], PULSE[1]], ["nobody", 1], [tokens[1], PULSE[0]], [tokens[0], PULSE[2]]])
        assert [one.get("step") for one in both["results"]] == [2, None, 1, 3]
        assert both["results"][1]["status"] == 404
        expected = seqloom.Run.load(folder / "pulses").predict([join(PULSE[:3])])
        assert is_same(both["results"][3], expected[0])
        mixed = ask(do="steps", x=[[tokens[1], PULSE[1]], [tokens[2], {"pulse": 1e35, "flow": 0}]])["results"]
        assert mixed[0]["step"] == 2
        assert mixed[1]["status"] == 422
        assert ask(do="reset", token=tokens[0])["step"] == 0
        assert ask(do="stop", token=tokens[0]) == {"token": tokens[0], "stopped": True}
        assert ask(do="step", token=tokens[0], x=PULSE[0])["status"] == 404
        assert ask(do="step", token=tokens[1], x=PULSE[2], run="cups")["status"] == 403
        assert ask(do="start", run="nothing")["status"] == 404
        assert ask(do="dance")["status"] == 422
        socket.send_text("{")
        assert socket.receive_json()["status"] == 400
        assert ask(do="step", token=tokens[1], x=PULSE[2])["step"] == 3


def test_events_repeat_the_results_of_steps(site):
    client, token = site.client, start(site.client, "pulses")
    stream = next(s for t, s in _streams(site).items() if t == token)
    assert client.get("/v1/stream/nobody/events").status_code == 404
    queue = site.client.portal.call(_listen, site, stream)
    client.post(f"/v1/stream/{token}/steps", json={"steps": PULSE[:2]})
    assert [queue.get_nowait()["step"] for _ in range(2)] == [1, 2]
    client.delete(f"/v1/stream/{token}")
    assert queue.get_nowait() is None


def test_events_are_sent_as_they_are_defined(site):
    token = start(site.client, "pulses")
    stream = _streams(site)[token]

    def act():
        for _ in range(1000):
            if stream.listeners:
                break
            threading.Event().wait(0.01)
        site.client.post(f"/v1/stream/{token}/steps", json={"steps": PULSE[:1]})
        site.client.delete(f"/v1/stream/{token}")

    thread = threading.Thread(target=act)
    thread.start()
    response = site.client.get(f"/v1/stream/{token}/events")  # returns when the stream has been stopped
    thread.join()
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.splitlines() if line]
    assert lines[0].startswith(":")
    assert lines[1] == "event: result"
    assert json.loads(lines[2].removeprefix("data: "))["step"] == 1
    assert lines[3:] == ["event: end", "data: {}"]


def _find_streams(site):
    app = site.app.app
    for route in app.routes:
        if getattr(route, "path", "") == "/v1/stream" and hasattr(route.endpoint, "__self__"):
            return route.endpoint.__self__.streams
    raise AssertionError("there is no route of streams")


def _streams(site):
    return _find_streams(site)._by_token


async def _listen(site, stream):
    return _find_streams(site).listen(stream)


def test_idle_streams_are_dropped(folder):
    with (site := open_site([folder / "pulses"], idle=60)).client:
        tokens = [start(site.client, "pulses") for _ in range(2)]
        streams = _find_streams(site)
        streams._by_token[tokens[0]].used -= 100
        assert site.client.portal.call(_drop, streams) == 1
        assert site.client.post(f"/v1/stream/{tokens[0]}/steps", json={"steps": PULSE[:1]}).status_code == 404
        assert site.client.post(f"/v1/stream/{tokens[1]}/steps", json={"steps": PULSE[:1]}).status_code == 200


async def _drop(streams):
    return streams.drop_idle()


def test_there_is_a_limit_on_streams(folder):
    with (site := open_site([folder / "pulses"], max_streams=2, client_share=1.0)).client:
        tokens = [start(site.client, "pulses") for _ in range(2)]
        assert site.client.post("/v1/stream", json={}).status_code == 429
        site.client.delete(f"/v1/stream/{tokens[0]}")
        assert site.client.post("/v1/stream", json={}).status_code == 201


def test_several_steps_are_limited_and_one_is_not(folder):
    with (site := open_site([folder / "cups"], max_steps=1)).client:
        path = f"/v1/stream/{start(site.client, 'cups')}/steps"
        answer = site.client.post(path, json={"steps": ["mint", "honey"]})
        assert answer.status_code == 413 and "reads at most 1 of a stream at a time" in answer.text
        assert site.client.post(path, json={"steps": ["mint honey"]}).status_code == 200


CELLS = ["gru", "lstm", "min_gru", "attn_rnn", "transformer", "hybrid", "tcn"]


@pytest.mark.parametrize("model", [*CELLS, "bi_gru"])
@pytest.mark.parametrize("readout", ["max_mean", "attention"])
def test_steps_of_every_kind_of_layer_match_the_whole_row(tmp_path, model, readout):
    torch.manual_seed(0)
    data = write_pulses(tmp_path / "pulses.jsonl")
    settings = {**TRAINING, "steps": 1, "model": model, "readout": readout}
    run = seqloom.train(
        data, out=tmp_path / "run", input=("pulse", "flow"), target=("state",), kind="classify", **settings
    )
    version = load_version("one", run.folder, ServeSettings())
    if model == "bi_gru":
        assert version.stepper is None
        assert version.no_streams == "its layer reads both ways and needs the whole row"
        return
    fixed = version.stepper.dims is not None
    streams = [version.stepper.open() for _ in range(70 if fixed else 3)]  # 70: more than the first block of slots
    rows = [[{"pulse": 0.1 * k + n, "flow": 0.2} for n in range(3)] for k in range(len(streams))]
    for n in range(3):
        jobs = [(slot, [row[n]]) for slot, row in zip(streams, rows, strict=True)]
        results = version.stepper.run(jobs[:2], False) + version.stepper.run(jobs[2:], False)
    expected = run.predict([join(row) for row in rows])
    assert all(is_same(*pair) for pair in zip([one[0] for one in results], expected, strict=True))

"""What every request passes, around an application of the test."""

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest

from seqloom.lab.web import bodies, logs
from seqloom.lab.web.gate import Gate, Policy, ServerState
from seqloom.lab.web.settings import WebSettings

HOST = (b"host", b"localhost")


class Exchange:
    """One request; a test sends its messages with `say`, and reads what was answered."""

    def __init__(self, gate, client="192.0.2.1", headers=(), path="/x", length=None):
        self.messages, self.answers = asyncio.Queue(), []
        sent = [HOST, *headers, *([] if length is None else [(b"content-length", str(length).encode())])]
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": sent, "client": (client, 1)}
        self.task = asyncio.create_task(gate(self.scope, self.messages.get, self._send))

    async def _send(self, message):
        self.answers.append(message)

    def say(self, body=b"", more=False):
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self):
        self.messages.put_nowait({"type": "http.disconnect"})

    @property
    def status(self):
        return self.answers[0]["status"] if self.answers else None

    @property
    def error(self):
        return json.loads(self.answers[1]["body"])["error"]


class Application:
    """Echoes bodies once `go` is set."""

    def __init__(self):
        self.begun, self.cancelled, self.go = 0, 0, asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


def check(test, **settings):
    """Run a test with a gate and its application."""

    async def main():
        app = Application()
        gate = Gate(app, WebSettings(**settings), Policy(lambda *_: None), ServerState())
        await test(gate, app)

    asyncio.run(main())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_bodies_that_are_being_received_take_no_place_among_the_requests():
    async def test(gate, app):
        app.go.set()
        half_sent = [Exchange(gate, length=10) for _ in range(50)]
        for one in half_sent:
            one.say(b"12345", more=True)
        await settle()
        assert (gate.requests.used, gate.receiving.used, app.begun) == (0, 250, 0)
        whole = [Exchange(gate, client, length=2) for client in ("192.0.2.1", "192.0.2.2")]
        for one in whole:
            one.say(b"ok")
        await settle()
        assert [one.status for one in whole] == [200, 200]
        for one in half_sent:
            one.say(b"67890")
            await settle()
        assert (gate.requests.used, gate.receiving.used) == (0, 0)
        assert {one.answers[1]["body"] for one in half_sent} == {b"1234567890"}

    check(test, max_requests=2, client_share=0.5)


def test_a_client_has_its_share_of_the_requests_and_others_theirs():
    async def test(gate, app):
        first = [Exchange(gate, "192.0.2.1") for _ in range(3)]
        other = [Exchange(gate, f"192.0.2.{n}") for n in (2, 3, 4)]
        health = Exchange(gate, "192.0.2.5", path="/healthz")
        await settle()
        assert [one.status for one in (*first, *other)] == [None, None, 429, None, None, 503]
        assert "2 requests of a client" in first[2].error and "4 requests at a time" in other[2].error
        app.go.set()
        await settle()
        assert [one.status for one in (*first[:2], *other[:2], health)] == [200] * 5
        assert gate.requests.used == 0

    check(test, max_requests=4, client_share=0.5)


def test_the_bytes_of_bodies_are_limited_for_a_client_and_in_total():
    async def test(gate, app):
        first = [Exchange(gate, "192.0.2.1", length=200) for _ in range(2)]
        others = [Exchange(gate, f"192.0.2.{n}", length=200) for n in (2, 3)]
        for one in (*first, *others):
            one.say(bytes(60), more=True)
        await settle()
        assert gate.receiving.used == 120
        for one in (first[1], others[1]):  # the rest is read, so that the client receives the answer
            assert one.status is None
            one.say(bytes(140))
        await settle()
        assert [one.status for one in (*first, *others)] == [None, 429, None, 503]
        assert (b"connection", b"close") in others[1].answers[0]["headers"]
        first[0].leave()
        others[0].leave()
        await settle()
        assert gate.receiving.used == 0

    check(test, max_receiving=160, client_share=0.5)


def test_a_slow_body_is_given_up(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)

    async def test(gate, app):
        slow = Exchange(gate, length=10)
        slow.say(b"1", more=True)
        await slow.task
        assert (slow.status, gate.receiving.used, app.begun) == (408, 0, 0)

    check(test)


@pytest.mark.parametrize("moment", ["body", "work"])
def test_a_client_that_leaves_is_cancelled_and_logged_as_such(moment, caplog):
    async def test(gate, app):
        one = Exchange(gate, length=2)
        one.say(b"o" if moment == "body" else b"ok", more=moment == "body")
        await settle()
        assert app.begun == (moment == "work")
        one.leave()
        await one.task
        assert (app.cancelled, one.answers, gate.requests.used) == (app.begun, [], 0)

    with caplog.at_level(logging.INFO, logger=logs.NAME):
        check(test)
    (line,) = caplog.records
    assert (line.msg, line.facts["status"], line.levelname) == ("request", 499, "INFO")


def test_a_client_that_leaves_during_a_streamed_answer_is_logged_as_such(caplog):
    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b".", "more_body": True})
            await asyncio.sleep(0)

    async def test(gate, app):
        gate.app = stream
        one = Exchange(gate)
        await settle()
        one.leave()
        await one.task
        assert one.status == 200 and len(one.answers) > 2

    with caplog.at_level(logging.INFO, logger=logs.NAME):
        check(test)
    assert [record.facts["status"] for record in caplog.records] == [499]


def test_the_end_of_an_answer_is_not_a_client_that_left(caplog):
    async def linger(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        await settle()  # meanwhile the server says that the exchange is over
        scope["lingered"] = True

    async def test(gate, app):
        gate.app = linger
        one = Exchange(gate)
        one.leave()
        await one.task
        assert one.scope["lingered"]

    with caplog.at_level(logging.INFO, logger=logs.NAME):
        check(test)
    assert [record.facts["status"] for record in caplog.records] == [200]


def test_an_answer_that_takes_too_long_is_cancelled():
    async def test(gate, app):
        one = Exchange(gate)
        await one.task
        assert (one.status, app.cancelled, gate.requests.used) == (503, 1, 0)

    check(test, max_seconds=0.05)


def test_the_host_is_checked_where_only_this_machine_connects():
    async def test(gate, app):
        app.go.set()
        for policy, status in ((gate.policy, 403), (Policy(lambda *_: None, checks_host=False), 200)):
            gate.policy = policy
            one = Exchange(gate)
            one.scope["headers"][0] = (b"host", b"evil.example")
            await one.task
            assert one.status == status

    check(test)


def test_settings_read_lists_of_proxies_and_refuse_what_is_no_network():
    assert WebSettings(trusted_proxies="10.0.0.1, 10.1.0.0/16").trusted_proxies == ("10.0.0.1", "10.1.0.0/16")
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 network"):
        WebSettings(trusted_proxies="zanzibar")
    assert [WebSettings(client_share=s).limit_client(256) for s in (1, 0.25, 0.001)] == [256, 64, 1]


def test_sockets_of_a_client_are_limited():
    async def test(gate, app):
        async def connect(client):
            answers = []

            async def send(message):
                answers.append(message)

            async def receive():
                return {"type": "websocket.connect"}

            scope = {"type": "websocket", "path": "/x", "headers": [HOST], "client": (client, 1)}
            scope["extensions"] = {"websocket.http.response": {}}
            task = asyncio.create_task(gate(scope, receive, send))
            await settle()
            return SimpleNamespace(answers=answers, task=task)

        opened = [await connect(client) for client in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3")]
        assert [one.answers[0]["status"] if one.answers else None for one in opened] == [None, 429, None, 503]
        app.go.set()
        await settle()
        assert gate.sockets.used == 0

    async def sockets_app(gate, app):
        gate.app = lambda *_: app.go.wait()
        await test(gate, app)

    check(sockets_app, max_connections=2, client_share=0.5)

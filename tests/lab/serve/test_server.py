"""The server process: slow, idle and vanishing clients, and a stop that loses no request."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from small_runs import open_site

from seqloom.core.errors import UserError
from seqloom.lab.serve.app import make_server
from seqloom.lab.web import bodies, connections
from seqloom.lab.web import server as web_server

BODY = json.dumps({"rows": ["mint honey"]}).encode()
REQUEST = (
    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@contextmanager
def serve(folder, token=None, grace=0.1, **settings):
    """Run a server in a thread; yields it and its port."""
    parts = open_site([folder / "cups"], token, port=0, grace=grace, **settings)
    ready = threading.Event()
    server = make_server(parts.runs, parts.settings, parts.metrics, token, lambda _: ready.set())
    thread = threading.Thread(target=server.serve_site)
    thread.start()
    assert ready.wait(60)
    try:
        yield server, int(server.address.rpartition(":")[2])
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


def ask(port, method="GET", path="/healthz", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def read_all(one):
    parts = []
    while part := one.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_a_used_port_is_refused_with_one_sentence(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        parts = open_site([folder / "cups"], port=taken.getsockname()[1])
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:"):
            make_server(parts.runs, parts.settings, parts.metrics, None, print)


def test_idle_connections_make_room_for_new_ones(folder):
    with serve(folder, max_connections=8) as (server, port):
        idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(40)]
        assert ask(port, "POST", "/v1/predict", BODY)[0] == 200
        assert len(server.connections.all) <= 8
        for one in idle[:20]:
            with one, suppress(ConnectionResetError):
                assert one.recv(1) == b""  # closed by the server; otherwise this would wait
        for one in idle[20:]:
            one.close()


def test_a_connection_without_a_request_is_closed(folder, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    with serve(folder) as (_, port), socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
        slow.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: loc")
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
        assert ask(port)[0] == 200


def test_a_slow_body_is_given_up_and_a_vanished_client_is_forgotten(folder, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    with serve(folder) as (_, port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
            slow.sendall(REQUEST % len(BODY) + BODY[:4])
            assert read_all(slow).startswith(b"HTTP/1.1 408")
        for part in (b"", REQUEST[:30], REQUEST % len(BODY), REQUEST % len(BODY) + BODY):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as gone:
                gone.sendall(part)
        assert ask(port, "POST", "/v1/predict", BODY)[0] == 200


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(folder, text):
    with serve(folder) as (_, port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
            other.sendall(text)
            assert read_all(other).split(b" ")[1] in (b"400", b"415")
        assert ask(port)[0] == 200


def test_a_stop_finishes_what_was_taken(folder):
    with serve(folder) as (server, port):
        run = server.config.app.app.router.routes[0].endpoint.__self__.runs.by_name["cups"]
        begun, go, call = threading.Event(), threading.Event(), run.rows._call

        def wait(key, jobs):
            begun.set()
            go.wait(30)
            return call(key, jobs)

        run.rows._call = wait
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(port, "POST", "/v1/predict", BODY)))
        asking.start()
        assert begun.wait(30)
        server.should_exit = True
        while not server._state.is_stopping:
            time.sleep(0.01)
        go.set()
        asking.join(30)
    assert answers[0][0] == 200
    with pytest.raises(ConnectionError):
        ask(port)


def test_a_server_that_stops_answers_until_its_grace_ends(folder):
    with serve(folder, grace=60) as (server, port):
        server.should_exit = True
        while not server._state.is_stopping:
            time.sleep(0.01)
        time.sleep(0.2)
        assert ask(port, "POST", "/v1/predict", BODY)[0] == 200
        server.force_exit = True


def make_certificate(folder):
    """Write a certificate for localhost and its key, as openssl makes them."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(folder / "key.pem")]
    words = [openssl, "req", "-x509", *key, "-days", "1", *names, "-out", str(folder / "cert.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}


def test_a_certificate_makes_it_https(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(web_server, "HANDSHAKE_SECONDS", 0.2)
    with serve(folder, **(files := make_certificate(tmp_path))) as (server, port):
        assert server.address == f"https://127.0.0.1:{port}"
        context = ssl.create_default_context(cafile=files["tls_cert"])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        connection.request("POST", "/v1/predict", BODY, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as silent, suppress(ConnectionResetError):
            assert silent.recv(1) == b""  # its handshake does not begin


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tls_cert": "missing.pem"}, "--tls-cert: missing.pem is not a file"),
        ({"tls_key": "key.pem"}, "--tls-key key.pem needs a certificate"),
        ({"tls_cert": __file__}, "the certificate and its key cannot be used"),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_refused_in_one_sentence(folder, files, message):
    parts = open_site([folder / "cups"], port=0, **files)
    with pytest.raises(UserError, match=message):
        make_server(parts.runs, parts.settings, parts.metrics, None, print)


def test_half_sent_bodies_do_not_stop_others(folder):
    with serve(folder, max_requests=2) as (_, port):
        half_sent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(20)]
        for one in half_sent:
            one.sendall(REQUEST % len(BODY) + BODY[:4])
        assert [ask(port, "POST", "/v1/predict", BODY)[0] for _ in range(3)] == [200] * 3
        for one in half_sent:
            one.close()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_no_request_is_lost_when_the_process_is_terminated_under_load(folder):
    words = [sys.executable, "-m", "seqloom", "serve", str(folder / "cups"), "--port", "0", "--json", "--quiet"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = iter(process.stdout.readline, "}\n")
    address = json.loads("".join(lines) + "}")["address"]
    port, statuses, lost, stop = int(address.rpartition(":")[2]), [], [], threading.Event()

    def work():
        while not stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.connect()
            except OSError:  # the port is closed: the request was not taken
                return
            try:
                while True:
                    connection.request("POST", "/v1/predict", BODY, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    answer.read()
                    statuses.append(answer.status)
                    if answer.getheader("connection") == "close":
                        break
            except OSError as error:
                lost.append(repr(error))
            finally:
                connection.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(statuses) < 50:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert process.returncode == 0, errors
    last = json.loads(errors.splitlines()[-1])
    assert last["event"] == "stopped"
    assert set(statuses) == {200}
    # every request that the server took was answered, and its answer arrived; a connection that the server had not
    # taken from the queue of the kernel may be reset when the port closes
    assert last["taken"] == last["answered"] == len(statuses)
    assert len(lost) <= len(threads)

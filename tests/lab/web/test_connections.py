"""Which connections are closed, with a clock that the test sets."""

from types import SimpleNamespace

import pytest

from seqloom.lab.web import connections as module
from seqloom.lab.web.clients import Clients
from seqloom.lab.web.connections import (
    HEADER_SECONDS,
    MOST_AT_ONCE,
    UNREAD_SECONDS,
    Connections,
    make_protocol,
)
from seqloom.lab.web.server import SPARE_FILES, _raise_file_limit


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Connection:
    """A connection that knows whether it was closed."""

    def __init__(self):
        self.is_open = True
        self.transport = SimpleNamespace(abort=self.abort)

    def abort(self):
        assert self.is_open
        self.is_open = False


def open_connections(connections, number):
    opened = [Connection() for _ in range(number)]
    for connection in opened:
        connections.add(connection, "client")
    return opened


def test_the_connection_that_has_been_idle_longest_makes_room():
    connections = Connections(2, 2)
    opened = open_connections(connections, 3)
    assert [c.is_open for c in opened] == [False, True, True]
    assert set(connections.all) == set(opened[1:])


def test_a_busy_connection_is_not_closed_for_a_new_one():
    connections = Connections(2, 2)
    first, second = open_connections(connections, 2)
    connections.set_busy(first)
    connections.add(third := Connection(), "client")
    assert (first.is_open, second.is_open, third.is_open) == (True, False, True)


def test_a_connection_that_was_used_lately_stays():
    connections = Connections(2, 2)
    first, second = open_connections(connections, 2)
    connections.set_idle(first)
    connections.add(Connection(), "client")
    assert (first.is_open, second.is_open) == (True, False)


@pytest.mark.parametrize(("seconds", "closed"), [(HEADER_SECONDS, 0), (HEADER_SECONDS + 1, 1)])
def test_a_connection_without_a_request_is_closed_after_a_while(clock, seconds, closed):
    connections = Connections(9, 9)
    idle, busy = open_connections(connections, 2)
    connections.set_busy(busy)
    clock.now += seconds
    assert connections.close_expired() == closed
    assert (idle.is_open, busy.is_open) == (not closed, True)


def test_a_connection_whose_client_does_not_read_is_closed_after_a_while(clock):
    connections = Connections(9, 9)
    blocked, reading = open_connections(connections, 2)
    for connection in (blocked, reading):
        connections.set_busy(connection)
        connections.set_blocked(connection, True)
    clock.now += UNREAD_SECONDS / 2
    connections.set_blocked(reading, False)
    connections.set_blocked(blocked, True)  # still, since the first time
    clock.now += UNREAD_SECONDS / 2 + 1
    assert connections.close_expired() == 1
    assert (blocked.is_open, reading.is_open) == (False, True)


def test_a_connection_that_is_gone_is_forgotten(clock, monkeypatch):
    connections = Connections(9, 9)
    protocol = make_protocol(connections, Clients())
    base = protocol.__mro__[1]
    ended = []
    monkeypatch.setattr(base, "connection_lost", lambda *args: ended.append(args[0]))
    connection = protocol.__new__(protocol)
    connections.add(connection, "client")
    connections.set_blocked(connection, True)
    protocol.connection_lost(connection, None)
    clock.now += 10 * UNREAD_SECONDS
    assert (connections.all, connections.close_expired(), ended) == ({}, 0, [connection])


def test_a_client_with_too_many_connections_loses_its_own():
    connections = Connections(100, 2)
    other = Connection()
    connections.add(other, "other")
    opened = open_connections(connections, 3)
    assert [c.is_open for c in (other, *opened)] == [True, False, True, True]
    for connection in opened[1:]:
        connections.set_busy(connection)
    connections.add(new := Connection(), "client")  # all of its others are in use
    assert [c.is_open for c in (other, *opened, new)] == [True, False, True, True, False]


def test_the_client_with_most_connections_makes_room_for_others():
    connections = Connections(4, 4)
    other = Connection()
    connections.add(other, "other")
    opened = open_connections(connections, 3)
    connections.add(new := Connection(), "third")
    assert [c.is_open for c in (other, *opened, new)] == [True, False, True, True, True]


def test_a_proxy_has_no_limit_of_its_own():
    connections = Connections(100, 2)
    opened = [Connection() for _ in range(10)]
    for connection in opened:
        connections.add(connection, None)
    assert all(c.is_open for c in opened)


def test_connections_beyond_some_of_a_client_are_read_as_those_are_answered_while_others_have_requests(clock):
    others = True
    connections = Connections(999, 999, lambda client: others and client == "client")
    opened = open_connections(connections, MOST_AT_ONCE + 6)
    read = []
    may_read = [connections.may_read(c, lambda n=n: read.append(n)) for n, c in enumerate(opened)]
    assert may_read == [True] * MOST_AT_ONCE + [False] * 6
    for client in ("other", None):  # None is a proxy
        connections.add(new := Connection(), client)
        assert connections.may_read(new, read.clear)
        connections.remove(new)
    connections.set_answered(opened[0])
    connections.remove(opened[1])
    assert read == [MOST_AT_ONCE, MOST_AT_ONCE + 1]
    connections.remove(opened[MOST_AT_ONCE + 2])  # its client left
    assert len(read) == 2
    connections.set_answered(opened[2])
    assert read[2:] == [MOST_AT_ONCE + 3]
    others = False
    connections.add(new := Connection(), "client")
    assert connections.may_read(new, read.clear)
    for connection in (*opened[3:], new):
        if connection in connections.all:
            connections.remove(connection)
    assert read[3:] == [MOST_AT_ONCE + 4, MOST_AT_ONCE + 5]
    assert not connections._unanswered and not connections._waiting


@pytest.mark.parametrize("leaves", [False, True])
def test_the_first_bytes_of_a_connection_wait(monkeypatch, leaves):
    protocol = make_protocol(connections := Connections(999, 999, lambda _: True), Clients())
    read, events, waiting = [], [], []
    monkeypatch.setattr(connections, "may_read", lambda _, start: waiting.append(start))
    monkeypatch.setattr(protocol.__mro__[1], "data_received", lambda _, data: read.append(data))
    connection = protocol.__new__(protocol)
    connection.cycle = None
    connection.transport = SimpleNamespace(is_closing=lambda: leaves)
    connection.flow = SimpleNamespace(
        pause_reading=lambda: events.append("pause"), resume_reading=lambda: events.append("resume")
    )
    connection.loop = SimpleNamespace(call_soon=lambda start: start())
    connection.data_received(b"first")
    connection.data_received(b" bytes")
    assert (read, events) == ([], ["pause", "pause"])
    (start,) = waiting
    start()
    if leaves:
        assert (read, events) == ([], ["pause", "pause"])
        return
    connection.data_received(b"second")
    assert (read, events) == ([b"first bytes", b"second"], ["pause", "pause", "resume"])


@pytest.mark.parametrize(
    ("hard", "possible", "raised"),
    [(10_000, 1_000, 1_000 + SPARE_FILES), (500, 500 - SPARE_FILES, 500), (SPARE_FILES, 1, SPARE_FILES)],
)
def test_connections_leave_files_for_everything_else(hard, possible, raised, monkeypatch):
    resource, limits = pytest.importorskip("resource"), []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert _raise_file_limit(1_000) == possible
    assert limits == [(raised, hard)]

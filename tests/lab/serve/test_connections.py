"""Which connections are closed, with a clock that the test sets."""

from types import SimpleNamespace

import pytest

from seqloom.lab.serve import connections as module
from seqloom.lab.serve.connections import HEADER_SECONDS, UNREAD_SECONDS, Connections, make_protocol


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
        connections.add(connection)
    return opened


def test_the_connection_that_has_been_idle_longest_makes_room():
    connections = Connections(2)
    opened = open_connections(connections, 3)
    assert [c.is_open for c in opened] == [False, True, True]
    assert connections.all == set(opened[1:])


def test_a_busy_connection_is_not_closed_for_a_new_one():
    connections = Connections(2)
    first, second = open_connections(connections, 2)
    connections.set_busy(first)
    connections.add(third := Connection())
    assert (first.is_open, second.is_open, third.is_open) == (True, False, True)


def test_a_connection_that_was_used_lately_stays():
    connections = Connections(2)
    first, second = open_connections(connections, 2)
    connections.set_idle(first)
    connections.add(Connection())
    assert (first.is_open, second.is_open) == (True, False)


@pytest.mark.parametrize(("seconds", "closed"), [(HEADER_SECONDS, 0), (HEADER_SECONDS + 1, 1)])
def test_a_connection_without_a_request_is_closed_after_a_while(clock, seconds, closed):
    connections = Connections(9)
    idle, busy = open_connections(connections, 2)
    connections.set_busy(busy)
    clock.now += seconds
    assert connections.close_expired() == closed
    assert (idle.is_open, busy.is_open) == (not closed, True)


def test_a_connection_whose_client_does_not_read_is_closed_after_a_while(clock):
    connections = Connections(9)
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
    connections = Connections(9)
    protocol = make_protocol(connections)
    base = protocol.__mro__[1]
    ended = []
    monkeypatch.setattr(base, "connection_lost", lambda *args: ended.append(args[0]))
    connection = protocol.__new__(protocol)
    connections.add(connection)
    connections.set_blocked(connection, True)
    protocol.connection_lost(connection, None)
    clock.now += 10 * UNREAD_SECONDS
    assert (connections.all, connections.close_expired(), ended) == (set(), 0, [connection])

"""Large bodies take turns and rest; small ones do not wait."""

import asyncio

import pytest

from seqloom.lab.web.clients import MOST_PACES
from seqloom.lab.web.lane import BYTES_PER_SECOND, LARGE, MOST_REST, REST, Lane


class Clock:
    """A loop's time and sleep, without waiting."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds):
        self.now += seconds


def run(test, monkeypatch):
    async def main():
        clock = Clock(monkeypatch)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock.now)
        return await test(clock)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main())


def test_a_rest_follows_a_large_body_while_others_have_requests(monkeypatch):
    async def test(clock):
        others = True
        lane = Lane(lambda _: others)
        async with lane.take_turn("a", LARGE):
            clock.now = 0.01
        async with lane.take_turn("b", LARGE - 1):
            assert clock.now == 0.01  # a small one
        async with lane.take_turn("a", LARGE):
            assert clock.now == pytest.approx(0.01 + REST * 0.01)
            clock.now = 5.0
        async with lane.take_turn("a", LARGE):
            assert clock.now == 5.0 + MOST_REST
            clock.now = 7.0
        others = False
        async with lane.take_turn("a", LARGE):
            assert clock.now == 7.0
        assert not lane._of_client

    run(test, monkeypatch)


def test_clients_take_turns_and_one_that_leaves_is_forgotten():
    order = []

    async def read(lane, client, name):
        async with lane.take_turn(client, LARGE):
            order.append(name)
            await asyncio.sleep(0)

    async def test():
        lane = Lane(lambda _: False)
        tasks = [asyncio.create_task(read(lane, name[0], name)) for name in ("a1", "a2", "a3", "b1", "c1")]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not lane._of_client

    asyncio.run(test())
    assert order == ["a1", "b1", "c1", "a2"]


def test_large_bodies_are_received_slowly_by_client(monkeypatch):
    async def test(clock):
        lane = Lane(lambda client: client != "alone")
        second = BYTES_PER_SECOND
        assert lane.find_wait("a", LARGE - 1, LARGE - 1) == 0
        assert lane.find_wait("a", second, LARGE) == 1
        assert lane.find_wait("a", second, LARGE) == 2
        assert lane.find_wait("b", second, LARGE) == 1
        assert lane.find_wait("alone", second, LARGE) == 0
        clock.now = 5.0
        assert lane.find_wait("a", second, LARGE) == 1
        for n in range(MOST_PACES):
            lane.find_wait(f"client {n}", second, LARGE)
        clock.now = 50.0
        lane.find_wait("a", second, LARGE)
        assert list(lane._pace._free_at) == ["a"]

    run(test, monkeypatch)

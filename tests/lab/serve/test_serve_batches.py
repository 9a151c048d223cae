"""Jobs share calls; none is lost, and none waits for another that has failed."""

import asyncio
import threading

import pytest

from seqloom.lab.serve.batches import Batches, run_together


def run(test, call, **options):
    async def main():
        async with Batches(call, **{"size": 4, "wait": 0.0, "name": "test", **options}) as batches:
            return await test(batches)

    return asyncio.run(main())


def list_rows(parts):
    return [row for part in parts for row in part.rows]


def ask(batches, rows, key="a", client="client", steps=1):
    return asyncio.create_task(batches.run(key, rows, [steps] * len(rows), client))


class Blocked:
    """A call that begins to run and then waits until `go` is set."""

    def __init__(self):
        self.begun, self.go, self.calls = threading.Event(), threading.Event(), []

    def __call__(self, key, parts):
        self.calls.append((key, list_rows(parts)))
        self.begun.set()
        self.go.wait(10)
        return [[10 * row for row in part.rows] for part in parts]


def test_jobs_that_arrive_during_a_call_share_the_next_one():
    call = Blocked()

    async def test(batches):
        first = ask(batches, [1])
        await asyncio.to_thread(call.begun.wait, 10)
        others = [ask(batches, [n], key) for key, n in [("a", 2), ("b", 3), ("a", 4)]]
        await asyncio.sleep(0)
        assert batches.rows == 3
        call.go.set()
        return await asyncio.gather(first, *others)

    assert run(test, call) == [[10], [20], [30], [40]]
    assert call.calls == [("a", [1]), ("a", [2, 4]), ("b", [3])]


def test_no_call_is_larger_than_its_size_and_results_keep_their_order():
    calls = []

    def call(key, parts):
        calls.append(list_rows(parts))
        return [part.rows for part in parts]

    async def test(batches):
        return await asyncio.gather(*(ask(batches, [f"{n} {i}" for i in range(n)]) for n in (3, 2, 2, 9, 1)))

    assert run(test, call) == [[f"{n} {i}" for i in range(n)] for n in (3, 2, 2, 9, 1)]
    assert max(map(len, calls)) == 4


@pytest.mark.parametrize("client", ["the same", "another"])
def test_a_small_request_waits_for_as_much_work_as_one_call_may_have(client):
    call = Blocked()

    async def test(batches):
        large = ask(batches, list(range(40)), client="the same")
        await asyncio.to_thread(call.begun.wait, 10)
        small = ask(batches, ["small"], client=client)
        await asyncio.sleep(0)
        call.go.set()
        await asyncio.gather(large, small)

    run(test, call, steps=8)
    order = [row for _, rows in call.calls for row in rows]
    assert order.index("small") <= 8  # the steps that one call may have: two calls of four rows
    assert sorted(row for row in order if row != "small") == list(range(40))


def test_a_long_job_rests_while_short_jobs_are_there():
    call = Blocked()

    async def test(batches):
        short = ask(batches, ["first"])
        await asyncio.to_thread(call.begun.wait, 10)
        long = ask(batches, ["long"] * 4, client="other", steps=6)
        call.go.set()
        await short
        while len(call.calls) < 2:  # nothing else is there, so the long job runs
            await asyncio.sleep(0)
        more = [ask(batches, [n]) for n in range(3)]
        await asyncio.gather(long, *more)

    run(test, call, steps=8, size=1)
    rows = [row for _, rows in call.calls for row in rows]
    assert rows[:2] == ["first", "long"]
    assert rows.index(2) < len(rows) - 2  # the short jobs did not wait for all of the long one


def test_the_time_steps_of_a_call_are_limited():
    calls = []

    def call(key, parts):
        calls.append(list_rows(parts))
        return [part.rows for part in parts]

    async def test(batches):
        return await asyncio.gather(ask(batches, list("abcdef"), steps=50), ask(batches, list("xy"), steps=500))

    assert run(test, call, steps=100) == [list("abcdef"), list("xy")]
    assert ["x"] in calls and ["y"] in calls
    assert all(len(rows) <= 2 for rows in calls)


def test_an_exception_reaches_the_jobs_of_its_call_only():
    def call(key, parts):
        if key == "bad":
            raise ZeroDivisionError
        return [KeyError(part.rows[0]) if part.rows[0] == 2 else part.rows for part in parts]

    async def test(batches):
        jobs = [("good", 1), ("bad", 1), ("good", 2), ("good", 3)]
        return await asyncio.gather(*(ask(batches, [n], key) for key, n in jobs), return_exceptions=True)

    results = run(test, call)
    assert [type(result) for result in results] == [list, ZeroDivisionError, KeyError, list]


def test_the_rest_of_a_job_that_failed_is_not_run():
    seen = []

    def call(key, parts):
        seen.extend(list_rows(parts))
        return [ValueError("row 1")] * len(parts)

    async def test(batches):
        with pytest.raises(ValueError, match="row 1"):
            await ask(batches, list(range(100)))
        return batches.rows

    assert run(test, call, steps=4) == 0
    assert len(seen) < 20


def test_a_job_whose_client_has_gone_is_not_run():
    call = Blocked()

    async def test(batches):
        first = ask(batches, [1])
        await asyncio.to_thread(call.begun.wait, 10)
        gone, stays = (ask(batches, [n]) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        call.go.set()
        return await asyncio.gather(first, stays)

    assert run(test, call) == [[10], [30]]
    assert call.calls == [("a", [1]), ("a", [3])]


def test_run_together_isolates_the_job_that_fails():
    def call(jobs):
        if 0 in jobs:
            raise ValueError
        return [1 / job for job in jobs]

    first, second, third = run_together(call, [1, 0, 2], ValueError)
    assert (first, third) == (1, 0.5)
    assert isinstance(second, ValueError)
    with pytest.raises(TypeError):
        run_together(lambda jobs: jobs + 1, [1], ValueError)

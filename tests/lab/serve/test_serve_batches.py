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


def test_jobs_that_arrive_during_a_call_share_the_next_one():
    begun, go, calls = threading.Event(), threading.Event(), []

    def call(key, jobs):
        calls.append((key, list(jobs)))
        begun.set()
        go.wait(10)
        return [10 * job for job in jobs]

    async def test(batches):
        first = asyncio.create_task(batches.run("a", 1, 1))
        await asyncio.to_thread(begun.wait, 10)
        others = [asyncio.create_task(batches.run(key, n, 1)) for key, n in [("a", 2), ("b", 3), ("a", 4)]]
        await asyncio.sleep(0)
        assert batches.rows == 3
        go.set()
        return await asyncio.gather(first, *others)

    assert run(test, call) == [10, 20, 30, 40]
    assert calls == [("a", [1]), ("a", [2, 4]), ("b", [3])]


def test_a_call_is_not_larger_than_its_size_unless_a_job_is():
    calls = []

    def call(key, jobs):
        calls.append(list(jobs))
        return jobs

    async def test(batches):
        return await asyncio.gather(*(batches.run("a", n, n) for n in (3, 2, 2, 9, 1)))

    assert run(test, call) == [3, 2, 2, 9, 1]
    assert all(sum(jobs) <= 4 or len(jobs) == 1 for jobs in calls)


def test_an_exception_reaches_the_jobs_of_its_call_only():
    def call(key, jobs):
        if key == "bad":
            raise ZeroDivisionError
        return [KeyError(job) if job == 2 else job for job in jobs]

    async def test(batches):
        jobs = [("good", 1), ("bad", 1), ("good", 2), ("good", 3)]
        return await asyncio.gather(*(batches.run(key, n, 1) for key, n in jobs), return_exceptions=True)

    results = run(test, call)
    assert [type(result) for result in results] == [int, ZeroDivisionError, KeyError, int]


def test_a_job_whose_client_has_gone_is_not_run():
    begun, go, seen = threading.Event(), threading.Event(), []

    def call(key, jobs):
        seen.extend(jobs)
        begun.set()
        go.wait(10)
        return jobs

    async def test(batches):
        first = asyncio.create_task(batches.run("a", 1, 1))
        await asyncio.to_thread(begun.wait, 10)
        gone, stays = (asyncio.create_task(batches.run("a", n, 1)) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, stays)

    assert run(test, call) == [1, 3]
    assert seen == [1, 3]


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

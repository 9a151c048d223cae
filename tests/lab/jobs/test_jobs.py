"""Jobs give the same results wherever they run, even if processes die meanwhile."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from seqloom.lab.compare.folder import start_comparison
from seqloom.lab.compare.leaderboard import build_leaderboard
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.jobs import memory, processes
from seqloom.lab.jobs.call import read_result, run_ranks
from seqloom.lab.jobs.cpu import are_denormals_flushed
from seqloom.lab.jobs.processes import InProcesses
from seqloom.lab.jobs.runner import Cluster, Here, Job, Processes, run
from seqloom.lab.jobs.storage import Storage

TIMES = ("training (s)", "latency 1 (ms)", "latency 64 (ms)")


def numbers(count):
    return [Job(f"n{n}", "sample_jobs:numbers", {"n": n}) for n in range(1, count + 1)]


def values(results):
    return {result.key: result.value for result in results}


@pytest.mark.slow
def test_results_are_the_same_in_this_process_and_in_two_others(tmp_path):
    jobs = [*numbers(6), Job("wrong", "sample_jobs:wrong"), Job("trained", "sample_jobs:training", {"seed": 1})]
    started = []
    torch.set_num_threads(2)  # whatever this process was doing
    torch.set_flush_denormal(False)
    try:
        here = {result.key: result for result in run(jobs, Here(), tmp_path / "here")}
        assert torch.get_num_threads() == 2 and not are_denormals_flushed()
    finally:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
    there = {result.key: result for result in run(jobs, Processes(2), tmp_path / "there", before=started.append)}
    assert started == list(here) == [job.key for job in jobs]
    assert values(here.values()) == values(there.values())
    assert here["wrong"].failed == there["wrong"].failed == "ValueError: the data is empty"
    assert here["n1"].value["threads"] == here["n1"].value["most of any library"] == 1
    assert here["n1"].value["denormals"] == 0 and here["trained"].value["test"] > 0


@pytest.mark.slow
def test_a_killed_worker_loses_only_what_came_after_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "RESTARTS", 2)
    jobs = [Job("once", "sample_jobs:killed", {"times": 1}), Job("deadly", "sample_jobs:killed", {"times": 9})]
    results = {result.key: result for result in run([*jobs, *numbers(3)], Processes(2), tmp_path)}
    assert results["once"].value == {"counted": ["0", "1", "2", "3", "4"]}
    assert (tmp_path / "once" / "lines.txt").read_text().split() == ["0", "1", "2", "dead", "3", "4"]
    assert results["deadly"].value is None
    assert "killed by SIGKILL, probably because memory ran out, 3 times" in results["deadly"].failed
    assert sum(not result.failed for result in results.values()) == 4


def test_a_failed_job_has_its_reason_as_result_and_the_others_continue(tmp_path):
    jobs = [
        Job("wrong", "sample_jobs:wrong"),
        Job("tensor", "sample_jobs:not_json"),
        Job("missing", "sample_jobs:no_such_function"),
        Job("greedy", "sample_jobs:who", gpus=99),
        *numbers(1),
    ]
    results = {result.key: result for result in run(jobs, Here(), tmp_path)}
    assert "the data is empty\nand more" in (tmp_path / "wrong" / "failed.txt").read_text()
    assert "not JSON serializable" in results["tensor"].failed
    assert "no_such_function" in results["missing"].failed
    assert "needs 99 GPUs" in results["greedy"].failed
    assert not results["n1"].failed
    assert all(result.value is None for key, result in results.items() if key != "n1")
    assert not (tmp_path / "wrong" / "result.json").exists()  # so it is tried again


def test_a_job_with_a_result_is_not_run_again(tmp_path):
    job, started = Job("me", "sample_jobs:who"), []
    (first,) = run([job], Here(), tmp_path)
    (again,) = run([job], Processes(1), tmp_path, before=started.append)
    assert again == first and again.value == {"pid": os.getpid()} and not started
    with pytest.raises(
        ValueError, match=r"function was 'sample_jobs:who', is 'sample_jobs:numbers'; .* another key or"
    ):
        list(run([Job("me", "sample_jobs:numbers", {"n": 1})], Here(), tmp_path))
    (tmp_path / "me" / "result.json").write_text('{"val')  # no process of ours leaves half a file, but a disk may
    (new,) = run([job], Here(), tmp_path, before=started.append)
    assert new.value == first.value and started == ["me"]


@pytest.mark.slow
def test_two_workers_are_kept_from_job_to_job_and_work_at_the_same_time(tmp_path):
    ended = []

    def jobs():
        # Of each pair both have to begin before either ends: no clock shows that on a machine that others use too.
        yield from (Job(f"j{n}", "sample_jobs:meet", {"place": str(tmp_path / f"{n // 2}")}) for n in range(8))
        while len(ended) < 8:
            yield None  # the last one is made when all other results are known
        yield Job("last", "sample_jobs:who")

    for result in run(jobs(), Processes(2), tmp_path / "out"):
        ended.append(result)
    assert ended[-1].key == "last" and not any(result.failed for result in ended)
    assert len({result.value["pid"] for result in ended[:8]}) == 2


@pytest.mark.slow
def test_one_worker_does_one_job_after_the_other(tmp_path):
    jobs = [Job(f"j{n}", "sample_jobs:meet", {"place": str(tmp_path / "there"), "patience": 0.2}) for n in range(2)]
    first, second = run(jobs, Processes(1), tmp_path / "out")
    assert "nobody came" in first.failed and second.value["pid"]


def test_no_job_is_started_or_awaited_when_time_is_up(tmp_path):
    left = iter([9.0, 9.0, 9.0, 9.0, 0.0])
    results = list(run(numbers(6), Here(), tmp_path, seconds_left=lambda: next(left)))
    assert [result.key for result in results] == ["n1", "n2"]
    assert processes.InProcesses(tmp_path, 1).wait(0.01) == []


def test_an_iterator_that_waits_for_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no job is running"):
        list(run([None], Here(), tmp_path))


PARENT = """
from seqloom.lab.jobs.runner import Job, Processes, run
jobs = [Job("short", "sample_jobs:who"), Job("long", "sample_jobs:steps", {"count": 600, "seconds": 0.1})]
for result in run(jobs, Processes(1), "out"):
    pass
"""


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_workers_end_with_their_parent_and_what_is_finished_is_kept(number, tmp_path):
    lines = tmp_path / "out" / "long" / "lines.txt"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        stderr=subprocess.PIPE,
    )
    until(lines.exists)
    until(lines.read_text)
    worker = Path("/proc", str(json.loads(lines.read_text().splitlines()[0])[1]))
    parent.send_signal(number)
    error = parent.communicate(timeout=120)[1]
    assert (b"KeyboardInterrupt" in error) == (number == signal.SIGINT)
    until(lambda: not worker.exists())
    assert read_result(Job("short", "sample_jobs:who"), tmp_path / "out") is not None


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_second_job_waits_if_memory_is_too_small_for_both(tmp_path, monkeypatch):
    class Idle:
        def __init__(self, *_):
            self.process = self
            self.pid = 0

        def send(self, job):
            pass

    monkeypatch.setattr(processes, "Worker", Idle)
    monkeypatch.setattr(memory, "free_bytes", lambda: 10e9)
    monkeypatch.setattr(memory, "used_bytes", lambda _: 1e9)
    place, job = InProcesses(tmp_path, 2), Job("a", "sample_jobs:who")
    assert place.fits(job)  # nothing is known yet
    place.peaks[job.function] = int(6e9)
    assert place.fits(job)
    place.start(job)
    assert not place.fits(Job("b", job.function))  # 5 of the 10 are promised, and 6 are needed
    assert place.fits(Job("c", "sample_jobs:other"))


def test_the_peak_of_memory_is_that_of_the_last_job():
    memory.reset_peak()
    before = memory.peak_bytes()
    block = bytearray(200_000_000)
    assert memory.peak_bytes() - before > 150e6 and memory.used_bytes(os.getpid()) > 150e6 and memory.free_bytes() > 0
    del block
    memory.reset_peak()
    assert memory.peak_bytes() - before < 100e6


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (Job("a/b", "m:f"), "'a/b' cannot be one"),
        (Job("..", "m:f"), "cannot be one"),
        (Job("a", "f"), "package.module:name"),
        (Job("a", "m:f", {"x": {1}}), "JSON cannot hold"),
    ],
)
def test_an_invalid_job_is_refused(job, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        list(run([job], Here(), tmp_path))


def test_a_second_process_waits_for_a_job_and_takes_its_result(tmp_path):
    results, job = [], Job("slow", "sample_jobs:steps", {"count": 2, "seconds": 0.2})
    both = [threading.Thread(target=lambda: results.extend(run([job], Here(), tmp_path))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert results[0] == results[1]
    assert len((tmp_path / "slow" / "lines.txt").read_text().splitlines()) == 2


def test_two_jobs_of_one_key_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two jobs have the key 'n1'"):
        list(run(numbers(1) * 2, Here(), tmp_path))
    with pytest.raises(ValueError, match="workers must be 1 or more, got 0"):
        Processes(0)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_for_several_gpus_runs_under_torchrun(tmp_path):
    assert run_ranks(Job("a", "sample_jobs:ranks"), tmp_path, 2) == {"sum": 1, "count": 2}


def test_copies_in_a_storage_are_whole_and_the_newest_one_is_fetched(tmp_path):
    own, other, place = tmp_path / "own", tmp_path / "other", f"file://{tmp_path}/store"
    (own / "last").mkdir(parents=True)
    Storage(place, "a").fetch(other)
    assert not other.exists()
    storage = Storage(place, "a")
    for text in ("one", "two"):
        (own / "last" / "state").write_text(text)
        storage.store(own)
        storage.store(own)  # nothing has changed
    (tmp_path / "store/a/half").mkdir()  # a copy that was not finished
    (own / "new").touch()
    Storage(place, "a").store(own)
    Storage(place, "a").fetch(other)
    assert (other / "last" / "state").read_text() == "two" and (other / "new").exists()
    assert len(list((tmp_path / "store/a").iterdir())) == 3  # latest, what it names, and the half one


def test_a_missing_cluster_is_reported_within_ten_seconds(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    began = time.monotonic()
    for address in ("127.0.0.1:1", "nowhere.invalid:6379", "nonsense"):
        with pytest.raises(ValueError, match=f"no Ray cluster at '{address}'; start one with"):
            run([], Cluster(address), tmp_path)
    assert time.monotonic() - began < 10


def test_a_cluster_without_ray_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="a cluster needs Ray; install it with: pip install ray"):
        run([], Cluster(), tmp_path)


def test_the_address_of_a_dead_cluster_is_an_error(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("ray._private.services.get_ray_address_from_environment", lambda *_: "127.0.0.1:1")
    with pytest.raises(ValueError, match="no Ray cluster at 'auto'; start one with"):
        Cluster().check()


class AuthenticationError(Exception):
    """As Ray's."""


def test_a_cluster_that_needs_a_token_is_not_reported_as_missing(monkeypatch):
    pytest.importorskip("ray")

    def refuse(**_):
        raise AuthenticationError

    monkeypatch.setattr("ray._raylet.GcsClient", refuse)
    says = pytest.raises(ValueError, match="needs its token: set RAY_AUTH_MODE=token")
    with socket.create_server(("127.0.0.1", 0)) as server, says:
        Cluster(f"127.0.0.1:{server.getsockname()[1]}").check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_comparison_on_a_cluster_that_loses_a_machine_has_the_rows_of_one_in_this_process(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Machines

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    settings = CompareSettings(models="rnn", steps=90, seeds=4, tune=1)
    here = compared(start_comparison(None, {}, settings, tmp_path / "here"), Here())
    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    machines = Machines(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    killing, left = [], []
    try:
        second = machines.add_node(**small)

        def kill(results):
            machines.remove_node(second, allow_graceful=False)
            left.append(sum(key not in results for key in here[1]))

        def follow(results):
            if len(results) == 3:  # baselines and a probe: now two trainings start, on both
                killing.append(threading.Timer(0.3, kill, [results]))
                killing[0].start()

        where = Cluster(machines.address)
        there = compared(start_comparison(None, {}, settings, tmp_path / "there"), where, follow)
        (hopeless,) = run([Job("impossible", "sample_jobs:who", gpus=2)], where, tmp_path / "there")
        killing[0].join()
    finally:
        machines.shutdown()
    assert there == here and len(here[1]) == 4 and left[0] >= 2
    assert "no machine of the cluster has 2 GPUs" in hopeless.failed


def compared(actual, where, follow=None):
    """Return the table without times, and the metrics of every training."""
    for result in run(actual.jobs(), where, actual.folder / "jobs"):
        actual.results[result.key] = result
        if follow is not None:
            follow(actual.results)
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in build_leaderboard(collect_results(actual))]
    return rows, {key: result.value["valid"] for key, result in actual.results.items() if "-to" in key}

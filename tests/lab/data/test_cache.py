"""The cache: a file is read once, and again only if its cache folder is damaged."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from seqloom.core.cache import cache_home
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.readers import table
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Notes
from seqloom.lab.files import scratch

LINES = "".join(json.dumps({"text": f"a text of number {i} {i * 7 % 5}", "label": i % 2}) + "\n" for i in range(40))


def rows(task):
    return [b.x.tolist() for b in task.batches("train", batch=5, seed=1)]


def test_the_second_opening_reads_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text(LINES)
    task = open_task(tmp_path / "a.jsonl")

    def never(*_):
        raise AssertionError("read again")

    monkeypatch.setattr("seqloom.lab.data.pipeline.files.build_files", never)
    monkeypatch.setattr("seqloom.lab.data.readers.table._scan", never)
    again = open_task(tmp_path / "a.jsonl")
    assert rows(again) == rows(task) and again.splits == task.splits and again.notes == task.notes


def test_files_written_while_decompressing_have_temporary_names(tmp_path, monkeypatch):
    # A temporary name is removed later if the process is killed.
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    scan, names = table._scan, []

    def look(*args):
        names.extend(path.name for path in cache_home().iterdir())
        return scan(*args)

    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "_scan", look)
    open_task(tmp_path / "a.jsonl.gz")
    assert len(names) == 1 and scratch._OURS.fullmatch(names[0])


@pytest.mark.slow
def test_a_large_file_is_read_in_a_separate_process(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "empty.jsonl").write_text("")

    def never(*_):
        raise AssertionError("read here")

    monkeypatch.setattr("seqloom.lab.data.pipeline.files.LARGE", 0)
    monkeypatch.setattr("seqloom.lab.data.pipeline.files.build_files", never)
    monkeypatch.setattr("seqloom.lab.data.readers.table._scan", never)
    task = open_task(tmp_path / "a.jsonl", valid=0.2)
    assert task.splits["valid"].size == 8 and len(rows(task)) > 1
    with pytest.raises(ValueError, match=r"empty\.jsonl"):
        open_task(tmp_path / "empty.jsonl")


PARENT = """
from seqloom.lab.data.pipeline import files
from seqloom.lab.data.pipeline.reading import make_reading
files.LARGE = 0
files.ENTRY = '''
import os, time
import seqloom.lab.data.pipeline.files
from pathlib import Path
def never_end(*_):
    Path("new").write_text(str(os.getpid()))
    Path("new").rename("reader")
    time.sleep(600)
seqloom.lab.data.pipeline.files.open_files = never_end
from seqloom.lab.data.pipeline.files import main; main()
'''
files.fill_cache("a.jsonl", make_reading())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_the_process_that_reads_a_large_file_ends_with_its_parent(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, env=env) as parent:
        wait_until((tmp_path / "reader").exists)
        reader = Path("/proc", (tmp_path / "reader").read_text())
        parent.kill()
    wait_until(lambda: not reader.exists() or "State:\tZ" in (reader / "status").read_text())


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_changed_file_is_read_again(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    before = open_task(tmp_path / "a.jsonl").splits
    (tmp_path / "a.jsonl").write_text(LINES + '{"text": "new", "label": 0}\n')
    after = open_task(tmp_path / "a.jsonl").splits
    assert sum(s.size for s in after.values()) == 41 and before["train"].hash != after["train"].hash


def largest(kind):
    return max(
        (p for p in cache_home().glob(f"{kind}-*/*") if p.suffix in (".arrow", ".bin")), key=lambda p: p.stat().st_size
    )


@pytest.mark.parametrize("kind", ["table", "task"])
@pytest.mark.parametrize("damage", ["truncated", "removed", "old", "no record"])
def test_a_damaged_cache_is_built_again_with_a_warning(kind, damage, tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    before = rows(open_task(tmp_path / "a.jsonl"))
    file = largest(kind)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "removed":
        file.unlink()
    elif damage == "old":
        (file.parent / cache.DONE).write_text(json.dumps({"version": 0, "files": {}}))
    else:
        (file.parent / cache.DONE).unlink()
    task = open_task(tmp_path / "a.jsonl")
    assert rows(task) == before
    assert [w for w in task.notes.warnings if "old or damaged and has been rebuilt" in w]


def test_a_build_that_fails_leaves_nothing_behind():
    def fail(work):
        (work / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.find_or_build("k", fail, Notes())
    assert list(cache_home().iterdir()) == []


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("SEQLOOM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_home() == tmp_path / "x" / "seqloom"


def test_a_fingerprint_sees_names_and_contents(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(np.arange(5).tobytes())
    before = cache.fingerprint(tmp_path / "d")
    (tmp_path / "d" / "a").rename(tmp_path / "d" / "b")
    assert cache.fingerprint(tmp_path / "d") != before

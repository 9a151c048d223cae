"""The cache is used only if its folder belongs to this user alone and its files carry this user's signature."""

import json
import os
import stat
import subprocess
import sys
import warnings

import pytest

from seqloom.core import cache, state
from seqloom.core.cache import DIGEST, cache_folder, read_cached, sign, write_cached
from seqloom.core.state import read_secret, state_folder

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no owners and modes here")


@pytest.fixture(autouse=True)
def _folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQLOOM_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(cache, "_warned", set())


def find(name="a"):
    return cache_folder("cells") / name


def write(name="a", content=b"content"):
    return write_cached(find(name), content, "file")


def read(name="a"):
    return read_cached(find(name), "file")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_written_is_read():
    assert read() is None and write() and read() == b"content"


@posix
def test_folders_and_files_belong_to_the_user_alone(tmp_path):
    os.umask(before := os.umask(0))
    try:
        os.umask(0)
        write()
    finally:
        os.umask(before)
    assert [mode(p) for p in (tmp_path / "cache", find().parent, state_folder())] == [0o700] * 3
    assert [mode(p) for p in (find(), state_folder() / "cache.key")] == [0o600] * 2


def test_the_secret_is_made_once_and_is_not_in_the_cache(tmp_path):
    write()
    secret = read_secret()
    assert len(secret) == 32 and read_secret() == secret
    assert [p.name for p in state_folder().iterdir()] == ["cache.key"]
    assert all(secret not in p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file())


def test_processes_that_start_together_have_one_secret():
    code = "from seqloom.core.state import read_secret; print(read_secret().hex())"
    words = [sys.executable, "-c", code]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(3)]
    assert len({process.communicate()[0] for process in running}) == 1


def test_a_secret_that_another_process_makes_first_is_kept(monkeypatch):
    link = os.link

    def be_slow(work, path):
        path.write_bytes(b"f" * 32)
        path.chmod(0o600)
        link(work, path)

    monkeypatch.setattr(os, "link", be_slow)
    assert read_secret() == b"f" * 32
    assert [p.name for p in state_folder().iterdir()] == ["cache.key"]


def test_a_file_system_without_links_has_a_secret(monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert read_secret() == read_secret()


@pytest.mark.parametrize("change", ["content", "signature", "name", "folder", "another secret", "cut", "empty"])
def test_a_file_that_was_changed_is_not_read_and_is_written_again(change):
    write()
    write("b", b"other")
    whole = find().read_bytes()
    other = cache_folder("kernels") / "a"
    other.parent.mkdir(mode=0o700)
    write_cached(other, b"content", "file")
    find().write_bytes(
        {
            "content": whole[:-1] + b"?",
            "signature": b"?" + whole[1:],
            "name": find("b").read_bytes(),
            "folder": other.read_bytes(),
            "another secret": sign(bytes(32), find(), b"content") + b"content",
            "cut": whole[: DIGEST - 1],
            "empty": b"",
        }[change]
    )
    with pytest.warns(UserWarning, match="its digest is wrong; building it again") as messages:
        assert read() is None
    assert len(messages) == 1
    assert write() and read() == b"content"


@posix
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_not_read(kind, tmp_path):
    write()
    if kind == "link":
        find().rename(tmp_path / "target")
        find().symlink_to(tmp_path / "target")
    else:
        find().unlink()
        os.mkfifo(find()) if kind == "pipe" else find().mkdir()
    with pytest.warns(UserWarning, match="cannot be read"):
        assert read() is None
    if kind == "link":  # the link is replaced, its target stays
        target = (tmp_path / "target").read_bytes()
        assert write(content=b"new") and read() == b"new"
        assert (tmp_path / "target").read_bytes() == target and not find().is_symlink()


@posix
@pytest.mark.parametrize("bits", [0o070, 0o007, 0o020, 0o002, 0o004, 0o050, 0o1007])
@pytest.mark.parametrize("which", ["cache", "cells"])
def test_a_folder_that_others_can_use_is_not_used_and_said_once(which, bits):
    write()
    folder = find().parent if which == "cells" else find().parent.parent
    folder.chmod(0o700 | bits)
    with pytest.warns(UserWarning, match=r"is not used: other users may use it .*chmod go-rwx") as messages:
        assert read() is None and not write() and read() is None
    assert len(messages) == 1
    folder.chmod(0o700)
    assert read() == b"content"


@posix
def test_a_folder_of_another_user_is_not_used(monkeypatch):
    write()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.warns(UserWarning, match=rf"is not used: it belongs to another user \(uid {me}\)") as messages:
        assert read() is None and not write("b")
    assert len(messages) == 1 and not find("b").exists()


@posix
@pytest.mark.parametrize("which", ["cache", "cells"])
def test_a_link_in_place_of_a_folder_is_not_followed(which, tmp_path):
    write()
    folder = find().parent if which == "cells" else find().parent.parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="is not used: it is a symbolic link"):
        assert read() is None and not write("b")
    assert not list((tmp_path / "elsewhere").rglob("b"))


@posix
def test_a_folder_that_somebody_made_in_a_shared_folder_first_is_not_used(tmp_path, monkeypatch):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("SEQLOOM_CACHE", str(shared / "seqloom"))
    (shared / "seqloom" / "cells").mkdir(parents=True)
    (shared / "seqloom").chmod(0o777)
    with pytest.warns(UserWarning, match="is not used"):
        assert not write()
    assert not list((shared / "seqloom" / "cells").iterdir())


@posix
def test_a_shared_folder_may_contain_the_cache(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "tmp" / "seqloom"))
    assert write() and read() == b"content" and mode(tmp_path / "tmp" / "seqloom") == 0o700


@posix
@pytest.mark.parametrize("change", ["mode", "short", "link", "folder's mode", "owner"])
def test_a_secret_that_others_may_know_is_not_used(change, tmp_path, monkeypatch):
    write()
    secret = state_folder() / "cache.key"
    if change == "mode":
        secret.chmod(0o640)
    elif change == "short":
        secret.write_bytes(b"short")
    elif change == "link":
        secret.rename(tmp_path / "target")
        secret.symlink_to(tmp_path / "target")
    elif change == "folder's mode":
        state_folder().chmod(0o777)
    else:
        monkeypatch.setattr(state, "_why_not_own", lambda path, *_: "not yours" if path == secret else None)
    with pytest.warns(UserWarning, match=r"no secret to sign it with .*set SEQLOOM_STATE") as messages:
        assert read() is None and not write()
    assert len(messages) == 1


def test_a_user_without_a_home_has_no_cache_but_a_warning(monkeypatch):
    monkeypatch.setattr(cache, "read_secret", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.warns(UserWarning, match="no home"):
        assert not write()


def test_without_owners_the_signature_alone_decides(monkeypatch):
    monkeypatch.delattr(os, "geteuid", raising=False)  # Windows
    assert write() and read() == b"content"
    find().parent.chmod(0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read() == b"content"
    find().write_bytes(b"x" + find().read_bytes()[1:])
    with pytest.warns(UserWarning, match="its digest is wrong"):
        assert read() is None


def test_a_write_that_fails_leaves_no_file(tmp_path, monkeypatch):
    write()
    find("b").mkdir()
    (find("b") / "x").touch()
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert not write("b")
    assert sorted(p.name for p in find().parent.iterdir()) == ["a", "b"]


def test_a_cached_file_is_read_once(monkeypatch):
    write()
    content = json.dumps([1]).encode()
    reads, read_file = [], cache.read_file

    def swap_after_reading(path, most):
        result = read_file(path, most)
        reads.append(path)
        path.write_bytes(b"changed after it was read")
        return result

    monkeypatch.setattr(cache, "read_file", swap_after_reading)
    write(content=content)
    assert read() == content and len(reads) == 1

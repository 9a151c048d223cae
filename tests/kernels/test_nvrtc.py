"""Built kernels on disk: kept, found again, rebuilt when they are not what was written."""

import pytest

from seqloom.kernels.cuda.runtime import nvrtc


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """Return the flags of every call of the compiler; the text of a kernel is its name."""
    calls = []

    def compile_source(name, text, flags):
        calls.append(flags)
        return f"machine code of {text}".encode()

    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "read_source", lambda name: name)
    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    return calls


def build(text="kernel", **macros):
    return nvrtc.build(text, macros or {"H": 64}, "sm_90")


def test_a_second_build_compiles_nothing(builds):
    assert build() == build() == b"machine code of kernel"
    assert len(builds) == 1


def test_another_text_macro_header_or_gpu_is_another_build(builds, monkeypatch):
    build()
    build("other")
    build(H=128)
    nvrtc.build("kernel", {"H": 64}, "sm_80")
    monkeypatch.setattr(nvrtc, "read_headers", lambda: {"attn_rnn/block.cuh": "changed"})
    build()
    assert len(builds) == 5
    assert len(list(nvrtc.folder().glob("*.cubin"))) == 5


def test_a_build_under_the_name_of_another_is_made_again(builds):
    build()
    build("other")
    first, second = nvrtc.folder().glob("*.cubin")
    first.write_bytes(second.read_bytes())
    with pytest.warns(UserWarning, match="its digest is wrong; building it again"):
        assert [build(), build("other")] == [b"machine code of kernel", b"machine code of other"]
    assert len(builds) == 3


def test_generated_text_needs_no_file(builds):
    assert nvrtc.build("a name", {}, "sm_90", "text") == b"machine code of text"
    nvrtc.build("another name", {}, "sm_90", "text")
    assert len(builds) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "changed"])
def test_a_damaged_build_is_made_again_with_a_warning(builds, damage):
    build()
    (file,) = nvrtc.folder().glob("*.cubin")
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[:-3], "empty": b"", "changed": whole[:40] + b"?" + whole[41:]}[damage])
    with pytest.warns(UserWarning, match=r"\.cubin is damaged, or was not written by this user: .*; building it again"):
        assert build() == b"machine code of kernel"
    assert build() == b"machine code of kernel"
    assert len(builds) == 2


def test_a_folder_that_cannot_be_written_gives_a_warning(builds, tmp_path):
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.warns(UserWarning, match="set SEQLOOM_CACHE to a folder that belongs to you alone") as messages:
        assert build() == b"machine code of kernel"
    assert len(messages) == 1


def test_no_kernel_has_a_lambda_of_any_type():
    """NVRTC treats generic lambdas as host functions and refuses them; a compiler for the CPU accepts them."""
    texts = {path.name: path.read_text() for path in nvrtc.TEXT.glob("*/*.cu*")}
    assert texts and [name for name, text in texts.items() if "(auto" in text or ", auto" in text] == []

"""Built kernels on disk: kept, found again, rebuilt when they are not what was written."""

import pytest

from seqloom.kernels.cuda.runtime import nvrtc


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """How often the compiler ran."""
    done = []

    def compiled(text, flags):
        done.append(flags)
        return f"machine code of {text}".encode()

    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "compiled", compiled)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    return done


def build(text="kernel", **settings):
    return nvrtc.built(text, settings or {"H": 64}, "sm_90")


def test_the_second_time_nothing_is_compiled(builds):
    assert build() == build() == b"machine code of kernel"
    assert len(builds) == 1


def test_another_text_setting_or_gpu_is_another_build(builds):
    build()
    build("other")
    build(H=128)
    nvrtc.built("kernel", {"H": 64}, "sm_80")
    assert len(builds) == 4
    assert len(list(nvrtc.folder().glob("*.cubin"))) == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "changed"])
def test_a_damaged_build_is_made_again_with_a_warning(builds, damage):
    build()
    (file,) = nvrtc.folder().glob("*.cubin")
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[:-3], "empty": b"", "changed": whole[:40] + b"?" + whole[41:]}[damage])
    with pytest.warns(UserWarning, match=r"\.cubin is damaged; building it again"):
        assert build() == b"machine code of kernel"
    assert build() == b"machine code of kernel"
    assert len(builds) == 2


def test_a_folder_that_cannot_be_written_costs_a_warning(builds, tmp_path):
    (tmp_path / "cache").write_text("a file in the way")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.warns(UserWarning, match="Set SEQLOOM_CACHE to a folder that can be written"),
    ):
        assert build() == b"machine code of kernel"


def test_no_kernel_has_a_lambda_of_any_type():
    """NVRTC takes them for functions of the host, which it refuses; a compiler for the CPU would not tell."""
    texts = {path.name: path.read_text() for path in nvrtc.TEXT.glob("*/*.cu*")}
    assert texts and [name for name, text in texts.items() if "(auto" in text or ", auto" in text] == []

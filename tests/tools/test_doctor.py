from types import SimpleNamespace

import pytest
import torch

from seqloom import __version__
from seqloom.kernels import loop
from seqloom.kernels.cpu import engine
from seqloom.kernels.registry import KERNELS, Kernel
from seqloom.tools import doctor


def stand_in(monkeypatch, **functions):
    """Return the reference kernel with these functions replaced."""
    code = SimpleNamespace(**{"why_not": loop.why_not, "run": loop.run} | functions)
    monkeypatch.setattr(doctor, "find_kernel", lambda _: Kernel("gru", "aten", "", code, uses_torch=True))
    return doctor.run_self_test("gru_aten", "cpu")


def test_the_versions_are_those_of_the_packages():
    versions = doctor.versions()
    assert versions["torch"] == torch.__version__
    assert versions["seqloom"] == __version__
    assert set(versions) >= {"python", "numpy", "scikit-learn", "onnxruntime"}


def test_a_package_that_is_missing_has_no_version(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    assert doctor.versions()["no-such-package"] is None


def test_the_hardware_is_described():
    hardware = doctor.hardware()
    assert hardware["cores"] >= 1
    assert hardware["memory_gib"] > 0.1
    assert hardware["threads"] == torch.get_num_threads()
    assert hardware["cpu"]
    assert len(hardware["gpus"]) == torch.cuda.device_count()


def test_the_engine_is_named_or_what_is_missing_and_what_that_costs(monkeypatch, tmp_path):
    assert doctor.engine()["library"].startswith("engine_") and doctor.engine()["problem"] is None
    (tmp_path / "build.json").write_text('{"compiler": null, "failed": {"all": "no C++ compiler was found"}}')
    monkeypatch.setattr(doctor, "LIB", tmp_path)
    monkeypatch.setattr(engine, "LIB", tmp_path)
    engine.load_library.cache_clear()
    try:
        actual = doctor.engine()
    finally:
        engine.load_library.cache_clear()
    assert actual["library"] is actual["compiler"] is None
    assert actual["problem"].startswith("no C++ compiler was found; without it a GRU takes 2 to 10 times as long")


@pytest.mark.parametrize("name", [k.name for k in KERNELS])
def test_every_kernel_is_right_here_or_says_why_it_was_not_tested(name):
    verdict = doctor.run_self_test(name, "cpu")
    assert verdict.self_test == "ok" or (verdict.self_test.startswith("skipped") and verdict.why_not)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [k.name for k in KERNELS])
def test_every_kernel_is_right_on_the_gpu_or_says_why_it_was_not_tested(name):
    verdict = doctor.run_self_test(name, "cuda")
    assert verdict.self_test == "ok" or (verdict.self_test.startswith("skipped") and verdict.why_not)


def test_the_kernel_that_compiles_first_is_not_tested():
    verdict = doctor.run_self_test("any_scan", "cpu")
    assert verdict.self_test == "skipped: it would have to compile first"
    assert "kernel='scan'" in verdict.why_not


def test_the_reference_passes_its_own_test(monkeypatch):
    verdict = stand_in(monkeypatch)
    assert verdict.self_test == "ok"
    assert verdict.distance == verdict.loop_distance > 0


def test_a_kernel_with_wrong_outputs_fails(monkeypatch):
    def run(cell, job):
        y, state = loop.run(cell, job)
        return y * (1 + 1e-4), state

    assert stand_in(monkeypatch, run=run).self_test.startswith("FAILED: off by ")


def test_a_kernel_with_wrong_gradients_fails(monkeypatch):
    def run(cell, job):
        y, state = loop.run(cell, job)
        return y + 1e-3 * (y - y.detach()), state

    assert stand_in(monkeypatch, run=run).failed


def test_a_kernel_that_gives_nan_fails(monkeypatch):
    def run(cell, job):
        y, state = loop.run(cell, job)
        return y * torch.nan, state

    assert stand_in(monkeypatch, run=run).failed


def test_a_kernel_that_raises_fails_with_its_reason(monkeypatch):
    def run(cell, job):
        raise RuntimeError("out of registers")

    assert stand_in(monkeypatch, run=run).self_test == "FAILED: out of registers"


def test_a_kernel_that_cannot_run_here_says_why_and_does_not_fail(monkeypatch):
    verdict = stand_in(monkeypatch, why_not=lambda *_: "there is no such device")
    assert verdict.why_not == "there is no such device"
    assert verdict.self_test.startswith("skipped")
    assert not verdict.failed

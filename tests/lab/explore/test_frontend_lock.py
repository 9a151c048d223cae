import json
from pathlib import Path

import pytest

LOCK = Path(__file__).parents[3] / "frontend" / "package-lock.json"
PLATFORMS = ("darwin-arm64", "darwin-x64", "win32-x64-msvc", "win32-arm64-msvc", "linux-x64-musl", "linux-arm64-musl")


@pytest.fixture(scope="module")
def packages():
    return json.loads(LOCK.read_text())["packages"]


def test_the_lock_of_the_front_end_installs_on_every_platform(packages):
    wanted = [
        f"node_modules/{name}" for package in packages.values() for name in package.get("optionalDependencies", ())
    ]
    assert wanted and not set(wanted) - set(packages)
    assert all(f"node_modules/@rollup/rollup-{platform}" in packages for platform in PLATFORMS)


def test_the_lock_of_the_front_end_names_no_registry(packages):
    assert not [name for name, package in packages.items() if "resolved" in package]
    assert all("integrity" in package for name, package in packages.items() if name)

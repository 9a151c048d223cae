"""Optional packages are imported, or the error says which command installs them."""

import importlib
import sys

import pytest

from seqloom.core import errors
from seqloom.core.errors import MissingPackageError, require


def test_an_optional_package_that_is_installed_is_returned():
    assert require("json.decoder", "a test") is importlib.import_module("json.decoder")


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(MissingPackageError, match=r"a test needs no_such; install it with: pip install no_such$") as e:
        require("no_such.inner", "a test")
    assert e.value.name == "no_such"


def test_a_missing_package_of_an_extra_is_installed_with_the_extra():
    with pytest.raises(MissingPackageError, match=r"pip install 'seqloom\[lab\]'"):
        require("no_such", "a test", "lab")


def test_a_missing_module_of_seqloom_is_a_bug_and_not_a_missing_package():
    with pytest.raises(ModuleNotFoundError, match=r"seqloom\.no_such") as e:
        require("seqloom.no_such", "a test")
    assert not isinstance(e.value, MissingPackageError)


def test_an_import_error_without_a_name_is_raised_as_it_is(monkeypatch):
    def fail(package):
        raise ModuleNotFoundError("broken")

    monkeypatch.setattr(errors, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match=r"^broken$"):
        require("json", "a test")


def test_a_package_that_misses_another_names_the_other(tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import another_missing_one")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackageError, match="needs another_missing_one; install it with: pip install needs_another"
    ):
        require("needs_another", "a test")
    assert "needs_another" not in sys.modules

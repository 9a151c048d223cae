"""A copy of the checkout in a temporary folder, in which one file at a time has a fault."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from mutation.faults import Fault

COPIED = ("src", "tests")  # everything else is only read by tests, and linked


class Workspace:
    """A copy of a checkout.

    Attributes:
        root: The copy.
        scratch: A folder for the temporary files of tests.
    """

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.root = folder / "checkout"
        self.scratch = folder / "scratch"
        self.root.mkdir(parents=True)
        self.scratch.mkdir()
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED]
        listed = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (checkout / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.root / name)
        for entry in checkout.iterdir():
            if entry.name not in (*COPIED, "build"):
                (self.root / entry.name).symlink_to(entry)
        (self.root / "src" / "seqloom" / "lib").symlink_to(checkout / "src" / "seqloom" / "lib")  # the engine
        # Files compared by their text: a fault may leave the size and the second of the last change as they were.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        with open(os.devnull, "w") as sink, redirect_stdout(sink):
            compileall.compile_dir(self.root / "src", quiet=2, invalidation_mode=mode)

    @contextmanager
    def plant(self, fault: Fault | None) -> Iterator[None]:
        """Plant a fault for the duration of a `with` block; None leaves the copy as it is."""
        if fault is None:
            yield
            return
        file = self.root / fault.file
        text = file.read_text()
        file.write_text(fault.plant(text))
        try:
            yield
        finally:
            file.write_text(text)

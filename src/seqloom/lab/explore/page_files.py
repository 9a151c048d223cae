"""The files of the built page."""

from __future__ import annotations

from importlib import resources

FILES = ("index.html", "app.js", "app.css")


def read_static(name: str) -> bytes:
    """Return a file of the built page.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if name not in FILES:
        raise FileNotFoundError(name)
    return (resources.files("seqloom.lab.explore") / "static" / name).read_bytes()

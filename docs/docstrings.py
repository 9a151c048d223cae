"""Extend griffe, which reads the docstrings for the reference: render `Example:` as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# griffe knows the section "Examples:" only; "Example:" would become text, with >>> as quotations.
EXAMPLE = re.compile(r"^( *)Example:$", re.M)


class Examples(griffe.Extension):
    """Read the section `Example:` of a docstring as `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

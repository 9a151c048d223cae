"""What Python calls name=..., as the command line takes it."""

from __future__ import annotations

import re

OPEN = re.compile(r"\b(\w+)=\.\.\.")
GIVEN = re.compile(r"\b(input|target|kind|group|time|split|borders)=(?=\w)")


def flags(text: str) -> str:
    """The same text with options as flags: lookback=... as --lookback, input=a as --input a."""
    return GIVEN.sub(r"--\1 ", OPEN.sub(lambda m: "--" + m[1].replace("_", "-"), text))

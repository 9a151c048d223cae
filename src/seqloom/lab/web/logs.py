"""Structured logs: one JSON object per line on stderr, without anything that a user sent.

A traceback is logged as code locations, without the message of the exception, which may quote the data.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

NAME = "seqloom.web"
SINGLE_REQUESTS = ("request", "Invalid HTTP request received.")  # the second is uvicorn's
LIBRARIES = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "websockets")

log = logging.getLogger(NAME)


class JsonLines(logging.Formatter):
    """Format a record as one line of JSON. `extra={"facts": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.msg if record.name == NAME else str(record.msg).splitlines()[0][:80],  # no arguments
        }
        if record.name != NAME:
            line["logger"] = record.name
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["places"] = [f"{f.name}:{f.lineno}" for f in traceback.extract_tb(record.exc_info[2])][-8:]
        return json.dumps(line)


def set_up(quiet: bool = False, level: int = logging.INFO) -> None:
    """Send the logs of the server, and the more important ones of its libraries, to stderr.

    Args:
        quiet: Whether to leave out single requests.
        level: The level of the least important lines of the server.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in (NAME, *LIBRARIES):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == NAME else level + 10)
    if quiet:
        handler.addFilter(lambda record: record.msg not in SINGLE_REQUESTS)


def write(event: str, facts: dict[str, Any] | None = None, *, level: int = logging.INFO, failed: bool = False) -> None:
    """Log an event with its facts; `failed` adds the code locations of the exception that is being handled."""
    log.log(level, event, extra={"facts": facts or {}}, exc_info=failed)

"""Tools around layers: convert, explain, trace, measure, check."""

from __future__ import annotations

from seqloom.tools import measure, testing

__all__ = ["measure", "testing"]

"""Tools for layers: convert, explain, trace, measure, test."""

from __future__ import annotations

from seqloom.tools import measure, testing

__all__ = ["measure", "testing"]

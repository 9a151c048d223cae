"""Tools for layers: convert, explain, trace, intervene, measure, test."""

from __future__ import annotations

from seqloom.tools import intervene, measure, testing

__all__ = ["intervene", "measure", "testing"]

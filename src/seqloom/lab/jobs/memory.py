"""How much memory there is, and how much a process takes, where the system says so (Linux)."""

from __future__ import annotations

import os
import re
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")  # a container's limits


def free() -> float:
    """Bytes that processes can still take; infinite where that is not known."""
    machine = _field(Path("/proc/meminfo"), "MemAvailable:")
    return min(float("inf") if machine is None else machine * 1024, _free_in_group())


def _free_in_group() -> float:
    try:
        limit, used = (int((GROUP / file).read_text()) for file in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max"
        return float("inf")
    return limit - used + (_field(GROUP / "memory.stat", "inactive_file") or 0)  # files' pages are given back


def used(pid: int) -> int:
    """Bytes that a process takes now; 0 where that is not known."""
    return (_field(Path(f"/proc/{pid}/status"), "VmRSS:") or 0) * 1024


def forget_peak() -> None:
    """From now on, `peak` is that of what comes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int:
    """The most bytes that this process took; 0 where that is not known."""
    return (_field(Path("/proc/self/status"), "VmHWM:") or 0) * 1024


def die_first() -> None:
    """When memory runs out the system ends this process rather than its parent, which would lose more."""
    try:
        Path(f"/proc/{os.getpid()}/oom_score_adj").write_text("500")
    except OSError:
        return


def _field(file: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None

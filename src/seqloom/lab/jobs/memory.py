"""Free memory and memory use of processes (Linux)."""

from __future__ import annotations

import os
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # limits of a container


def free_bytes() -> float:
    """Return the bytes that processes can still use; infinity if unknown."""
    machine = _read_field(Path("/proc/meminfo"), "MemAvailable:")
    return min(float("inf") if machine is None else machine * 1024, _free_in_cgroup())


def _free_in_cgroup() -> float:
    try:
        limit, used = (int((CGROUP / file).read_text()) for file in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max"
        return float("inf")
    cached = _read_field(CGROUP / "memory.stat", "inactive_file") or 0  # pages of files, which can be freed
    return limit - used + cached


def used_bytes(pid: int) -> int:
    """Return the bytes that a process uses now; 0 if unknown."""
    return (_read_field(Path(f"/proc/{pid}/status"), "VmRSS:") or 0) * 1024


def reset_peak() -> None:
    """Reset `peak_bytes` to the current use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """Return the peak memory use of this process in bytes; 0 if unknown."""
    return (_read_field(Path("/proc/self/status"), "VmHWM:") or 0) * 1024


def prefer_killing() -> None:
    """Make the system kill this process rather than its parent when memory runs out."""
    try:
        Path(f"/proc/{os.getpid()}/oom_score_adj").write_text("500")
    except OSError:
        return


def _read_field(file: Path, name: str) -> int | None:
    try:
        match = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None

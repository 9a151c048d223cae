"""What a benchmark found, as a file that says where, when and by which command."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqloom.tools import doctor


def keep(file: Path | None, command: str, **found: Any) -> None:
    """Written where a file was asked for."""
    facts = {"command": command, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    facts |= found | {"versions": doctor.versions(), "hardware": doctor.hardware()}
    if file:
        file.write_text(json.dumps(facts, indent=1) + "\n")

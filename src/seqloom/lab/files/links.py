"""Refuse symbolic links in folders that are written to: a link would redirect writes and deletions elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from seqloom.core.errors import UserError


def refuse_links(folder: Path) -> None:
    """Raise a UserError if there is a symbolic link in a folder, however deep. The folder itself may be one."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise UserError(
                    f"{path} is a link to {os.readlink(path)}, and what is written there would change files outside "
                    f"of {folder}; replace the link by what it points to"
                )

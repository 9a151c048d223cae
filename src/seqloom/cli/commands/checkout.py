"""Find the part of the repository that is not installed: `research/`, with the studies."""

from __future__ import annotations

import sys
from pathlib import Path

from seqloom.core import errors
from seqloom.core.errors import UserError


def use_research(command: str) -> None:
    """Make the package `research` of the checkout that seqloom runs from importable.

    Args:
        command: The command that needs it, for the message.

    Raises:
        UserError: If seqloom was installed without its repository.
    """
    root = Path(errors.__file__).parents[3]
    if not (root / "research" / "studies").is_dir():
        raise UserError(
            f"{command}: studies are not part of the installed package; clone the repository, "
            f"run `pip install -e '.[lab]'` in it, and repeat the command there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))

"""`seqloom` and `python -m seqloom`."""

from __future__ import annotations

import atexit
import gc
import sys


def main() -> None:
    save_collections()
    try:
        from seqloom.cli import main as cli
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "pydantic", "rich", "sklearn", "filelock", "polars", "numpy"):
            raise
        if sys.argv[1:] == ["doctor"]:  # needs only torch
            from seqloom.tools.doctor import print_report

            sys.exit(print_report())
        command = "pip install 'seqloom[lab]' (in a checkout: pip install '.[lab]')"
        print(f"seqloom: the lab needs {error.name}; install it with: {command}", file=sys.stderr)
        sys.exit(2)
    cli.main()


def save_collections() -> None:
    """Look for garbage less often, and not at the end: torch's many objects, which stay, take up to a second."""
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)


if __name__ == "__main__":
    main()

"""`seqloom` and `python -m seqloom`."""

from __future__ import annotations

import sys


def main() -> None:
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


if __name__ == "__main__":
    main()

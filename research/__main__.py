"""The command line of the evidence: `python -m research NAME ...`, from the root of a checkout.

Without a name it lists the commands. NAME is a module of speed/, quality/ or pages/ that has a function `main`.
`seqloom study` runs the studies, and `seqloom results` combines what they stored.
"""

from __future__ import annotations

import ast
import difflib
import sys
from importlib import import_module
from pathlib import Path

FOLDERS = ("speed", "quality", "pages")


def main() -> int:
    commands = find_commands()
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        print("python -m research NAME ...\n")
        for name, file in commands.items():
            first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            print(f"  {name:<22} {first}")
        return 0
    name = sys.argv.pop(1)
    if name not in commands:
        near = difflib.get_close_matches(name, commands, 1)
        hint = f"did you mean {near[0]}?" if near else "`python -m research` lists them"
        print(f"python -m research: there is no command {name!r}; {hint}", file=sys.stderr)
        return 2
    file = commands[name]
    sys.argv[0] = f"python -m research {name}"  # the name in the help of a command
    return import_module(f"research.{file.parent.name}.{name}").main() or 0


def find_commands() -> dict[str, Path]:
    """Return the file of every command by its name."""
    home = Path(__file__).parent
    files = [file for folder in FOLDERS for file in sorted((home / folder).glob("*.py"))]
    return {file.stem: file for file in files if "\ndef main(" in file.read_text(encoding="utf-8")}


if __name__ == "__main__":
    sys.exit(main())

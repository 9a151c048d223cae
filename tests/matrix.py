"""Run the quick tests under other versions of Python and torch, each in an environment of its own in .matrix/.

    python tests/matrix.py 3.11:2.8.0 3.12:2.11.0 3.13:2.15.0

A word is PYTHON:TORCH; PYTHON is a version on the path (python3.12) or an interpreter's file. Everything else is
installed as constraints.txt says. Prints a table, and ends with 1 where a test failed.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "lab,serve,tune,subwords,onnx,hub,test"


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("environments", nargs="+", metavar="PYTHON:TORCH")
    flags.add_argument(
        "--pytest", default='-m "not slow and not long"', help="what pytest is told (default: %(default)s)"
    )
    given = flags.parse_args()
    rows = []
    for word in given.environments:
        interpreter, _, torch = word.rpartition(":")
        rows.append((word, *run(interpreter, torch, given.pytest)))
        print(f"{word}: {rows[-1][2]}", file=sys.stderr)
    print(f"{'python:torch':<40} result")
    for word, _, summary in rows:
        print(f"{word:<40} {summary}")
    return int(any(code for _, code, _ in rows))


def run(interpreter: str, torch: str, words: str) -> tuple[int, str]:
    """Make the environment if it is not there, and run the tests in it."""
    home = ROOT / ".matrix" / re.sub(r"\W+", "-", f"{interpreter}-{torch}").strip("-")
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        command = interpreter if "/" in interpreter else f"python{interpreter}"
        home.parent.mkdir(exist_ok=True)
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        constraints = home.parent / f"{home.name}.txt"
        constraints.write_text("\n".join([line for line in pinned if not line.startswith("torch==")]) + "\n")
        for step in (
            [command, "-m", "venv", str(home)],
            [str(python), "-m", "pip", "install", "-q", "-c", str(constraints), f"torch=={torch}"],
            [str(python), "-m", "pip", "install", "-q", "-c", str(constraints), f"{ROOT}[{EXTRAS}]", f"torch=={torch}"],
        ):
            if subprocess.run(step, check=False).returncode:
                return 1, f"not installed: {' '.join(step)}"
        (home / "installed").touch()
    again = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(ROOT)]
    if subprocess.run(again, check=False).returncode:
        return 1, f"not installed: {' '.join(again)}"
    command = f'"{python}" -m pytest -n 2 --dist loadfile -p no:cacheprovider {words} "{ROOT / "tests"}"'
    done = subprocess.run(command, shell=True, cwd=home, capture_output=True, text=True, check=False)
    (home / "pytest.txt").write_text(done.stdout + done.stderr)
    return done.returncode, (done.stdout.strip().splitlines() or [done.stderr[-200:]])[-1]


if __name__ == "__main__":
    sys.exit(main())

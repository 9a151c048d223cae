"""Names of data that can be checked without torch: built-in tasks, paths."""

from __future__ import annotations

import difflib
from pathlib import Path

from seqloom.core.errors import UserError

TASK_NAMES = ("adding", "copy", "pattern", "reverse", "recall", "listops", "digits")  # the keys of registry.TASKS
HUB_PREFIX = "hf:"  # data sets of the Hugging Face hub: "hf:imdb", "hf:glue:sst2"
SPLITS = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid"}
SPLITS |= {"dev": "valid", "devset": "valid", "trainset": "train", "testset": "test", "test": "test"}
MAX_FILES = 8  # files that an error message lists


def split_pair(data: str) -> tuple[str, ...] | str:
    """Return the two files of "a.de,a.en", or the data as they are."""
    if "," in data and not Path(data).exists():
        return tuple(part.strip() for part in data.split(","))
    return data


def check_exists(data: str) -> None:
    """Check that `data` names a task, a data set, a path or a pair of paths.

    Raises:
        UserError: If it names none of them; the message suggests a similar name.
    """
    path = Path(data)
    if data in TASK_NAMES or data.startswith(HUB_PREFIX) or path.exists() or isinstance(split_pair(data), tuple):
        return
    beside = sorted(p.name for p in path.parent.iterdir() if p.name[0] != ".") if path.parent.is_dir() else []
    if any(name.startswith(path.name) for name in beside):  # GunPoint for GunPoint_TRAIN.ts and GunPoint_TEST.ts
        return
    near = difflib.get_close_matches(path.name, [*beside, *TASK_NAMES], 1)
    if near:
        hint = f"did you mean {str(path.parent / near[0]) if near[0] in beside else near[0]!r}?"
    elif beside and path.parent != Path("."):
        hint = f"{path.parent} holds {', '.join(beside[:MAX_FILES])}{' ...' if len(beside) > MAX_FILES else ''}"
    else:
        hint = f"give a path, or one of the tasks {', '.join(TASK_NAMES)}"
    raise UserError(f"{data!r} is neither a file, nor a folder, nor a task; {hint}")

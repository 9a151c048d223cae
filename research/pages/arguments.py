"""Complete the arguments of a docstring by those that a class passes on to its base."""

from __future__ import annotations

import re

ENTRY = re.compile(r"^    (\*{0,2}\w+):", re.M)


def read_arguments(doc: str) -> dict[str, str]:
    """Return the text of each argument below `Args:` of a docstring without indentation, by name."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", doc, re.M)
    if not section:
        return {}
    _, *parts = ENTRY.split(section[1])
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def complete_arguments(doc: str, inherited: dict[str, str], order: list[str]) -> str:
    """Return the docstring with the arguments `order`, its own first where both describe one."""
    texts = inherited | read_arguments(doc)
    lines = "".join(f"    {name}:{texts[name]}\n" for name in order if name in texts)
    section = f"Args:\n{lines}"
    if re.search(r"^Args:\n", doc, re.M):
        return re.sub(r"^Args:\n(?:    .*\n?|\n(?=    ))+", lambda _: section, doc, count=1, flags=re.M)
    summary, _, rest = doc.partition("\n\n")
    return f"{summary}\n\n{section}\n{rest}"

"""Sequence models from recurrence to attention: layers to import, and a lab to run.

The public names are those of __init__.pyi. Each is imported on first use: `import seqloom` is quick, and `seqloom
--help` does not wait for torch.
"""

from __future__ import annotations

import sys

__version__ = "0.2.0"


def _read_names() -> dict[str, str]:
    """Return the module of every public name: the lines `from MODULE import NAME as NAME` of the stub."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:  # pathlib takes long to import
        words = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in words}


_MODULES = _read_names()
_LAB = {name for name, module in _MODULES.items() if module.startswith("seqloom.lab.")}
# Names that need only torch. Those of the lab are left out, so that `from seqloom import *` works without its packages.
__all__ = sorted(_MODULES.keys() - _LAB)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        from seqloom.core import renamed

        if name in renamed.CLASSES:
            return renamed.rename_names(__name__, renamed.CLASSES, depth=3)(name)
        raise AttributeError(f"module 'seqloom' has no attribute {name!r}")
    from importlib import import_module

    from seqloom.core.errors import check_torch, require

    check_torch()
    module = (
        require(_MODULES[name], f"seqloom.{name}", "lab") if name in _LAB else import_module(_MODULES[name], __name__)
    )
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


if "torch" in sys.modules:  # otherwise this happens when the first layer is used
    from seqloom.layers.whole import register_placeholders

    register_placeholders()

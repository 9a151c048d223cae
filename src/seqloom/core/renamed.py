"""Old names of arguments, classes and layers, which still work for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from seqloom.core.errors import UserTypeError

CLASSES = {"RNNAttend": "RNNThenAttention", "Recurrence": "RecurrentMixer"}
LAYERS = {
    "rnn_attend": "rnn_then_attention",
    "bi_rnn_attend": "bi_rnn_then_attention",
}  # stored runs hold the old names


def take_renamed(title: str, settings: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return keywords with old names replaced by new ones; each old name is a DeprecationWarning.

    Only numbers are taken by an old name: `kernel=3` was the width of a convolution, `kernel="cpu"` never was.

    Args:
        title: What messages call the function.
        settings: The keywords of a call.
        renamed: The new name of each old one.

    Raises:
        UserTypeError: If an argument was given by both names.
    """
    for old in [name for name in settings if name in renamed and isinstance(settings[name], Integral)]:
        new = renamed[old]
        if new in settings:
            raise UserTypeError(f"{title}: {old!r} is the old name of {new!r}, and both were given; leave out {old!r}")
        warnings.warn(
            f"{title}: the argument {old!r} is now called {new!r}; the next release removes the old name",
            DeprecationWarning,
            stacklevel=3,
        )
        settings = {new if name == old else name: value for name, value in settings.items()}
    return settings


def rename_names(module: str, renamed: Mapping[str, str], depth: int = 2) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names were renamed; each old name is a DeprecationWarning.

    Args:
        module: The name of the module.
        renamed: The new name of each old one.
        depth: Which caller a warning names, as in `warnings.warn`.
    """

    def find(name: str) -> Any:  # noqa: ANN401  # whatever the module holds
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = renamed[name]
        if not hasattr(sys.modules[module], new):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now called {new}; the next release removes the old name",
            DeprecationWarning,
            stacklevel=depth,
        )
        return getattr(sys.modules[module], new)

    return find

"""The base class of coders: what is stored of a coder are the arguments of its constructor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

from pydantic import validate_call


class Coder:
    """A coder whose constructor's arguments are attributes of the same names; see `seqloom.lab.data.coders`."""

    key: ClassVar[str]  # the name of the coder in its `state()`
    by_key: ClassVar[dict[str, type[Coder]]] = {}

    def __init_subclass__(cls, key: str) -> None:
        super().__init_subclass__()
        cls.key = key
        Coder.by_key[key] = cls

    def state(self) -> dict[str, Any]:
        """Return the name of the coder and the arguments with which `restore_coder` makes it again."""
        values = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return {"coder": self.key} | {k: v.state() if hasattr(v, "state") else v for k, v in values.items()}


@cache
def _check_arguments(key: str) -> Callable[..., None]:
    """Return the constructor of a coder, which checks the types of its arguments: they come from a file."""
    return validate_call(Coder.by_key[key].__init__)


def restore_coder(state: Mapping[str, Any] | None) -> Any:  # noqa: ANN401  # a coder of any kind
    """Make the coder that returned this `state()`; None for None."""
    if state is None:
        return None
    arguments = dict(state)
    key = arguments.pop("coder")
    coder = object.__new__(Coder.by_key[key])
    _check_arguments(key)(coder, **arguments)
    return coder

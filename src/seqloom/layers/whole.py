"""Let torch.load read complete layers, with its default `weights_only=True`, before a layer has been imported.

torch reads only classes that were registered. Importing all layers for that would slow down `import seqloom`, so
placeholders are registered; the first one that torch.load instantiates imports the layers, which register themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import torch

HOME = "seqloom.layers.named"
NAMES: tuple[str, ...] = ("RNN", "LSTM", "GRU", "AttnRNN", "LNGRU", "LNLSTM", "IndRNN", "MinGRU", "MinLSTM", "NTM")
NAMES += ("ODEGRU", "RNNAttention")


class _Placeholder:
    """Placeholder for a layer; instantiating it creates the layer."""

    layer = ""

    def __new__(cls) -> torch.nn.Module:  # type: ignore[misc]
        layer = getattr(import_module(HOME), cls.layer)
        return layer.__new__(layer)


def register_placeholders() -> None:
    """Register a placeholder for every layer."""
    kinds = {name: type(name, (_Placeholder,), {"layer": name}) for name in NAMES}
    torch.serialization.add_safe_globals([(kind, f"{HOME}.{name}") for name, kind in kinds.items()])


def register_classes(classes: Iterable[type]) -> None:
    """Register classes in place of the placeholders."""
    others = [one for one in torch.serialization.get_safe_globals() if not _is_placeholder(one)]
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([*others, *classes])


def _is_placeholder(registered: object) -> bool:
    kind = registered[0] if isinstance(registered, tuple) else registered
    return isinstance(kind, type) and issubclass(kind, _Placeholder)

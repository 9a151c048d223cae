"""Linear recurrences as layers, one per file: equations, their terms in the common form, and a naive definition."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):  # so that a new file registers its layer
    import_module(f"{__name__}.{_module.name}")

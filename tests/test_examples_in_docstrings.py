"""Every public name has an `Example:` in its docstring, and the examples run and print what they show."""

import doctest
import inspect

import pytest
import torch

import seqloom

PARSER = doctest.DocTestParser()
MODULES = {"measure": ("cost",), "testing": seqloom.testing.__all__}  # public modules: functions with an example


def collect_docstrings():
    """Return the docstrings of public classes and functions by name."""
    docs = {name: inspect.getdoc(getattr(seqloom, name)) for name in seqloom.__all__ if name not in MODULES}
    for module, names in MODULES.items():
        docs |= {f"{module}.{name}": inspect.getdoc(getattr(getattr(seqloom, module), name)) for name in names}
    return docs


DOCSTRINGS = collect_docstrings()


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_the_example_of_a_public_name_runs(name):
    test = PARSER.get_doctest(DOCSTRINGS[name], {"seqloom": seqloom, "torch": torch}, name, None, 0)
    assert test.examples, f"seqloom.{name} has no example in its docstring"
    messages = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=messages.append)
    assert not messages, "".join(messages)

"""Wrong arguments of public classes, and the old names of arguments that were renamed."""

import inspect
import math
import re
import sys

import pytest
from torch import nn

import seqloom
from seqloom.core import renamed
from seqloom.core.arguments import check_value, list_parameters
from seqloom.core.errors import UserError
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.layers import registry
from seqloom.layers.layer import Layer
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder

CLASSES = [name for name in seqloom.__all__ if isinstance(getattr(seqloom, name), type)]
GRU = seqloom.GRU(4, 8, batch_first=True)
HUGE, LONG = 2**40, "nosuchname" * 30
WRONG = [
    "wrong",
    "GRU",
    LONG,
    None,
    -1,
    0,
    HUGE,
    0.5,
    math.nan,
    math.inf,
    True,
    ["a"],
    (),
    {},
    object(),
    nn.Linear(2, 2),
    int,
]


def list_arguments(name):
    """Return the names of the arguments of a class, without settings that it passes on."""
    kinds = list_parameters(getattr(seqloom, name).__init__)
    return [p.name for p in kinds if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def make_valid(name):
    """Return arguments by which a class can be constructed."""
    given = {
        "input_size": 4,
        "hidden_size": 8,
        "dim": 8,
        "heads": 2,
        "cell": "gru",
        "layer": GRU,
        "name": "last",
        "width": 8,
        "horizon": 2,
        "targets": 1,
        "channels": 1,
        "segment": 2,
        "tags": 3,
        "symbols": 3,
        "embed": Embed(5, 4),
        "encoder": Encoder(Embed(5, 4), GRU),
    }
    if name == "Translate":
        given["decoder"] = RecurrentDecoder(Embed(5, 4), GRU, 8)
    own = {
        "Classify": {"classes": 2, "embed": None},
        "LRU": {"channels": 0, "heads": 1},
        "MemoryTransformer": {"cell": "attn_rnn"},
        "NTM": {"width": 16, "heads": None},
        "NTMCell": {"width": 16},
        "RNNAttention": {"heads": None},
        "S5": {"channels": 0},
        "SegmentForecast": {"segment": 1},
        "Tag": {"embed": None},
    }
    return {key: value for key, value in (given | own.get(name, {})).items() if key in list_arguments(name)}


def is_clear(message, argument, value):
    """Return whether a message has the name of an argument and its value, or the beginning of a long one."""
    if not re.search(rf"(?<!\w){argument}(?!\w)", message):
        return False
    texts = {repr(one) for one in value} if isinstance(value, list | tuple) else set()
    texts |= {repr(value), str(value), f"{value:,}" if isinstance(value, int) else "", type(value).__name__}
    return any(text and (text in message or (len(text) > 80 and text[:40] in message)) for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_every_wrong_value_is_accepted_or_named_in_one_sentence(name):
    kind, valid, unclear = getattr(seqloom, name), make_valid(name), []
    for argument in list_arguments(name):
        for value in WRONG:
            try:
                kind(**valid | {argument: value})
            except (ValueError, TypeError) as error:
                if not is_clear(str(error), argument, value):
                    unclear.append(f"{argument}={str(value)[:40]}: {type(error).__name__}: {error}")
            except Exception as error:
                unclear.append(f"{argument}={str(value)[:40]}: {type(error).__name__}: {error}")
    assert not unclear, "\n".join(unclear)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("TCN", {"layers": 2, "kernel": 4}, {"num_layers": 2, "kernel_size": 4}),
        ("Hybrid", {"layers": 2, "kernel": 4}, {"num_layers": 2, "kernel_size": 4}),
        ("ConvRNN", {"layers": 2, "kernel": 4}, {"num_layers": 2, "kernel_size": 4}),
        ("RNNThenAttention", {"layers": 2}, {"num_layers": 2}),
        ("Transformer", {"layers": 3}, {"num_layers": 3}),
        ("TransformerXL", {"layers": 3}, {"num_layers": 3}),
        ("MemoryTransformer", {"layers": 3}, {"num_layers": 3}),
        *((name, {"conv": 3}, {"kernel_size": 3}) for name in ("GLA", "Mamba2", "RGLRU", "DeltaNet", "MLSTM")),
        *((name, {"conv": 0}, {"kernel_size": 0}) for name in ("GatedDeltaNet", "DeltaProduct")),
    ],
)
def test_an_old_name_of_an_argument_builds_the_same_layer_and_warns(name, old, new):
    kind, sizes = getattr(seqloom, name), make_valid(name)
    with pytest.warns(DeprecationWarning, match=rf"{name}: the argument .* is now called"):
        layer = kind(**sizes | old)
    expected = kind(**sizes | new).state_dict()
    assert {key: value.shape for key, value in layer.state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
    with pytest.raises(TypeError, match=r"is the old name of .* and both were given"):
        kind(**sizes | old | new)


def test_the_name_of_a_back_end_is_no_width_of_a_convolution():
    with pytest.raises(TypeError, match=r"TCN has no argument 'kernel'; .* kernel_size is the width"):
        seqloom.TCN(4, 8, kernel="cpu")
    with pytest.raises(TypeError, match=r"TCN has no argument 'layers'; it is now called 'num_layers'"):
        seqloom.TCN(4, 8, layers="2")


def test_old_names_of_classes_and_layers_still_work():
    for old, new in renamed.CLASSES.items():
        with pytest.warns(DeprecationWarning, match=f"seqloom.{old} is now called {new}"):
            assert getattr(seqloom, old) is getattr(seqloom, new)
        home = getattr(seqloom, new).__module__  # where a pickled module looks for its class
        with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
            assert getattr(sys.modules[home], old) is getattr(seqloom, new)
    for old, new in renamed.LAYERS.items():
        assert new in registry.list_names()
        assert type(registry.make(old, 4, 8)) is type(registry.make(new, 4, 8))
        assert TrainSettings(model=old).model == new
    with pytest.warns(DeprecationWarning, match="make: the argument 'layers'"):
        assert registry.make("gru", 4, 8, layers=2).num_layers == 2


def test_one_name_has_one_meaning_in_every_signature():
    """The rules of docs/reference/arguments.md."""
    for name in CLASSES:
        kind, own = getattr(seqloom, name), list_arguments(name)
        assert not {"layers", "depth", "conv", "kernel_width"} & set(own), name
        if "kernel" in own:
            assert inspect.signature(kind).parameters["kernel"].default == "auto", name
        assert not {"dim", "hidden_size"} <= set(own), name
        if "hidden_size" in own:
            assert own[own.index("input_size") + 1] == "hidden_size", name
        if "dim" in own:
            layer = kind(**make_valid(name))
            assert layer.input_size == layer.output_size == 8, name


@pytest.mark.parametrize("name", [n for n in CLASSES if issubclass(getattr(seqloom, n), Layer)])
def test_a_layer_takes_batch_first_or_says_why_not(name):
    assert "batch_first" in list_arguments(name) or "There is no `batch_first`" in getattr(seqloom, name).__doc__


def test_sizes_have_31_bits():
    check_value("GRU: hidden_size", 2**31 - 1, int)
    with pytest.raises(UserError, match=r"^GRU: hidden_size must be at most 2,147,483,647, got 2147483648$"):
        check_value("GRU: hidden_size", 2**31, int)

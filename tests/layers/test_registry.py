import copy
import pickle

import pytest
import torch

from seqloom.core.errors import InputError
from seqloom.layers.registry import LAYERS, find, list_names, make
from seqloom.tools.testing import check_layer


@pytest.mark.parametrize("name", list_names())
def test_every_layer_keeps_the_promises_of_a_layer(name):
    check_layer(lambda: make(name, 5, 8))


@pytest.mark.parametrize("name", list_names())
def test_every_layer_takes_layers_and_dropout(name):
    layer = make(name, 5, 8, num_layers=2, dropout=0.5)
    assert layer.input_size == 5 and layer.batch_first
    x = torch.randn(2, 6, 5)
    y, _ = layer(x)
    assert y.shape == (2, 6, layer.output_size)
    assert not torch.equal(y, layer(x)[0]), "dropout is at work"
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", list_names())
def test_every_layer_can_be_pickled_and_copied(name):
    layer = make(name, 5, 8).eval()
    x = torch.randn(2, 6, 5)
    layer(x)  # whatever it keeps of a call
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(other(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", list_names())
def test_every_layer_gives_shapes_on_the_meta_device(name):
    layer = make(name, 5, 8)
    y, _ = layer.to("meta")(torch.empty(2, 6, 5, device="meta"))
    assert y.is_meta and y.shape == (2, 6, layer.output_size)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("linformer", "tcn")])
def test_a_state_that_does_not_fit_is_named(name):
    layer, x = make(name, 8, 8).eval(), torch.randn(3, 4, 8)
    _, state = layer(x)
    for wrong in (state[:-1], (*state, state[0])):
        with pytest.raises(InputError, match=f"state must have {len(state)} tensors, got {len(wrong)}"):
            layer(x, wrong)
    with pytest.raises(InputError, match=r"the input has 3 rows; choose the rows of the state with select"):
        layer(x, tuple(s[:1] for s in state))
    with pytest.raises(TypeError, match=f"the tuple of {len(state)} tensors"):
        layer(x, state[0])


def test_the_layers_named_in_the_documentation_exist():
    assert {"rnn", "lstm", "gru", "bi_rnn", "bi_lstm", "bi_gru", "attn_rnn", "tcn", "hybrid"} <= set(list_names())


def test_a_bidirectional_name_reads_both_ways():
    layer = make("bi_lstm", 5, 8)
    assert layer.bidirectional and layer.output_size == 16 and not make("lstm", 5, 8).bidirectional


def test_a_wrong_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="no layer 'bi_gur'; did you mean 'bi_gru'"):
        find("bi_gur")
    with pytest.raises(ValueError, match="no layer 'perceptron'"):
        make("perceptron", 5, 8)


def test_a_wrong_setting_is_refused():
    with pytest.raises(TypeError, match="depth"):
        make("gru", 5, 8, depth=3)
    with pytest.raises(TypeError, match="depth"):
        make("tcn", 5, 8, depth=3)


def test_a_cell_in_a_file_of_its_own_is_a_layer_too(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom seqloom import Cell\n\nclass Mine(Cell):\n"
        "    def __init__(self, input_size, hidden_size):\n        super().__init__(input_size, hidden_size)\n"
        "        self.W = torch.nn.Parameter(torch.randn(hidden_size, input_size))\n"
        "    def step(self, x, state):\n        h = torch.tanh(x @ self.W.T + state[0])\n        return h, (h,)\n"
    )
    y, _ = make(f"bi_{file}:Mine", 5, 8)(torch.randn(2, 6, 5))
    assert y.shape == (2, 6, 16)


@pytest.mark.parametrize("name", list_names())
def test_a_layer_that_looks_ahead_says_so(name):
    layer = make(name, 5, 8).double().eval()
    x = torch.randn(1, 6, 5, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x)
    (gradient,) = torch.autograd.grad(y[0, 2].square().sum(), x)
    looks_ahead = bool(gradient[0, 3:].any())
    assert gradient[0, :3].any() and looks_ahead == (layer.bidirectional or not getattr(layer, "causal", True))
    assert looks_ahead == (name.startswith("bi_") or name == "linformer")

"""convert() swaps the recurrent layers inside a user's model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import seqloom

KINDS = ["RNN", "LSTM", "GRU"]
X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3))


class Tagger(nn.Module):
    """Recurrent layers at three depths."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(3, 4, bidirectional=True)
        self.middle = nn.ModuleDict({"lstm": nn.LSTM(8, 6, 2, proj_size=4), "norm": nn.LayerNorm(4)})
        self.last = nn.ModuleList([nn.Sequential(nn.Linear(4, 3), nn.RNN(3, 2, nonlinearity="relu", bias=False))])

    def forward(self, x):
        x, _ = self.first(x)
        x, _ = self.middle["lstm"](x)
        return self.last[0](self.middle["norm"](x))[0]


def left(model):
    """Return the remaining torch layers."""
    return [type(m).__name__ for m in model.modules() if isinstance(m, nn.RNNBase)]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tagger()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's own words
def test_a_nested_model_computes_the_same(model):
    expected = model(X)
    assert seqloom.convert(model) is model
    assert left(model) == []
    assert isinstance(model.first, seqloom.GRU)
    assert isinstance(model.middle["lstm"], seqloom.LSTM)
    assert isinstance(model.last[0][1], seqloom.RNN)
    torch.testing.assert_close(model(X), expected, rtol=0, atol=1e-6)


def test_other_modules_stay_as_they_are(model):
    norm, linear = model.middle["norm"], model.last[0][0]
    seqloom.convert(model)
    assert model.middle["norm"] is norm and model.last[0][0] is linear


def test_the_parameters_are_the_same_objects_under_the_same_names(model):
    before = dict(model.named_parameters())
    seqloom.convert(model)
    after = dict(model.named_parameters())
    assert set(after) == set(before)
    assert all(after[name] is before[name] for name in before)


def test_an_optimizer_made_before_still_works(model):
    steps = []
    for converted in (False, True):
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
        if converted:
            seqloom.convert(copied)
        copied(X).square().sum().backward()
        optimizer.step()
        steps.append(copied.state_dict())
    assert not torch.equal(steps[1]["first.weight_hh_l0"], model.first.weight_hh_l0)
    for name, weight in steps[0].items():
        torch.testing.assert_close(steps[1][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_kept(model, training):
    seqloom.convert(model.train(training))
    assert all(m.training is training for m in model.modules())


def test_frozen_weights_stay_frozen(model):
    model.first.weight_ih_l0.requires_grad_(False)
    assert not seqloom.convert(model).first.weight_ih_l0.requires_grad


def test_settings_are_kept():
    old = nn.LSTM(3, 4, 2, bias=False, batch_first=True, dropout=0.3, bidirectional=True, proj_size=2)
    new = seqloom.convert(nn.Sequential(old))[0]
    for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size", "hidden_size"):
        assert getattr(new, name) == getattr(old, name), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_itself_a_layer_comes_back_as_ours(kind):
    old = getattr(nn, kind)(3, 4, 2, bidirectional=True).double().eval()
    new = seqloom.convert(old)
    assert type(new) is getattr(seqloom, kind)
    assert new.weight_ih_l0 is old.weight_ih_l0 and not new.training
    torch.testing.assert_close(new(X.double())[0], old(X.double())[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("places", ["one parent", "two parents"])
def test_a_shared_layer_is_swapped_once_and_stays_shared(places):
    shared = nn.GRU(3, 3)
    model = nn.ModuleList([shared, shared])
    if places == "two parents":
        model = nn.ModuleList([nn.ModuleList([shared]), nn.ModuleList([shared])])
    seqloom.convert(model)
    first, second = (m[0] if isinstance(m, nn.ModuleList) else m for m in (model[0], model[1]))
    assert isinstance(first, seqloom.GRU)
    assert first is second


def test_tied_weights_stay_tied():
    old = nn.GRU(3, 4, bidirectional=True)
    old.weight_ih_l0_reverse = old.weight_ih_l0
    expected = old(X)[0]
    new = seqloom.convert(old)
    assert new.weight_ih_l0_reverse is new.weight_ih_l0
    torch.testing.assert_close(new(X)[0], expected, rtol=0, atol=1e-6)


def _normed_by_parametrization(layer):
    parametrizations.weight_norm(layer, "weight_hh_l0")


def _normed_by_hook(layer):
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(layer, "weight_hh_l0")


def _doubled_by_hook(layer):
    layer.register_forward_hook(lambda *call: (2 * call[-1][0], call[-1][1]))


@pytest.mark.parametrize("change", [_normed_by_parametrization, _normed_by_hook, _doubled_by_hook])
def test_a_layer_with_hooks_is_refused_by_name_and_the_model_left_as_it_was(change):
    model = nn.ModuleDict({"first": nn.GRU(3, 4), "second": nn.GRU(3, 4)})
    change(model["second"])
    expected = [layer(X)[0] for layer in model.values()]
    with pytest.raises(ValueError, match=r"second.*hooks or computed weights.*convert, then add them"):
        seqloom.convert(model)
    assert type(model["first"]) is nn.GRU
    for layer, y in zip(model.values(), expected, strict=True):
        assert torch.equal(layer(X)[0], y)


def test_a_subclass_is_left_alone():
    class Doubled(nn.GRU):
        def forward(self, *args):
            y, state = super().forward(*args)
            return 2 * y, state

    model = nn.Sequential(Doubled(3, 4))
    expected = model(X)[0]
    with pytest.warns(UserWarning, match=r"not replaced: 0 \(Doubled\);"):
        seqloom.convert(model)
    assert torch.equal(model(X)[0], expected)


def test_cells_of_one_step_are_named():
    model = nn.ModuleDict({"cell": nn.LSTMCell(3, 4), "layer": nn.GRU(3, 4)})
    with pytest.warns(UserWarning, match=r"not replaced: cell \(LSTMCell\);"):
        seqloom.convert(model)
    assert type(model["cell"]) is nn.LSTMCell and isinstance(model["layer"], seqloom.GRU)


def test_a_kernel_may_be_named():
    model = seqloom.convert(nn.Sequential(nn.GRU(3, 4)), kernel="loop")
    assert seqloom.explain(model[0], X).kernels == ("any_loop",)


def test_weights_saved_before_load_after(model):
    saved = copy.deepcopy(model.state_dict())
    other = seqloom.convert(Tagger())
    other.load_state_dict(saved)
    torch.testing.assert_close(other(X), model(X), rtol=0, atol=1e-6)


def test_going_back_to_torch_keeps_the_parameters_and_the_outputs(model):
    expected, parameters = model(X), list(model.parameters())
    seqloom.convert(model)
    assert not left(model)
    assert seqloom.convert(model, to="torch") is model
    assert left(model) == ["GRU", "LSTM", "RNN"]
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: seqloom.AttnRNN(3, 4), "torch.nn has no attn_rnn"),
        (lambda: seqloom.GRU(3, 4, reset_after=False), "it has reset_after=False"),
        (lambda: seqloom.LSTM(3, 4, learn_initial_state=True), "it learns its initial state"),
        (lambda: seqloom.GRU(3, 4, dropouts=seqloom.Dropouts(zoneout=0.1)), "zoneout=0.1"),
        (lambda: parametrizations.weight_norm(seqloom.GRU(3, 4), "weight_hh_l0"), "hooks or computed weights"),
    ],
)
def test_a_layer_that_torch_does_not_have_is_named(layer, reason):
    with pytest.raises(ValueError, match=rf"convert: 0 \(.*\) cannot become a torch.nn layer: .*{reason}"):
        seqloom.convert(nn.Sequential(layer()), to="torch")


def test_a_library_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="to must be 'seqloom' or 'torch', got 'keras'"):
        seqloom.convert(nn.GRU(3, 4), to="keras")

"""A bad input raises an error that gives its name, its value and what was expected."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import seqloom

X = torch.randn(2, 5, 3)


def make(cell="gru", *args, **kwargs):
    return seqloom.Recurrent(cell, *args or (3, 4), batch_first=True, **kwargs)


def says(error, *parts):
    """Expect an error of this type whose message has all of these parts, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(parts))


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "parts"),
    [
        (("attn_rnn", 3, 10), {"heads": 4}, ValueError, ["hidden_size", "multiple of heads", "10", "4"]),
        (("gru", 3, 4), {"num_layers": 0}, ValueError, ["num_layers", "at least 1", "0"]),
        (("gru", 3, 4), {"num_layers": 1.5}, (ValueError, TypeError), ["num_layers", "whole number", "1.5"]),
        (("gru", 3, 4), {"dropout": 2}, ValueError, ["dropout", "between 0 and 1", "2"]),
        (("gru", 3, 4), {"dropout": "0.5"}, ValueError, ["dropout", "number", "'0.5'"]),
        (("gru", 3, 4), {"dropout": True}, ValueError, ["dropout", "number", "True"]),
        (("gru", 3, 0), {}, ValueError, ["hidden_size", "greater than 0", "0"]),
        (("gru", -1, 4), {}, ValueError, ["input_size", "greater than 0", "-1"]),
        (("gru", 3, 4.0), {}, TypeError, ["hidden_size", "whole number", r"4\.0"]),
        (("rnn", 3, 4), {"nonlinearity": "sin"}, ValueError, ["nonlinearity", "tanh, relu", "'sin'"]),
        (("lstm", 3, 4), {"proj_size": 4}, ValueError, ["proj_size", "below hidden_size=4", "4"]),
        (("gru", 3, 4), {"slots": 2}, TypeError, ["'gru'", "no setting 'slots'", "reset_after, update_bias"]),
        (("gru", 3, 4), {"nonsense": 2}, TypeError, ["no setting 'nonsense'; it has: bias"]),
        (("ln_gru", 3, 4), {"bias": False}, ValueError, ["bias=False", "'ln_gru'"]),
        (("gru", 3, 4), {"bias": False, "update_bias": 1.0}, ValueError, ["gate bias", "bias=False"]),
        (("attn_rnn", 3, 4), {"context": ("h", "y")}, ValueError, ["context", r"'h', 'x', 'h\+x', 'h\*x'", "'y'"]),
        ((3, 3, 4), {}, TypeError, ["cell", r"name or a subclass of seqloom\.Cell", "3"]),
    ],
)
def test_a_layer_that_cannot_be_made_says_why(arguments, settings, error, parts):
    with says(error, *parts):
        seqloom.Recurrent(*arguments, **settings)


@pytest.mark.parametrize(
    ("wrong", "near"), [("GRU", "gru"), ("attnrnn", "attn_rnn"), ("min-gru", "min_gru"), ("lstn", "lstm")]
)
def test_an_unknown_cell_suggests_the_nearest(wrong, near):
    with says(
        ValueError, f"unknown cell '{wrong}'", f"did you mean '{near}'", "known cells: antisymmetric_rnn", "more"
    ):
        seqloom.Recurrent(wrong, 3, 4)


@pytest.mark.parametrize(
    ("make_record", "parts"),
    [
        (lambda: seqloom.Dropouts(recurrent=1.5), ["recurrent", "between 0 and 1", r"1\.5"]),
        (lambda: seqloom.Dropouts(zoneout=(0.1, -1)), ["zoneout", "between 0 and 1", "-1"]),
        (lambda: seqloom.Dropouts(weight=-0.1), ["weight", "between 0 and 1", r"-0\.1"]),
        (lambda: seqloom.Init("normal"), ["weights", "orthogonal", "'normal'"]),
        (lambda: seqloom.Init(chrono=2), ["chrono", "at least 3", "2"]),
    ],
)
def test_invalid_settings_are_named(make_record, parts):
    with says(ValueError, *parts):
        make_record()


@pytest.mark.parametrize(
    ("cell", "options", "parts"),
    [
        ("min_gru", {"dropouts": seqloom.Dropouts(recurrent=0.5)}, [r"recurrent=0\.5", "'min_gru'"]),
        ("min_gru", {"dropouts": seqloom.Dropouts(weight=0.5)}, [r"weight=0\.5", "'min_gru'", "no recurrent matrix"]),
        ("rnn", {"init": seqloom.Init(chrono=100)}, ["'rnn'", "no gate"]),
    ],
)
def test_a_cell_that_cannot_do_it_says_so_when_made(cell, options, parts):
    with says(ValueError, *parts):
        make(cell, **options)


@pytest.mark.parametrize(
    ("x", "error", "parts"),
    [
        (torch.randn(2, 5, 4), ValueError, ["input", "4 features", "input_size=3"]),
        (torch.randn(2, 5, 4), RuntimeError, ["input", "4 features", "input_size=3"]),
        (torch.randn(5, 4), ValueError, ["input", "4 features", "input_size=3"]),
        (torch.randn(3), ValueError, ["input", "2-D", "3-D", "1-D"]),
        (torch.randn(1, 2, 5, 3), ValueError, ["input", "2-D", "3-D", "4-D", r"\(1, 2, 5, 3\)"]),
        (torch.randn(2, 0, 3), ValueError, ["sequence length", "larger than 0", r"\(2, 0, 3\)"]),
        (X.double(), TypeError, ["input", "float64", "weights", "float32"]),
        (X.long(), TypeError, ["input", "int64", "weights", "float32"]),
        (X.to("meta"), ValueError, ["input", "meta", "weights", "cpu"]),
        (X.numpy(), TypeError, ["input", "Tensor", "PackedSequence", "ndarray"]),
        ([[0.0]], TypeError, ["input", "Tensor", "list"]),
    ],
)
def test_a_wrong_input_is_named(x, error, parts):
    with says(error, *parts):
        make()(x)


@pytest.mark.parametrize(
    ("lengths", "error", "parts"),
    [
        ([-1, 5], ValueError, ["lengths", "between 0 and the 5 steps", "-1"]),
        ([6, 5], ValueError, ["lengths", "between 0 and the 5 steps", "6"]),
        (torch.tensor([9, 5]), ValueError, ["lengths", "between 0 and the 5 steps", "9"]),
        ([5], ValueError, ["lengths", "2 rows", r"\(1,\)"]),
        ([5, 5, 5], ValueError, ["lengths", "2 rows", r"\(3,\)"]),
        ([[5, 5]], ValueError, ["lengths", "2 rows", r"\(1, 2\)"]),
        ([5.0, 3.0], TypeError, ["lengths", "whole numbers", "float32"]),
        ([True, False], TypeError, ["lengths", "whole numbers", "bool"]),
    ],
)
def test_wrong_lengths_are_named(lengths, error, parts):
    with says(error, *parts):
        make()(X, lengths=lengths)


def test_lengths_beside_a_packed_sequence_are_refused():
    with says(ValueError, "lengths", "PackedSequence"):
        make()(pack_sequence([X[0], X[1]]), lengths=[5, 5])


def test_lengths_beside_a_nested_tensor_are_refused():
    with says(ValueError, "lengths", "nested"):
        make()(torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged), lengths=[5, 5])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_of_the_old_layout_is_refused():
    with says(ValueError, "nested", r"torch\.jagged", "strided"):
        make()(torch.nested.nested_tensor([X[0], X[1]], layout=torch.strided))


H0 = torch.zeros(1, 2, 4)


@pytest.mark.parametrize(
    ("cell", "h0", "error", "parts"),
    [
        ("gru", torch.zeros(2, 4), ValueError, ["hx ", r"\(2, 4\)", r"expected \(1, 2, 4\)"]),
        ("gru", torch.zeros(1, 1, 4), RuntimeError, ["hx ", r"\(1, 1, 4\)", r"expected \(1, 2, 4\)"]),
        ("gru", torch.zeros(2, 1, 4), ValueError, ["hx ", r"\(2, 1, 4\)", r"expected \(1, 2, 4\)"]),
        ("gru", torch.zeros(1, 2, 5), ValueError, ["hx ", r"\(1, 2, 5\)", r"expected \(1, 2, 4\)"]),
        ("gru", H0.double(), TypeError, ["hx ", "float64", "float32"]),
        ("gru", H0.to("meta"), ValueError, ["hx ", "meta", "cpu"]),
        ("gru", (H0, H0), ValueError, ["hx must be one tensor, got a tuple of 2"]),
        ("gru", 0.0, TypeError, ["hx", "Tensor", "float"]),
        ("lstm", (None, None), TypeError, ["hx", "Tensor", "NoneType"]),
        ("lstm", H0, ValueError, [r"hx must be a tuple of 2 tensors, such as \(h, c\), got one tensor"]),
        ("lstm", (H0, H0[..., :3]), ValueError, [r"hx\[1\]", r"\(1, 2, 3\)", r"expected \(1, 2, 4\)"]),
        ("lstm", (H0, H0.double()), TypeError, [r"hx\[1\]", "float64", "float32"]),
    ],
)
def test_a_wrong_first_state_is_named(cell, h0, error, parts):
    with says(error, *parts):
        make(cell)(X, h0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_is_found_with_check(bad):
    x = X.clone()
    x[1, 3, 0] = bad
    with says(ValueError, "input", "NaN or infinite", "row 1", "step 3"):
        make(check=True)(x)


def test_nan_is_not_looked_for_without_check():
    x = X.clone()
    x[1, 3, 0] = torch.nan
    y, _ = make()(x)
    assert y[1, 3:].isnan().all() and y[0].isfinite().all() and y[1, :3].isfinite().all()


def test_nan_in_the_padding_is_no_fault():
    x = X.clone()
    x[1, 3:] = torch.nan
    y, _ = make(check=True)(x, lengths=[5, 3])
    assert y.isfinite().all()


@pytest.mark.parametrize("name", ["reset", "timespans"])
def test_times_and_resets_must_fit_the_input(name):
    with says(ValueError, name, r"\(2, 5\)", r"\(2, 4\)"):
        make("ode_gru")(X, **{name: torch.zeros(2, 4)})
    with says(TypeError, name, "Tensor", "list"):
        make("ode_gru")(X, **{name: [[0] * 5] * 2})
    with says(ValueError, name, "meta", "cpu"):
        make("ode_gru")(X, **{name: torch.zeros(2, 5, device="meta")})


def test_a_cell_without_time_refuses_timespans():
    with says(ValueError, "timespans", "'gru'", "no time", "ode_gru"):
        make()(X, timespans=torch.ones(2, 5))


def test_an_unknown_kernel_is_refused_with_those_there_are():
    with says(ValueError, "'cuda9'", "'gru'", "gru_aten", "any_loop"):
        make(kernel="cuda9")(X)


def test_a_kernel_asked_for_by_name_says_why_it_cannot_run():
    with says(ValueError, "'gru_aten'", "reset_after"):
        make(kernel="aten", reset_after=False)(X)


def test_the_steps_and_chunks_of_a_bidirectional_layer_are_refused():
    with says(ValueError, "step", "bidirectional"):
        make(bidirectional=True).step(X[:, 0])
    with says(ValueError, "chunks", "bidirectional"):
        next(make(bidirectional=True).chunks(X, 2))


def test_a_step_of_a_whole_sequence_is_refused():
    with says(ValueError, "step", r"\(B, D\)", r"\(2, 5, 3\)"):
        make().step(X)


def test_zoneout_rates_must_be_as_many_as_the_states():
    with says(ValueError, "zoneout", "2 rates", "1 tensor"):
        make("gru", dropouts=seqloom.Dropouts(zoneout=(0.1, 0.2)))(X)


def test_a_missing_weight_is_named_when_loading():
    weights = make().state_dict()
    del weights["weight_hh_l0"]
    with says(RuntimeError, "Missing key", "weight_hh_l0"):
        make().load_state_dict(weights)


@pytest.mark.parametrize(
    ("x", "state", "lengths", "parts"),
    [
        (X[0], None, None, [r"\(B, T, 3\)", r"\(5, 3\)"]),
        (X[..., :2], None, None, [r"\(B, T, 3\)", r"\(2, 5, 2\)"]),
        (X, (H0[0, :1],), None, [r"hx\[0\]", r"\(1, 4\)", r"\(2, 4\)"]),
        (X, None, [6, 5], ["lengths", "5 steps", "6"]),
    ],
)
def test_a_scan_names_what_does_not_fit(x, state, lengths, parts):
    with says(ValueError, *parts):
        seqloom.scan(seqloom.GRUCell(3, 4), x, state, lengths)


class Total(seqloom.Cell):
    """The sum of all inputs so far: a cell without weights."""

    def step(self, x, state):
        (h,) = state
        h = h + x
        return h, (h,)


class Velocity(seqloom.Cell):
    """A cell with two states that does not define initial_state."""

    def step(self, x, state):
        h, v = state
        return h + v, (h + v, x)


@pytest.mark.parametrize("settings", [{}, {"num_layers": 2}, {"learn_initial_state": True}])
def test_a_cell_without_weights_runs(settings):
    layer = seqloom.Recurrent(Total, 3, 3, batch_first=True, **settings)
    expected = X.cumsum(1).cumsum(1) if "num_layers" in settings else X.cumsum(1)
    torch.testing.assert_close(layer(X)[0], expected)
    assert str(seqloom.explain(layer, X)).startswith("l0: any_")
    assert "state_0" in str(seqloom.compile_report(layer))


def test_a_step_that_unpacks_more_states_than_there_are_says_where_they_come_from():
    with says(ValueError, r"Velocity\.step", "1 state", "expected 2, got 1", r"initial_state\(x\)"):
        seqloom.Recurrent(Velocity, 3, 3, batch_first=True)(X)

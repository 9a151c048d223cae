"""A step as a function of C: the bits of the step through ctypes, or None for whatever is not as it was."""

import gc
import sys
import weakref

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import seqloom
from seqloom.kernels.cpu import bound_step

pytestmark = pytest.mark.skipif(
    isinstance(bound_step.load_interface(), str), reason=f"no bound step: {bound_step.load_interface()}"
)
CELLS = (seqloom.RNN, seqloom.GRU, seqloom.LSTM, seqloom.AttnRNN)
each_cell = pytest.mark.parametrize("kind", CELLS)
TABLES = []  # the engine reads the latest one until the process ends


@pytest.fixture(params=["C++ functions", "C++ functions but one", "C functions"], autouse=True)
def interface(request, monkeypatch):
    """Run each test with what C++ extensions of torch are linked to, and without, as in versions that lack it."""
    bind, table, native = bound_step.load_interface()
    first = len(bound_step.PYTHON_FUNCTIONS) + len(bound_step.TORCH_FUNCTIONS)
    last = first + len(bound_step.EXTENSION_FUNCTIONS)
    if request.param != "C functions" and table[first] is None:
        pytest.skip("this torch lacks one of the C++ functions")
    if request.param != "C++ functions":
        if request.param == "C functions":
            own = *table[:first], *[None] * (last + 1 - first), *table[last + 1 :]
        else:
            own = *table[:last], None, *table[last + 1 :]  # WRAP_NEW_TENSOR
        table = bound_step.Interface(*own)
        TABLES.append(table)
        monkeypatch.setattr(bound_step, "load_interface", lambda: (bind, table, native))
    return table


def make(kind=seqloom.GRU, rows=2, dtype=torch.float32, **settings):
    """Return a layer, its bound function, an input and a state."""
    layer = kind(5, 8, dtype=dtype, **settings)
    x = torch.randn(rows, 5, dtype=dtype)
    with torch.no_grad():
        state = layer.step(x)[1]
    (bound,) = layer.__dict__["_stack"].bound_by_shape.values()
    return layer, bound, x, state


def first(state):
    return state[0] if isinstance(state, tuple) else state


@each_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 3}])
def test_a_bound_step_has_the_bits_of_the_other(kind, dtype, settings):
    layer, bound, x, state = make(kind, dtype=dtype, **settings)
    (run,) = layer.__dict__["_stack"].by_shape.values()
    for _ in range(5):
        with torch.no_grad():
            y, after = bound(vars(layer), x, state)
        torch.testing.assert_close((y, after), run(x, state), rtol=0, atol=0)
        assert y.is_contiguous() and first(after).is_contiguous() and not y.requires_grad
        x, state = torch.randn_like(x), after


@each_cell
def test_a_layer_takes_it_for_steps_and_sequences_of_one_step(kind):
    layer, _, x, state = make(kind)
    with torch.no_grad():
        y, after = layer.step(x, state)
        layer(x.unsqueeze(0), state)
        again, last = layer(x.unsqueeze(0), state)
        assert layer.__dict__["_stack"].bound_sequence(vars(layer), x.unsqueeze(0), state) is not None
    torch.testing.assert_close((again, last), (y.unsqueeze(0), after), rtol=0, atol=0)


def replace_weight(layer):
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.detach().clone())


def move_weight(layer):
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.clone()


def swap_weight(layer):
    torch.utils.swap_tensors(layer.weight_hh_l0, torch.nn.Parameter(layer.weight_hh_l0.detach().clone()))


CHANGES = {
    "training": lambda layer: layer.eval(),
    "dropout": lambda layer: setattr(layer, "dropout", 0.25),
    "kernel": lambda layer: setattr(layer, "kernel", "loop"),
    "check": lambda layer: setattr(layer, "check", True),
    "residual": lambda layer: setattr(layer, "residual", True),
    "dropouts": lambda layer: setattr(layer, "dropouts", seqloom.Dropouts(recurrent=0.5)),
    "forward": lambda layer: setattr(layer, "forward", layer.forward),
    "hook": lambda layer: layer.register_forward_hook(lambda *_: None),
    "prehook": lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    "new weight": replace_weight,
    "moved weight": move_weight,
    "swapped weight": swap_weight,
    "one more weight": lambda layer: layer.register_parameter("more", torch.nn.Parameter(torch.ones(1))),
    "double": lambda layer: layer.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_layer_is_left_to_others(change):
    layer, bound, x, state = make()
    with torch.no_grad():
        assert bound(vars(layer), x, state) is not None
        CHANGES[change](layer)
        assert bound(vars(layer), x, state) is None


def hooked_globally():
    return torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


def test_whatever_changes_operations_is_left_to_others():
    layer, bound, x, state = make()
    assert bound(vars(layer), x, state) is None  # gradients are on
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert bound(vars(layer), x, state) is None
        with forward_ad.dual_level():
            assert bound(vars(layer), x, state) is None
        with FlopCounterMode(display=False):
            assert bound(vars(layer), x, state) is None
        traced = []
        torch.jit.trace(lambda x: (traced.append(bound(vars(layer), x, state)), x)[1], x, check_trace=False)
        assert traced == [None]
        assert torch.vmap(lambda _: torch.tensor(bound(vars(layer), x, state) is None))(torch.ones(2)).all()
        handle = hooked_globally()
        try:
            assert bound(vars(layer), x, state) is None
        finally:
            handle.remove()
        assert bound(vars(layer), x, state) is not None


class Other(torch.Tensor):
    pass


INPUTS = {
    "another number of rows": lambda t: torch.randn(3, *t.shape[1:]),
    "another type": lambda t: t.double(),
    "other strides": lambda t: torch.randn(*t.shape[:-1], 2 * t.shape[-1])[..., ::2],
    "another device": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "negative bit": lambda t: torch.complex(t, t).conj().imag,
    "freed": lambda t: (t.untyped_storage().resize_(0), t)[1],
    "half freed": lambda t: (t.untyped_storage().resize_(t.nbytes // 2), t)[1],
    "a subclass": lambda t: t.as_subclass(Other),
    "a parameter": torch.nn.Parameter,
    "a list": lambda t: t.tolist(),
    "nothing": lambda _: None,
}


@each_cell
@pytest.mark.parametrize("change", INPUTS)
def test_other_inputs_and_states_are_left_to_others(kind, change):
    layer, bound, x, state = make(kind)
    with torch.no_grad():
        assert bound(vars(layer), INPUTS[change](x.clone()), state) is None
        if not isinstance(state, tuple):
            assert bound(vars(layer), x, INPUTS[change](state.clone())) is None
            assert bound(vars(layer), x, (state,)) is None
        else:
            assert bound(vars(layer), x, (state[0], INPUTS[change](state[1].clone()))) is None
            assert bound(vars(layer), x, list(state)) is None and bound(vars(layer), x, state[0]) is None
            assert bound(vars(layer), x, (*state, state[0])) is None
        assert bound(vars(layer), x) is None and bound() is None
        assert bound(vars(layer), x, state) is not None


@each_cell
def test_calls_leave_no_references_behind(kind):
    layer, bound, x, state = make(kind)
    objects = [x, first(state), state, layer.cells, vars(layer), *layer.parameters(), tuple, bound]
    with torch.no_grad():
        bound(vars(layer), x, state)
        before = [sys.getrefcount(t) for t in objects]
        for _ in range(500):
            y, after = bound(vars(layer), x, state)
            bound(vars(layer), x, None)
        assert all(abs(sys.getrefcount(t) - b) < 10 for t, b in zip(objects, before, strict=True))
    known = weakref.ref(y), weakref.ref(first(after))
    del y, after
    assert [ref() for ref in known] == [None, None]


def test_a_layer_is_freed_with_its_functions():
    layer, bound, *_ = make()
    known = weakref.ref(layer)
    del layer, bound
    gc.collect()
    assert known() is None


def test_inference_mode_gives_inference_tensors():
    layer, bound, x, state = make()
    with torch.inference_mode():
        y, after = bound(vars(layer), x, state)
        assert y.is_inference() and after.is_inference()
    torch.testing.assert_close(y, layer.step(x, state)[0])

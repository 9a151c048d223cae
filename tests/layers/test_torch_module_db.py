"""torch's own database of module inputs and error inputs, with seqloom's layers and cells in place of torch.nn's."""

import pytest
import torch

import seqloom

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-13}  # of the largest value: sums may be taken in another order

each_module = pytest.mark.parametrize(
    "info", ["nn.RNN", "nn.GRU", "nn.LSTM", "nn.RNNCell", "nn.GRUCell", "nn.LSTMCell"], indirect=True
)


@pytest.fixture
def info(request):
    """Return torch's record of a module. Importing them all takes seconds, so not when tests are collected."""
    pytest.importorskip("expecttest", reason="torch's test database needs expecttest")
    own = torch.backends.flags_frozen.__globals__  # torch.backends itself only stands for the module
    before = own["__allow_nonbracketed_mutation_flag"]
    from torch.testing._internal.common_modules import module_db

    own["__allow_nonbracketed_mutation_flag"] = before  # importing it forbids other tests to set flags
    return next(actual for actual in module_db if actual.name == request.param)


def ours(info):
    return getattr(seqloom, info.name.removeprefix("nn."))


def samples(info, dtype, training, requires_grad=False):
    return info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=requires_grad, training=training)


@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_torchs_for_every_input_of_its_database(info, dtype, training):
    actual = samples(info, dtype, training, requires_grad=True)
    assert actual
    for sample in actual:
        made, given = sample.constructor_input, sample.forward_input
        torch.manual_seed(0)
        theirs = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        mine = ours(info)(*made.args, **made.kwargs).to(dtype).train(training)
        mine.load_state_dict(theirs.state_dict())
        results = []
        for module in (theirs, mine):
            torch.manual_seed(0)  # of dropout between layers
            outputs = flat(module(*given.args, **given.kwargs))
            loss = sum(t.square().sum() for t in outputs)
            results.append([*outputs, *torch.autograd.grad(loss, list(module.parameters()))])
        for mine_, theirs_ in zip(*reversed(results), strict=True):
            size = max(1.0, float(theirs_.detach().abs().max()) if theirs_.numel() else 0.0)
            torch.testing.assert_close(mine_, theirs_, rtol=0, atol=CLOSE[dtype] * size)


@each_module
def test_an_input_that_torch_refuses_is_refused_with_an_error_of_the_same_type(info):
    for error in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
    ):
        made, given = error.module_error_input.constructor_input, error.module_error_input.forward_input
        kind = info.module_cls.__name__
        with pytest.raises(error.error_type):  # noqa: PT012  (either line may raise)
            # the database passes "relu" as `bias`, which torch does not check; the errors concern the input
            args = [True if isinstance(arg, str) else arg for arg in made.args]
            module = ours(info)(*args, **made.kwargs)
            if error.error_on.name == "CONSTRUCTION_ERROR":
                pytest.fail(f"{kind} takes {made.args} {made.kwargs}, which torch refuses: {error.error_regex}")
            module(*given.args, **given.kwargs)


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result for t in flat(part)]

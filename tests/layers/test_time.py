"""Time handling that torch.nn's recurrent layers lack: resets, time stamps, streaming, truncation."""

import pytest
import torch

import seqloom
import seqloom.cells  # the registry, for the parametrisation

X = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
each_cell = pytest.mark.parametrize("cell", sorted(seqloom.Cell.registry))


def make(cell, *args, **kwargs):
    torch.manual_seed(0)
    return seqloom.Recurrent(cell, *args or (3, 8), batch_first=True, dtype=torch.float64, **kwargs)


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def flags(*steps):
    made = torch.zeros(2, 6, dtype=torch.bool)
    made[:, list(steps)] = True
    return made


@pytest.mark.parametrize("learned", [False, True], ids=["fixed start", "learned start"])
@each_cell
def test_a_reset_is_a_split_of_the_sequence(cell, learned):
    layer = make(cell, 3, 8, 2, bidirectional=True, learn_initial_state=learned)
    if learned:
        with torch.no_grad():
            for name, p in layer.named_parameters():
                p.add_(0.1 if name.startswith("initial_") else 0.0)
    y, state = layer(X, reset=flags(2))
    first, first_state = layer(X[:, :2])
    second, second_state = layer(X[:, 2:])
    close(y, torch.cat([first, second], 1))
    for mine, begin, end in zip(tensors(state), tensors(first_state), tensors(second_state), strict=True):
        close(mine[0::2], end[0::2])  # forward: the last piece
        close(mine[1::2], begin[1::2])  # on the way back: the first


@pytest.mark.parametrize("bidirectional", [False, True])
def test_each_row_has_its_own_resets(bidirectional):
    layer = make("lstm", bidirectional=bidirectional)
    reset = flags(2)
    reset[1] = flags(1, 4)[1]
    y, _ = layer(X, reset=reset)
    close(y[0], torch.cat([layer(X[0, :2])[0], layer(X[0, 2:])[0]]))
    close(y[1], torch.cat([layer(X[1, :1])[0], layer(X[1, 1:4])[0], layer(X[1, 4:])[0]]))


def test_a_reset_at_the_first_step_forgets_the_state_given():
    layer = make("gru")
    close(layer(X, torch.randn(1, 2, 8, dtype=torch.float64), reset=flags(0))[0], layer(X)[0])


def test_no_gradient_crosses_a_reset():
    layer = make("gru")
    x = X.clone().requires_grad_()
    layer(x, reset=flags(3))[0][:, 3:].sum().backward()
    assert not x.grad[:, :3].any() and x.grad[:, 3:].all()


def test_resets_fit_time_first_and_one_sequence():
    layer = make("gru")
    expected, _ = layer(X, reset=flags(2))
    close(layer(X[0], reset=flags(2)[0])[0], expected[0])
    layer.batch_first = False
    close(layer(X.transpose(0, 1), reset=flags(2).T)[0].transpose(0, 1), expected)


SPANS = torch.rand(2, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3


def test_time_spans_of_zero_give_a_plain_gru():
    timed, plain = make("ode_gru"), make("gru")
    plain.load_state_dict({n: w for n, w in timed.state_dict().items() if "flow" not in n})
    close(timed(X, timespans=torch.zeros(2, 6))[0], plain(X)[0])
    assert not torch.allclose(timed(X, timespans=torch.ones(2, 6))[0], plain(X)[0])


def test_no_time_stamps_mean_steps_of_one():
    layer = make("ode_gru")
    close(layer(X)[0], layer(X, timespans=torch.ones(2, 6))[0])


def test_irregular_time_is_drift_for_that_time_and_then_a_step():
    layer = make("ode_gru", substeps=3)
    plain = make("gru")
    plain.load_state_dict({n: w for n, w in layer.state_dict().items() if "flow" not in n})
    y, _ = layer(X, timespans=SPANS)
    h = torch.zeros(1, 2, 8, dtype=torch.float64)
    for t in range(6):
        h = layer.cells[0].drift(h[0], SPANS[:, t]).unsqueeze(0)
        y_t, h = plain(X[:, t : t + 1], h)
        close(y[:, t : t + 1], y_t)


def test_the_reverse_direction_uses_the_time_span_after_a_step():
    layer, one_way = make("ode_gru", bidirectional=True), make("ode_gru")
    back = {n.removesuffix("_reverse"): w for n, w in layer.state_dict().items() if n.endswith("_reverse")}
    one_way.load_state_dict(back)
    spans = torch.cat([torch.zeros(2, 1), SPANS[:, 1:].flip(1)], 1)
    close(layer(X, timespans=SPANS)[0][..., 8:].flip(1), one_way(X.flip(1), timespans=spans)[0])


def test_time_itself_gets_a_gradient():
    layer, spans = make("ode_gru"), SPANS.clone().requires_grad_()
    h0 = torch.ones(1, 2, 8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: layer(X, h0, timespans=s)[0], (spans,), fast_mode=True)


@each_cell
def test_steps_of_a_stream_match_the_whole_sequence(cell):
    layer = make(cell, 3, 8, 2)
    y, state = layer(X)
    now = None
    for t in range(6):
        y_t, now = layer.step(X[:, t], now)
        close(y_t, y[:, t])
    for mine, whole in zip(tensors(now), tensors(state), strict=True):
        close(mine, whole)


def test_steps_of_a_stream_know_time():
    layer = make("ode_gru", 3, 8, 2)
    y, _ = layer(X, timespans=SPANS)
    now = None
    for t in range(6):
        y_t, now = layer.step(X[:, t], now, timespans=SPANS[:, t])
        close(y_t, y[:, t])


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_stream_may_be_one_sequence(batch_first):
    layer = make("lstm", 3, 8, 2)
    layer.batch_first = batch_first
    y, _ = layer(X[0])
    now = None
    for t in range(6):
        y_t, now = layer.step(X[0, t], now)
        close(y_t, y[t])


def test_a_stream_may_be_time_first():
    layer = make("gru")
    y, _ = layer(X)
    layer.batch_first = False
    close(layer.step(X[:, 0])[0], y[:, 0])


@pytest.mark.parametrize("size", [1, 2, 4, 9])
@pytest.mark.parametrize("cell", ["gru", "lstm", "attn_rnn"])
def test_chunks_match_the_whole_sequence(cell, size):
    layer = make(cell, 3, 8, 2)
    y, state = layer(X)
    pieces = list(layer.chunks(X, size))
    assert len(pieces) == -(-6 // size)
    close(torch.cat([piece for piece, _ in pieces], 1), y)
    for mine, whole in zip(tensors(pieces[-1][1]), tensors(state), strict=True):
        close(mine, whole)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_no_gradient_crosses_from_chunk_to_chunk(cell):
    layer = make(cell)
    x = X.clone().requires_grad_()
    (first, _), (second, _) = layer.chunks(x, 3)
    second.sum().backward()
    assert not x.grad[:, :3].any() and x.grad[:, 3:].all()
    first.sum().backward()
    assert x.grad[:, :3].all()


def test_chunks_start_from_the_state_given_with_its_gradient():
    layer = make("gru")
    h0 = torch.randn(1, 2, 8, dtype=torch.float64, requires_grad=True)
    first, _ = next(layer.chunks(X, 3, h0))
    close(first, layer(X, h0)[0][:, :3])
    first.sum().backward()
    assert h0.grad.all()


@pytest.mark.parametrize("batch_first", [False, True])
def test_chunks_know_lengths(batch_first):
    layer = make("lstm", 3, 8, 2)
    y, state = layer(X, lengths=[5, 2])
    layer.batch_first = batch_first
    pieces = list(layer.chunks(X if batch_first else X.transpose(0, 1), 2, lengths=[5, 2]))
    whole = torch.cat([piece for piece, _ in pieces], 1 if batch_first else 0)
    close(whole if batch_first else whole.transpose(0, 1), y)
    for mine, expected in zip(pieces[-1][1], state, strict=True):
        close(mine, expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_chunks_know_resets_and_time(batch_first):
    layer, aside = make("ode_gru"), {"reset": flags(1, 3), "timespans": SPANS}
    y, _ = layer(X, **aside)
    layer.batch_first = batch_first
    x, aside = (X, aside) if batch_first else (X.transpose(0, 1), {n: t.T for n, t in aside.items()})
    whole = torch.cat([piece for piece, _ in layer.chunks(x, 2, **aside)], 1 if batch_first else 0)
    close(whole if batch_first else whole.transpose(0, 1), y)

import pytest
import torch

from seqloom.core.errors import InputError
from seqloom.lab.data.task import Batch
from seqloom.lab.kinds.forecast import ForForecast
from seqloom.layers.registry import make
from seqloom.models.forecast import Forecast
from seqloom.models.scale import SCALES, SeriesScale, forecast_loss
from seqloom.models.segments import SegmentForecast

DOUBLE = torch.float64


def series(rows=3, steps=12, features=2):
    return torch.randn(rows, steps, features, dtype=DOUBLE)


@pytest.mark.parametrize("kind", SCALES)
def test_a_scale_is_undone_exactly_and_leaves_padding_out(kind):
    x, lengths = series(), torch.tensor([12, 5, 0])
    scaled, terms = SeriesScale(kind)(x, lengths)
    torch.testing.assert_close(terms.invert(scaled)[0], x[0])
    torch.testing.assert_close(terms.apply(terms.invert(scaled))[0], scaled[0])
    alone, _ = SeriesScale(kind)(x[1:2, :5])
    torch.testing.assert_close(scaled[1:2, :5], alone)
    assert not scaled[1, 5:].any() and torch.isfinite(scaled).all()


def test_each_scale_is_what_it_says():
    x = series()
    torch.testing.assert_close(SeriesScale("last")(x)[0], x - x[:, -1:])
    y = SeriesScale("mean")(x)[0]
    torch.testing.assert_close(y.mean(1), torch.zeros(3, 2, dtype=DOUBLE))
    torch.testing.assert_close(y.std(1, unbiased=False), torch.ones(3, 2, dtype=DOUBLE), atol=1e-4, rtol=0)


MODELS = {
    "direct": lambda **s: Forecast(make("gru", 2, 8), 6, **s),
    "both ways": lambda **s: Forecast(make("bi_gru", 2, 8), 6, **s),
    "autoregressive": lambda **s: Forecast(make("tcn", 2, 8), 6, mode="autoregressive", **s),
    "segments": lambda **s: SegmentForecast(make("gru", 8, 8), 6, 2, 3, **s),
}


@pytest.mark.parametrize("scale", ["last", "mean"])
@pytest.mark.parametrize("name", MODELS)
def test_a_shifted_series_has_a_shifted_forecast(name, scale):
    model, x = MODELS[name](scale=scale).double(), series()
    y = model(x)
    assert y.shape == (3, 6, 2)
    torch.testing.assert_close(model(x + 100), y + 100)
    if scale == "mean":
        torch.testing.assert_close(model(x * 1000), y * 1000, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("quantiles", [(), (0.1, 0.5, 0.9)])
@pytest.mark.parametrize("name", MODELS)
def test_it_learns_saves_loads_and_forecasts_as_before(name, quantiles, tmp_path):
    t = torch.arange(40.0)
    wave = torch.sin(t / 3 + torch.arange(3)[:, None])[..., None].repeat(1, 1, 2) + 5
    x, y = wave[:, :12], wave[:, 12:18]
    model = MODELS[name](quantiles=quantiles)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    first = float(model.loss(x, y).detach())
    for _ in range(150):
        loss = model.loss(x, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < first / 4
    says = model.eval().predict(x)
    assert says.shape == y.shape and float((says - y).square().mean()) < 0.2 * float((x[:, -1:] - y).square().mean())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = MODELS[name](quantiles=quantiles).eval()
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(again.predict(x), says)


def test_the_autoregressive_loss_is_that_of_every_next_step_of_the_true_series():
    model, x, y = MODELS["autoregressive"]().double(), series(), series(steps=6)
    whole = torch.cat([x, y], 1)
    off = []
    for t in range(1, 18):
        says, _ = model.layer((whole - x[:, -1:])[:, :t])
        off.append(model.head(says[:, -1]) + x[:, -1] - whole[:, t])
    torch.testing.assert_close(model.loss(x, y), torch.stack(off).square().mean())


def test_an_autoregressive_forecast_feeds_back_its_own_outputs():
    model, x = MODELS["autoregressive"](scale="none").double(), series()
    for _ in range(6):
        y, _ = model.layer(x)
        x = torch.cat([x, model.head(y[:, -1:])], 1)
    torch.testing.assert_close(model(x[:, :12]), x[:, 12:])


def test_quantiles_are_trained_by_the_pinball_loss():
    y, says = torch.tensor([[[1.0]]]), torch.tensor([[[[0.0, 3.0]]]])
    expected = (0.1 * 1.0 + (0.9 - 1) * -2.0) / 2
    assert float(forecast_loss(says, y, (0.1, 0.9))) == pytest.approx(expected)
    many = torch.rand(1, 4000, 1)
    guess = torch.full((1, 1, 1, 2), 0.5, requires_grad=True)
    optimiser = torch.optim.Adam([guess], 0.02)
    for _ in range(200):
        optimiser.zero_grad()
        forecast_loss(guess.expand(1, 4000, 1, 2), many, (0.1, 0.8)).backward()
        optimiser.step()
    torch.testing.assert_close(guess.detach().flatten(), torch.tensor([0.1, 0.8]), atol=0.03, rtol=0)


def test_targets_are_the_first_features_and_the_others_only_help():
    model, x = Forecast(make("gru", 3, 8), 4, targets=1).double(), series(features=3)
    assert model(x).shape == (3, 4, 1)
    other = x.clone()
    other[:, :4, 2] += 1
    assert not torch.equal(model(other), model(x))


def test_rows_of_different_length_are_forecast_as_alone():
    model, x = MODELS["direct"]().double(), series()
    y = model(x, [12, 5, 7])
    torch.testing.assert_close(y[1:2], model(x[1:2, :5]))


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_segments_of_a_shorter_past_are_forecast_as_alone(name):
    model, x = SegmentForecast(make(name, 8, 8), 6, 2, 3).double().eval(), series()
    torch.testing.assert_close(model(x, [12, 6, 9])[1:2], model(x[1:2, :6]))
    forecast = ForForecast(model, [0, 1])
    lengths = torch.tensor([12, 5, 7])  # no whole segments: each begins with its first value once more, or twice
    said = forecast.predict(Batch(x, lengths, torch.arange(3))).values
    for row, n in enumerate(lengths.tolist()):
        alone = Batch(x[row : row + 1, :n], lengths[row : row + 1], torch.arange(1))
        torch.testing.assert_close(said[row : row + 1], forecast.predict(alone).values)
    longer = torch.cat([x[1:2, :1], x[1:2, :5]], 1)
    torch.testing.assert_close(said[1:2], model(longer).float())
    with pytest.raises(InputError, match="multiples of the segment, 3"):
        model(x, [12, 5, 7])


def test_segments_are_read_in_order_and_each_future_one_has_its_place():
    model, x = MODELS["segments"]().double(), series()
    c = 1
    s = (x[:, :, c] - x[:, -1:, c]).reshape(3, 4, 3)
    _, h = model.layer(torch.relu(model.read(s)))
    parts = []
    for m in range(2):
        p = torch.cat([model.positions[m], model.of_channel[c]]).expand(3, 8)
        parts.append(model.head(model.layer.step(p, h)[0]))
    torch.testing.assert_close(model(x)[:, :, c], torch.cat(parts, 1) + x[:, -1:, c])


def test_any_causal_layer_forecasts_by_segments():
    for name in ("lstm", "tcn", "hybrid", "rnn_then_attention"):
        assert SegmentForecast(make(name, 8, 8), 6, 2, 3)(series().float()).shape == (3, 6, 2)


def test_bad_input_is_refused_with_what_is_wrong():
    x = series().float()
    with pytest.raises(ValueError, match=r"future of shape \(3, 6, 2\), not empty; got \(3, 5, 2\)"):
        MODELS["direct"]().loss(x, x[:, :5])
    with pytest.raises(ValueError, match="not empty"):
        MODELS["segments"]().loss(x[:0], x[:0, :6])
    with pytest.raises(ValueError, match=r"T a multiple of 3, got \(3, 11, 2\)"):
        MODELS["segments"]()(x[:, :11])
    with pytest.raises(ValueError, match="horizon=7 and segment=3"):
        SegmentForecast(make("gru", 8, 8), 7, 2, 3)
    with pytest.raises(ValueError, match="look ahead"):
        SegmentForecast(make("bi_gru", 8, 8), 6, 2, 3)
    with pytest.raises(ValueError, match="look ahead"):
        Forecast(make("bi_gru", 2, 8), 6, mode="autoregressive")
    with pytest.raises(ValueError, match="needs all 3 features as targets, got 1"):
        Forecast(make("gru", 3, 8), 6, mode="autoregressive", targets=1)
    with pytest.raises(ValueError, match=r"increase between 0 and 1, .*got \(0.9, 0.1\)"):
        Forecast(make("gru", 2, 8), 6, quantiles=(0.9, 0.1))
    with pytest.raises(ValueError, match="none, last, mean, got 'first'"):
        Forecast(make("gru", 2, 8), 6, scale="first")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Forecast(make("gru", 2, 8), 0)
    with pytest.raises(ValueError, match="leave lengths out"):
        MODELS["autoregressive"]().loss(x, x[:, :6], [12, 5, 7])

"""Every model takes lengths of any integer type and refuses invalid ones."""

import pytest
import torch

from seqloom import GRU
from seqloom.core.errors import InputError
from seqloom.models.classify import Classify
from seqloom.models.decoding.crf import CRF
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.sampling import Sampling
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.forecast import Forecast
from seqloom.models.generate import Generate
from seqloom.models.segments import SegmentForecast
from seqloom.models.tag import Tag
from seqloom.models.transcribe import Transcribe
from seqloom.models.translate import Translate

X = torch.randn(2, 4, 3)
IDS = torch.tensor([[1, 3, 4, 2], [1, 2, 0, 0]])
Y = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 0]])


def gru(size):
    return GRU(size, 4, batch_first=True)


def translate():
    encoder = Encoder(Embed(9, 4), gru(4))
    return Translate(encoder, RecurrentDecoder(Embed(9, 4), gru(4), encoder.output_size))


CASES = {
    "classify": (lambda: Classify(gru(3), 2), lambda m, n: m(X, n)),
    "tag": (lambda: Tag(gru(3), 3), lambda m, n: m.loss(X, Y, n)),
    "chain": (lambda: Tag(gru(3), 3, crf=True), lambda m, n: m.loss(X, Y, n)),
    "crf": (lambda: CRF(3), lambda m, n: m.log_likelihood(X, Y, n)),
    "forecast": (lambda: Forecast(gru(3), 2), lambda m, n: m(X, n)),
    "segments": (lambda: SegmentForecast(gru(4), 2, 3, 2), lambda m, n: m(X, n)),
    "generate": (lambda: Generate(Embed(9, 4), gru(4)), lambda m, n: m.loss(IDS, n)),
    "sample": (lambda: Generate(Embed(9, 4), gru(4)), lambda m, n: m.sample(IDS, Sampling(seed=0), lengths=n).scores),
    "source": (translate, lambda m, n: m.greedy(IDS, n, 5).scores),
    "target": (translate, lambda m, n: m.loss(IDS, IDS, None, n)),
    "frames": (lambda: Transcribe(gru(6), 5, stack=2), lambda m, n: m(X, n)[0]),
    "symbols": (lambda: Transcribe(gru(3), 5), lambda m, n: m.loss(X, 1 + torch.arange(8).view(2, 4) % 4, None, n)),
}


@pytest.mark.parametrize("case", CASES)
def test_lengths_are_whole_numbers_of_any_type_one_a_row_and_within_the_steps(case):
    build, call = CASES[case]
    model = build().eval()
    expected = call(model, [4, 2])
    assert not torch.equal(expected, call(model, [4, 4]))
    for kind in (torch.int32, torch.uint8, torch.int8):
        assert torch.equal(call(model, torch.tensor([4, 2], dtype=kind)), expected)
    for wrong in ([4], [4, 9], [4, -1]):
        with pytest.raises(InputError, match="lengths"):
            call(model, wrong)
    with pytest.raises(TypeError, match="whole numbers"):
        call(model, [4.0, 2.0])


def test_stacked_frames_of_a_long_recording_are_counted_in_small_types_too():
    model = Transcribe(gru(12), 5, stack=4)
    assert model(torch.randn(1, 255, 3), torch.tensor([254], dtype=torch.uint8))[1].tolist() == [64]


def test_padding_that_is_not_a_number_changes_nothing_of_a_chain():
    crf, lengths = CRF(3).double(), torch.tensor([4, 2])
    torch.nn.init.normal_(crf.A)
    e = X.double()
    broken = e.clone()
    broken[1, 2:] = torch.nan
    actual = []
    for emissions in (e, broken):
        emissions.requires_grad_()
        value = crf.log_likelihood(emissions, Y, lengths)
        (gradient,) = torch.autograd.grad(value.sum(), emissions)
        actual.append((value, gradient, *crf.decode(emissions.detach(), lengths)))
    torch.testing.assert_close(actual[0], actual[1])

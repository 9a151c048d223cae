"""The models as graphs: losses compile in one piece, with their backward, and a translation exports with any size."""

import pytest
import torch
from torch.export import Dim, export

from seqloom.layers import registry
from seqloom.models.classify import Classify
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.forecast import Forecast
from seqloom.models.segments import SegmentForecast
from seqloom.models.tag import Tag
from seqloom.models.translate import Translate

LENGTHS = torch.tensor([6, 4, 2])


def ids(*shape):
    return torch.randint(3, 10, shape)


def translation():
    encoder = Encoder(Embed(10, 4), registry.make("tcn", 4, 4))
    return Translate(encoder, RecurrentDecoder(Embed(10, 4), registry.make("tcn", 4, 4), 4))


MODELS = {
    "segments": (lambda: SegmentForecast(registry.make("gru", 4, 4), 4, 2, 2), (3, 6, 2), lambda: torch.randn(3, 4, 2)),
    "tags": (lambda: Tag(registry.make("gru", 2, 4), 3, crf=True), (3, 6, 2), lambda: ids(3, 6) % 3),
    "translation": (translation, None, lambda: ids(3, 5)),
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "lengths"), [("segments", None), *((name, LENGTHS) for name in MODELS)])
def test_a_loss_compiles_in_one_graph_and_learns_the_same(name, lengths):
    make, shape, target = MODELS[name]
    model, y = make().eval(), target()
    x = ids(3, 6) if shape is None else torch.randn(shape)
    expected = model.loss(x, y, lengths)
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    torch._dynamo.reset()
    actual = torch.compile(model.loss, backend="aot_eager", fullgraph=True)(x, y, lengths)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual, list(model.parameters())), wanted)


@pytest.mark.slow
def test_a_translation_exports_with_any_number_of_rows_and_any_lengths():
    model = translation().eval()
    B, S, T = Dim("B"), Dim("S"), Dim("T")
    sizes = ({0: B, 1: S}, {0: B, 1: T}, {0: B})
    program = export(model, (ids(3, 6), ids(3, 5), LENGTHS), dynamic_shapes=sizes).module()
    for rows, source, target in ((5, 9, 3), (2, 4, 7)):
        given = ids(rows, source), ids(rows, target), torch.randint(1, source + 1, (rows,))
        torch.testing.assert_close(program(*given)[0], model(*given)[0])


OF_A_ROW = {
    "class": lambda: Classify(registry.make("gru", 2, 4), 3),
    "one value after the other": lambda: Forecast(registry.make("gru", 2, 4), 4, mode="autoregressive"),
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("make", OF_A_ROW.values(), ids=OF_A_ROW)
def test_what_a_row_gives_exports_with_any_number_of_rows_and_any_lengths(make):
    model, B = make().eval(), Dim("B")
    with torch.no_grad():
        sizes = ({0: B, 1: Dim("T")}, {0: B})
        program = export(model, (torch.randn(3, 6, 2), LENGTHS), dynamic_shapes=sizes).module()
        for rows, steps in ((5, 9), (2, 4)):
            given = torch.randn(rows, steps, 2), torch.randint(1, steps + 1, (rows,))
            torch.testing.assert_close(program(*given), model(*given))

import pytest
import torch

from seqloom.layers.registry import make
from seqloom.models.characters import Characters
from seqloom.models.embed import Embed
from seqloom.models.tag import Tag

WORDS, LETTERS, TAGS = 20, 15, 4
LENGTHS = torch.tensor([6, 3, 0])


def tagger(crf, kind="lstm", layer="bi_gru", dropout=0.0):
    return Tag(
        make(layer, 8 + 6, 8),
        TAGS,
        embed=Embed(WORDS, 8),
        characters=Characters(LETTERS, 5, 6, kind),
        crf=crf,
        dropout=dropout,
    ).double()


def batch():
    x, letters = torch.randint(1, WORDS, (3, 6)), torch.randint(1, LETTERS, (3, 6, 7))
    ends = torch.randint(1, 8, (3, 6, 1))
    letters[torch.arange(7) >= ends] = 0
    return x, letters, torch.randint(TAGS, (3, 6))


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "cnn"])
def test_what_lies_past_a_length_changes_neither_loss_nor_tags(crf, kind):
    model, (x, letters, y) = tagger(crf, kind), batch()
    loss, tags = model.loss(x, y, LENGTHS, letters), model.decode(x, LENGTHS, letters)
    for i, n in enumerate(LENGTHS):
        x[i, n:], y[i, n:], letters[i, n:] = 5, -1, 3
    torch.testing.assert_close(model.loss(x, y, LENGTHS, letters), loss)
    assert torch.equal(model.decode(x, LENGTHS, letters), tags)
    assert torch.equal(tags == -1, torch.arange(6) >= LENGTHS[:, None])
    assert torch.equal(model.decode(x[1:2, :3], letters=letters[1:2, :3]), tags[1:2, :3])


def test_the_softmax_loss_is_the_mean_cross_entropy_of_real_steps():
    model, (x, letters, y) = tagger(False), batch()
    p = model(x, LENGTHS, letters).log_softmax(-1)
    real = [p[i, t, y[i, t]] for i, n in enumerate(LENGTHS) for t in range(n)]
    torch.testing.assert_close(model.loss(x, y, LENGTHS, letters), -torch.stack(real).mean())


def test_the_chain_loss_is_that_of_the_crf_for_each_real_step():
    model, (x, letters, y) = tagger(True), batch()
    for p in model.crf.parameters():
        torch.nn.init.normal_(p)
    likelihood = model.crf.log_likelihood(model(x, LENGTHS, letters), y, LENGTHS)
    torch.testing.assert_close(model.loss(x, y, LENGTHS, letters), -likelihood.sum() / LENGTHS.sum())


@pytest.mark.parametrize("kind", ["lstm", "cnn"])
def test_a_word_reads_the_same_among_longer_words_and_an_empty_one_is_0(kind):
    characters = Characters(LETTERS, 5, 6, kind).double()
    letters = torch.randint(1, LETTERS, (1, 3, 7))
    letters[0, 1, 4:], letters[0, 2] = 0, 0
    y = characters(letters)
    torch.testing.assert_close(y[:, 1:2], characters(letters[:, 1:2, :4]))
    assert y[0, 0].any() and not y[0, 2].any()


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("layer", ["gru", "bi_attn_rnn", "tcn"])
def test_it_learns_saves_loads_and_tags_as_before(crf, layer, tmp_path):
    model, (x, letters, y) = tagger(crf, layer=layer), batch()
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(60):
        loss = model.loss(x, y, LENGTHS, letters)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    real = torch.arange(6) < LENGTHS[:, None]
    tags = model.decode(x, LENGTHS, letters)
    assert torch.equal(tags[real], y[real]), "a handful of sentences is learned by heart"
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = tagger(crf, layer=layer)
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(again.decode(x, LENGTHS, letters), tags)


def test_features_can_replace_words():
    model = Tag(make("gru", 5, 8), TAGS)
    assert model.decode(torch.randn(2, 6, 5), [6, 2]).tolist()[1][2:] == [-1] * 4


def test_the_chain_learns_what_single_steps_cannot_know():
    """The inputs are uninformative; tags follow the order 0 1 2, so only the chain can learn them."""
    model = Tag(make("tcn", 1, 4, num_layers=1), 3, crf=True)
    y = (torch.arange(9) + torch.tensor([[0], [1], [2]])) % 3
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(80):
        loss = model.loss(torch.ones(3, 9, 1), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tags = model.decode(torch.ones(1, 9, 1))[0]
    assert torch.equal(tags[1:], (tags[:-1] + 1) % 3)


def test_bad_input_is_refused_with_what_is_wrong():
    model, (x, letters, y) = tagger(False), batch()
    with pytest.raises(ValueError, match=r"tags y must lie between 0 and 3 .*, got 9 at \(0, 2\)"):
        model.loss(x, y.index_fill(1, torch.tensor([2]), 9), LENGTHS, letters)
    with pytest.raises(ValueError, match="at least one real step"):
        model.loss(x, y, torch.zeros(3, dtype=torch.long), letters)
    with pytest.raises(ValueError, match="letters= needs a Tag with characters="):
        model.loss(x, y)
    with pytest.raises(ValueError, match=r"8 \+ 6 features, the layer has input_size=8"):
        Tag(make("gru", 8, 8), TAGS, embed=Embed(WORDS, 8), characters=Characters(LETTERS, 5, 6))
    with pytest.raises(ValueError, match="lstm, cnn, got 'gru'"):
        Characters(LETTERS, 5, 6, "gru")
    with pytest.raises(ValueError, match="even"):
        Characters(LETTERS, 5, 7)

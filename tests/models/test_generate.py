import math

import pytest
import torch

import seqloom
import seqloom.cells
from seqloom.core.cell import Cell
from seqloom.layers.layer import select_rows
from seqloom.layers.tcn import TCN
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.likelihood import bits, perplexity
from seqloom.models.decoding.sampling import Sampling
from seqloom.models.embed import Embed
from seqloom.models.generate import Generate

V, E, H = 9, 6, 8
STOP = 2
LAYERS = {
    "gru": lambda d: seqloom.GRU(d, H, batch_first=True),
    "lstm, two layers": lambda d: seqloom.LSTM(d, H, 2, batch_first=True),
    "attn_rnn": lambda d: seqloom.AttnRNN(d, H, batch_first=True),
    "ntm": lambda d: seqloom.NTM(d, H, batch_first=True, rows=4, width=3),
    "transformer": lambda d: Transformer(d, 1, 2, causal=True, position="sinusoidal"),
    "rotary transformer": lambda d: Transformer(d, d // 2, causal=True, position="rotary"),
    "tcn": lambda d: TCN(d, H, num_layers=2),
}


def model(name="gru", condition=0, **settings):
    torch.manual_seed(0)
    return Generate(Embed(V, E), LAYERS[name](E + condition), condition=condition, **settings).double().eval()


def texts(rows=4, steps=7):
    ids = torch.randint(1, V, (rows, steps))
    lengths = torch.randint(2, steps + 1, (rows,))
    return ids, lengths


@pytest.mark.parametrize("condition", [0, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_the_loss_of_a_whole_text_is_the_loss_step_by_step(name, condition):
    generate, (ids, lengths) = model(name, condition), texts()
    c = torch.randn(4, condition, dtype=torch.float64) if condition else None
    total, count = 0.0, 0
    for row in range(4):
        state = None
        for t in range(int(lengths[row]) - 1):
            x = generate.embed(ids[row : row + 1, t])
            x = x if c is None else torch.cat([x, c[row : row + 1]], -1)
            y, state = generate.layer.step(x, state)
            total -= generate.head(y).log_softmax(-1)[0, ids[row, t + 1]]
            count += 1
    torch.testing.assert_close(generate.loss(ids, lengths, c), total / count)


@pytest.mark.parametrize("name", LAYERS)
def test_padding_changes_neither_loss_nor_gradients(name):
    generate, (ids, lengths) = model(name), texts()
    actual = []
    for filler in (1, 8):
        ids = ids.masked_fill(torch.arange(7) >= lengths.unsqueeze(1), filler)
        generate.zero_grad()
        loss = generate.loss(ids, lengths)
        loss.backward()
        actual.append([loss.detach(), *(p.grad.clone() for p in generate.parameters())])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other)


def test_a_text_without_a_next_token_has_no_loss():
    generate = model()
    loss = generate.loss(torch.ones(2, 5, dtype=torch.long), [1, 1])
    loss.backward()
    assert float(loss.detach()) == 0 and all(p.grad.isfinite().all() for p in generate.parameters())


def test_perplexity_and_bits_of_a_uniform_model():
    generate = model()
    for p in generate.parameters():
        torch.nn.init.zeros_(p)
    loss = generate.loss(*texts())
    assert perplexity(loss) == pytest.approx(V) and bits(loss) == pytest.approx(math.log2(V))


def test_tied_weights_are_one_table_and_need_the_same_width():
    with pytest.raises(ValueError, match="as wide as the output, 8; it has 6"):
        model(tied=True)
    embed = Embed(V, H)
    generate = Generate(embed, seqloom.GRU(H, H, batch_first=True), tied=True)
    assert generate.head.linear.weight is embed.table.weight
    generate.loss(*texts()).backward()
    assert embed.table.weight.grad.abs().sum() > 0 and not embed.table.weight[0].any()


@pytest.mark.parametrize("name", LAYERS)
def test_greedy_sampling_matches_the_predictions_on_the_whole_text(name):
    generate = model(name, 2)
    start, c = torch.randint(1, V, (3, 4)), torch.randn(3, 2, dtype=torch.float64)
    actual = generate.sample(start, Sampling(top_k=1), condition=c, max_length=6)
    text = torch.cat([start, actual.tokens], 1)
    logits, _ = generate(text, condition=c)
    assert torch.equal(logits[:, 3:-1].argmax(-1), actual.tokens)


@pytest.mark.parametrize("name", LAYERS)
def test_prompts_of_different_lengths_continue_as_each_alone(name):
    generate, start = model(name), torch.randint(1, V, (3, 5))
    together = generate.sample(start, Sampling(top_k=1), lengths=[5, 1, 3], max_length=6).tokens
    for row, n in enumerate([5, 1, 3]):
        alone = generate.sample(start[row : row + 1, :n], Sampling(top_k=1), max_length=6).tokens
        assert torch.equal(together[row], alone[0])


def test_the_same_seed_draws_the_same_text_and_another_seed_another():
    generate, start = model(), torch.ones(4, 1, dtype=torch.long)
    one, two, other = (generate.sample(start, Sampling(seed=s), max_length=20).tokens for s in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)
    torch.manual_seed(5)
    free = generate.sample(start, max_length=20).tokens
    assert not torch.equal(free, generate.sample(start, max_length=20).tokens)


def test_a_text_ends_at_the_stop_token_and_is_no_longer_than_allowed():
    generate = model()
    actual = generate.sample(torch.ones(50, 1, dtype=torch.long), Sampling(seed=0), stop=STOP, max_length=9)
    assert actual.tokens.shape[1] <= 9
    assert 0 < int(actual.finished.sum()) < 50
    for row, tokens in enumerate(actual.lists()):
        assert STOP not in tokens and (len(tokens) == 9 or actual.finished[row])


def test_the_score_of_a_sample_is_its_log_probability():
    generate = model()
    start = torch.ones(5, 1, dtype=torch.long)
    actual = generate.sample(start, Sampling(0.5, 4, seed=0), max_length=5)
    log_p = generate(torch.cat([start, actual.tokens], 1))[0][:, :-1].log_softmax(-1)
    expected = log_p.gather(-1, actual.tokens.unsqueeze(-1)).sum((1, 2))
    torch.testing.assert_close(actual.scores, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_a_token_costs_one_step_of_the_layer(name):
    """The state is reused, so the cost of a token does not grow."""
    generate, seen = model(name), []
    generate.embed.register_forward_hook(lambda _module, given, _out: seen.append(given[0].numel()))
    generate.sample(torch.ones(2, 5, dtype=torch.long), max_length=30)
    assert seen == [2 * 4] + [2] * 30


@pytest.mark.parametrize("name", LAYERS)
def test_beam_search_scores_are_those_of_the_whole_text(name):
    generate, start = model(name, 2), torch.randint(1, V, (3, 2))
    c = torch.randn(3, 2, dtype=torch.float64)
    beam = Beam(4, 0.6, 30, best=4)
    actual = generate.search(start, STOP, beam, condition=c)
    for row in range(3):
        for k, tokens in enumerate(actual.lists()[row]):
            whole = torch.tensor([[*start[row].tolist(), *tokens, *([STOP] if actual.finished[row, k] else [])]])
            loss = generate.loss(whole, condition=c[row : row + 1]) * (whole.shape[1] - 1)
            begin = generate.loss(start[row : row + 1], condition=c[row : row + 1])
            torch.testing.assert_close(actual.scores[row, k], beam.score(begin - loss, whole.shape[1] - 2))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (Sampling(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(top_k=9), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(top_p=0.3), [1, 0, 0, 0]),
        (Sampling(top_p=0.69), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(top_p=0.71), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(temperature=0.5, top_p=0.6), [16 / 25, 9 / 25, 0, 0]),
    ],
)
def test_the_distribution_that_is_drawn_from_is_exact(sampling, expected):
    order = torch.tensor([2, 0, 3, 1])
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log() + 5
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(sampling.probabilities(logits), expected)
    torch.testing.assert_close(sampling.probabilities(logits[order].expand(2, 4))[1], expected[order])


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 1, 3)])
def test_ids_are_drawn_for_every_row_of_logits(shape):
    ids = torch.randint(7, shape)
    logits = torch.nn.functional.one_hot(ids, 7) * 100.0
    assert torch.equal(Sampling().draw(logits), ids)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_a_temperature_near_0_leaves_the_likeliest_and_a_huge_one_all_that_are_possible(kind):
    logits = torch.tensor([[-torch.inf, 1.0, 3.0, 2.0]], dtype=kind)
    assert Sampling(temperature=1e-300).probabilities(logits).tolist() == [[0, 0, 1, 0]]
    flat = Sampling(temperature=1e300).probabilities(logits).double()
    torch.testing.assert_close(flat, torch.tensor([[0, 1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64), atol=1e-3, rtol=0)


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(40000, 3)
    drawn = Sampling().draw(logits, torch.Generator().manual_seed(0)).bincount(minlength=3) / 40000
    torch.testing.assert_close(drawn, torch.tensor([0.5, 0.3, 0.2]), atol=0.01, rtol=0)


@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_select_takes_rows_of_any_cells_state(name):
    layer = seqloom.Recurrent(name, 3, 8, 2, batch_first=True).double()
    x, more = torch.randn(4, 3, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    rows = torch.tensor([2, 0, 2])
    _, state = layer(x)
    y, _ = layer.step(more[rows], select_rows(layer, state, rows))
    torch.testing.assert_close(y, layer.step(more, state)[0][rows])


def test_select_asks_the_layer_and_leaves_no_state_alone():
    layer, rows = TCN(3, 4).double(), torch.tensor([1, 1, 0])
    _, state = layer(torch.randn(2, 5, 3, dtype=torch.float64))
    for mine, given in zip(select_rows(layer, state, rows), state, strict=True):
        assert torch.equal(mine, given[rows])
    assert select_rows(layer, None, rows) is None


def test_each_class_generates_its_own_word():
    """Three classes and three words; only the class decides the word."""
    words = torch.tensor([[1, 3, 4, 5, 2], [1, 5, 3, 2, 0], [1, 4, 4, 4, 2]])
    lengths, c = torch.tensor([5, 4, 5]), torch.eye(3)
    generate = Generate(Embed(V, 16), seqloom.GRU(19, 32, batch_first=True), condition=3)
    optimiser = torch.optim.Adam(generate.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        generate.loss(words, lengths, c).backward()
        optimiser.step()
    actual = generate.eval().search(words[:, :1], STOP, Beam(3, max_length=8), condition=c)
    assert actual.lists() == [[[3, 4, 5]], [[5, 3]], [[4, 4, 4]]]


def test_a_saved_model_generates_the_same_after_loading(tmp_path):
    ids, lengths = texts()
    generate = model(condition=1)
    c = torch.randn(4, 1, dtype=torch.float64)
    before = generate.loss(ids, lengths, c)
    before.backward()
    torch.optim.SGD(generate.parameters(), 0.1).step()
    assert generate.loss(ids, lengths, c) < before
    torch.save(generate.state_dict(), tmp_path / "weights.pt")
    other = model(condition=1)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    said = [m.sample(ids[:, :1], Sampling(seed=3), condition=c, max_length=9).tokens for m in (generate, other)]
    assert torch.equal(*said)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="does not look ahead"):
        Generate(Embed(V, E), seqloom.GRU(E, H, batch_first=True, bidirectional=True))
    with pytest.raises(ValueError, match="batch_first=True"):
        Generate(Embed(V, E), seqloom.GRU(E, H))
    with pytest.raises(ValueError, match=r"takes inputs of 6, but will receive 8 \(embedding 6 \+ condition 2\)"):
        Generate(Embed(V, E), LAYERS["gru"](E), condition=2)
    generate, one = model(condition=2), torch.ones(3, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"condition must be \(3, 2\), got None"):
        generate.sample(one)
    with pytest.raises(ValueError, match=r"condition must be \(3, 2\), got \(3, 5\)"):
        generate(one, condition=torch.zeros(3, 5))
    with pytest.raises(ValueError, match="condition must be None, got"):
        model()(one, condition=torch.zeros(3, 2))
    with pytest.raises(ValueError, match="at least 2 steps"):
        model().loss(one)
    with pytest.raises(ValueError, match="at least one token for each row"):
        model().sample(one[:, :0])
    with pytest.raises(ValueError, match="from 1 to 1"):
        model().sample(one, lengths=[1, 0, 1])
    for wrong in (dict(temperature=0), dict(top_k=-1), dict(top_p=0), dict(top_p=1.1)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            Sampling(**wrong)

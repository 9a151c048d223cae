import pytest
import torch

import seqloom
import seqloom.cells
from seqloom.attention.score import SCORES, AdditiveScore
from seqloom.core.cell import Cell
from seqloom.layers.tcn import TCN
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed, Marks
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate

V, W, E, H = 8, 9, 6, 8  # source words, target words, widths
KINDS = {
    "none": (None, None),
    **{name: (name, None) for name in SCORES},
    "input feeding": ("general", "output"),
    "context feeding": ("additive", "context"),
}
DECODERS = [*KINDS, "transformer"]


def decoder(kind, memory_size, cell="gru", **settings):
    if kind == "transformer":
        layer = Transformer(E, 2, 2, causal=True, memory_size=memory_size, position="sinusoidal")
        return TransformerDecoder(Embed(W, E), layer, **settings)
    attention, feed = KINDS[kind]
    beside = memory_size if attention is None or feed == "context" else H if feed else 0
    layer = seqloom.Recurrent(cell, E + beside, H, batch_first=True)
    return RecurrentDecoder(Embed(W, E), layer, memory_size, attention=attention, feed=feed, **settings)


def model(kind="additive", **settings):
    torch.manual_seed(0)
    encoder = Encoder(Embed(V, E), seqloom.GRU(E, H // 2, batch_first=True, bidirectional=True))
    return Translate(encoder, decoder(kind, encoder.output_size, **settings)).double().eval()


def batch(rows=4, S=5, T=6):
    source, target = torch.randint(3, V, (rows, S)), torch.randint(3, W, (rows, T))
    target[:, 0] = 1
    return source, target, torch.randint(1, S + 1, (rows,)), torch.randint(2, T + 1, (rows,))


@pytest.mark.parametrize("kind", DECODERS)
def test_the_loss_of_all_steps_at_once_is_the_loss_step_by_step(kind):
    translate, (source, target, n, m) = model(kind), batch()
    total = 0.0
    for row in range(4):
        state = translate.decoder.start(translate.encoder(source[row : row + 1, : n[row]]))
        for t in range(int(m[row]) - 1):
            logits, state = translate.decoder.step(target[row : row + 1, t], state)
            total -= logits.log_softmax(-1)[0, target[row, t + 1]]
    torch.testing.assert_close(translate.loss(source, target, n, m), total / (m - 1).sum())


@pytest.mark.parametrize("kind", DECODERS)
def test_padding_changes_neither_loss_nor_gradients_and_is_never_looked_at(kind):
    translate, (source, target, n, m) = model(kind), batch()
    actual = []
    for filler in (3, 7):
        source = source.masked_fill(torch.arange(5) >= n.unsqueeze(1), filler)
        target = target.masked_fill(torch.arange(6) >= m.unsqueeze(1), filler)
        translate.zero_grad()
        loss = translate.loss(source, target, n, m)
        loss.backward()
        actual.append([loss.detach(), *(p.grad.clone() for p in translate.parameters() if p.grad is not None)])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other)
    weights = translate.align(source, target[:, 1:], n)
    if kind == "none":
        assert weights is None
    else:
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6, dtype=torch.float64))
        assert not weights.masked_select((torch.arange(5) >= n.unsqueeze(1)).unsqueeze(1)).any()


@pytest.mark.parametrize("kind", DECODERS)
def test_every_weight_learns(kind):
    translate, (source, target, n, m) = model(kind), batch()
    translate.loss(source, target, n, m).backward()
    for name, p in translate.named_parameters():
        still = kind == "concat" and "score" in name  # its rows past the longest source have nothing to learn
        assert p.grad is not None and (still or p.grad.abs().sum() > 0), name


@pytest.mark.parametrize("kind", DECODERS)
def test_beam_search_scores_are_those_of_teacher_forcing(kind):
    translate, (source, _, n, _) = model(kind), batch(rows=3)
    beam = Beam(4, 0.6, 8, best=4)
    actual = translate.translate(source, n, beam)
    for row in range(3):
        for k, tokens in enumerate(actual.lists()[row]):
            framed = torch.tensor([[1, *tokens, *([2] if actual.finished[row, k] else [])]])
            logits, _ = translate(source[row : row + 1, : n[row]], framed[:, :-1])
            logits[..., :2] = -torch.inf  # padding and start are never said
            log_p = logits.log_softmax(-1).gather(-1, framed[:, 1:].unsqueeze(-1)).sum()
            torch.testing.assert_close(actual.scores[row, k], beam.score(log_p, framed.shape[1] - 1))


@pytest.mark.parametrize("kind", DECODERS)
def test_rows_translated_together_are_as_each_alone(kind):
    translate, (source, _, n, _) = model(kind), batch()
    together = translate.translate(source, n, Beam(3, max_length=7, best=3)).lists()
    greedy = translate.greedy(source, n, 7).lists()
    for row in range(4):
        alone = source[row : row + 1, : n[row]]
        assert translate.translate(alone, beam=Beam(3, max_length=7, best=3)).lists()[0] == together[row]
        assert translate.greedy(alone, max_length=7).lists()[0] == greedy[row]


@pytest.mark.parametrize("kind", DECODERS)
def test_alignments_are_the_attention_weights_of_each_step(kind):
    translate, (source, target, n, _) = model(kind), batch()
    weights = translate.align(source, target[:, 1:], n)
    if kind == "none":
        assert weights is None
        return
    if kind != "transformer":
        torch.testing.assert_close(weights, translate(source, target, n)[1])
    for row, m in enumerate(n.tolist()):
        alone = translate.align(source[row : row + 1, :m], target[row : row + 1, 1:])
        torch.testing.assert_close(alone[0], weights[row, :, :m])


def test_a_transformers_alignment_is_its_attention_to_the_source():
    translate, (source, target, n, _) = model("transformer"), batch()
    memory, seen = translate.encoder(source, n), []
    cross = translate.decoder.layer.layer_at(0).cross
    cross.register_forward_hook(lambda _module, given, out: seen.append((given[0], out[0])))
    weights = translate.align(source, target[:, 1:], n)
    asked, said = seen[0]
    a = cross.weights(asked, memory=memory.values, memory_lengths=n)
    values = cross.split(cross.v(memory.values))
    torch.testing.assert_close(cross.join(a @ values), said)
    torch.testing.assert_close(a.mean(1), weights)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_trained_model_saves_loads_and_translates_the_same(kind, tmp_path):
    translate, (source, target, n, m) = model(kind), batch()
    before = translate.loss(source, target, n, m, smoothing=0.1)
    before.backward()
    torch.optim.SGD(translate.parameters(), 0.05).step()
    assert translate.loss(source, target, n, m, smoothing=0.1) < before
    torch.save(translate.state_dict(), tmp_path / "weights.pt")
    other = model(kind)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    said = [t.translate(source, n, Beam(3, max_length=9)) for t in (translate, other)]
    assert torch.equal(said[0].tokens, said[1].tokens) and torch.equal(said[0].scores, said[1].scores)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_teacher_probability_of_one_is_teacher_forcing_and_a_lower_one_is_not(kind):
    translate, (source, target, n, m) = model(kind), batch()
    read = target[:, :-1]
    logits, _ = translate(source, read, n)
    torch.testing.assert_close(translate._run_scheduled(source, read, n, 1.0), logits)
    alone = translate._run_scheduled(source, read, n, 0.0)
    own = torch.cat([read[:, :1], alone.argmax(-1)[:, :-1]], 1)  # what it said is what it read
    torch.testing.assert_close(alone, translate(source, own, n)[0])
    loss = translate.loss(source, target, n, m, teacher=0.5)
    loss.backward()
    assert all(p.grad is not None for p in translate.parameters())


@pytest.mark.parametrize("cell", sorted(Cell.registry))
def test_every_cell_decodes(cell):
    encoder = Encoder(Embed(V, E), seqloom.Recurrent(cell, E, H, batch_first=True))
    translate = Translate(encoder, decoder("general", H, cell)).double().eval()
    source, target, n, m = batch()
    logits, _ = translate(source, target, n)
    torch.testing.assert_close(translate._run_scheduled(source, target, n, 1.0), logits)
    assert translate.translate(source, n, Beam(2, max_length=4)).tokens.shape[:2] == (4, 1)
    translate.loss(source, target, n, m).backward()
    assert translate.decoder.bridge.linear.weight.grad.abs().sum() > 0


def test_any_layer_encodes_and_any_causal_one_decodes():
    encoder = Encoder(Embed(V, E), TCN(E, H, num_layers=2))
    step = RecurrentDecoder(Embed(W, E), TCN(E, H, num_layers=2), H, attention=AdditiveScore(H, H, weighted=True))
    translate = Translate(encoder, step).double().eval()
    source, target, n, _ = batch()
    torch.testing.assert_close(translate._run_scheduled(source, target, n, 1.0), translate(source, target, n)[0])
    actual = translate.translate(source, n, Beam(3, max_length=6))
    assert actual.lists()[1] == translate.translate(source[1:2, : n[1]], beam=Beam(3, max_length=6)).lists()[0]


def test_the_summary_is_where_each_direction_ends_and_the_first_state_comes_from_it():
    translate, (source, _, n, _) = model("none"), batch()
    memory = translate.encoder(source, n)
    _, h = translate.encoder.layer(translate.encoder.embed(source), lengths=n)
    torch.testing.assert_close(memory.summary, torch.cat([h[0], h[1]], -1))
    bridge = translate.decoder.bridge.linear
    torch.testing.assert_close(translate.decoder.start(memory).layer[0], torch.tanh(bridge(memory.summary)))


def test_without_attention_the_context_is_an_input_of_every_step():
    """The last step depends on the source even if its state does not."""
    translate, (source, target, n, _) = model("none"), batch()
    torch.nn.init.zeros_(translate.decoder.bridge.linear.weight)
    memory = translate.encoder(source, n)
    e = translate.decoder.embed(target)
    x = torch.cat([e, memory.summary.unsqueeze(1).expand(-1, 6, -1)], -1)
    y, _ = translate.decoder.layer(x, translate.decoder.start(memory).layer)
    torch.testing.assert_close(translate(source, target, n)[0], translate.decoder.head(y))


def test_the_memory_is_not_copied_for_every_hypothesis():
    translate, (source, _, n, _) = model("additive"), batch()
    state = translate.decoder.start(translate.encoder(source, n))
    wider = translate.decoder.select(state, torch.arange(4).repeat_interleave(5))
    assert wider.memory is state.memory and wider.layer.shape[1] == 20


def test_tied_weights_are_one_table():
    translate, (source, target, n, m) = model("additive", tied=True), batch()
    assert translate.decoder.head.linear.weight is translate.decoder.embed.table.weight
    translate.loss(source, target, n, m).backward()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["additive", pytest.param("dot", marks=pytest.mark.long), "transformer"])
def test_reversing_sequences_is_learned_in_seconds(kind):
    torch.manual_seed(0)
    encoder = Encoder(Embed(V, 32), seqloom.GRU(32, 32, batch_first=True, bidirectional=True))
    if kind == "transformer":
        layer = Transformer(64, 4, 1, causal=True, memory_size=64, position="sinusoidal")
        translate = Translate(encoder, TransformerDecoder(Embed(V, 64), layer, tied=True))
    else:
        layer = seqloom.GRU(32, 64, batch_first=True)
        translate = Translate(encoder, RecurrentDecoder(Embed(V, 32), layer, 64, attention=kind))
    optimiser = torch.optim.Adam(translate.parameters(), 5e-3)
    for _ in range(200):
        source, target, n = backwards()
        optimiser.zero_grad()
        translate.loss(source, target, n, n + 2).backward()
        optimiser.step()
    source, target, n = backwards(256)
    actual = translate.eval().translate(source, n, Beam(3, max_length=8)).lists()
    right = [best == target[row, 1 : n[row] + 1].tolist() for row, (best,) in enumerate(actual)]
    assert sum(right) > 0.9 * 256


def backwards(rows=64, S=5):
    n, t = torch.randint(1, S + 1, (rows,)), torch.arange(S)
    source = torch.randint(3, V, (rows, S)).masked_fill(t >= n.unsqueeze(1), 0)
    turned = source.gather(1, (n.unsqueeze(1) - 1 - t) % S)  # what comes past n is overwritten below
    ends = torch.arange(S + 2)
    target = torch.cat([torch.ones(rows, 1, dtype=torch.long), turned, torch.zeros(rows, 1, dtype=torch.long)], 1)
    target = target.masked_fill(ends == n.unsqueeze(1) + 1, 2).masked_fill(ends > n.unsqueeze(1) + 1, 0)
    return source, target, n


def test_invalid_arguments_are_refused():
    translate, (source, target, n, _) = model(), batch()
    with pytest.raises(ValueError, match="source row 2 is empty"):
        translate.translate(source, torch.tensor([1, 2, 0, 3]))
    with pytest.raises(ValueError, match="at least one token for each row"):
        translate.translate(source[:, :0])
    with pytest.raises(ValueError, match="source has 4 rows and target 2"):
        translate(source, target[:2], n)
    with pytest.raises(ValueError, match="at least 1 hypothesis, got 0"):
        translate.translate(source, n, Beam(0))
    with pytest.raises(ValueError, match="probability from 0 to 1, got 2"):
        translate.loss(source, target, teacher=2)
    with pytest.raises(ValueError, match="one of concat, additive, dot, general, a Score or None; got 'cosine'"):
        RecurrentDecoder(Embed(W, E), seqloom.GRU(E, H, batch_first=True), H, attention="cosine")
    with pytest.raises(ValueError, match=r"feed must be one of .*; got 'output' with None"):
        RecurrentDecoder(Embed(W, E), seqloom.GRU(E, H, batch_first=True), H, attention=None, feed="output")
    with pytest.raises(ValueError, match="takes inputs of 6, but will receive 14"):
        RecurrentDecoder(Embed(W, E), seqloom.GRU(E, H, batch_first=True), H, attention=None)
    with pytest.raises(ValueError, match="causal=True and memory_size="):
        TransformerDecoder(Embed(W, E), Transformer(E, 2))
    with pytest.raises(ValueError, match="three different ids"):
        Marks(start=2)

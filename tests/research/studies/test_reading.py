from dataclasses import replace
from random import Random

import pytest
import torch

from research.studies.applications import HANDWRITING, Applications
from research.studies.data import pen, stories, summaries
from research.studies.reading import PickSentence, Reading
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.embed import Embed


def answer(text, facts):
    """Find the answer of a story word by word, without the generator's notes."""
    places, holder, trail, i = {}, {}, {}, 0
    while text[i] != "where":
        who, verb = text[i], text[i + 1]
        if verb in stories.VERBS["go"]:
            places[who] = text[i + 4]
            for thing in (thing for thing, by in holder.items() if by == who):
                trail[thing].append(places[who])
            i += 5
            continue
        thing = text[i + 3]
        if verb in stories.VERBS["take"]:
            assert thing not in holder and trail.get(thing, [places[who]])[-1] == places[who]
            holder[thing] = who
            trail.setdefault(thing, [places[who]])
        else:
            assert holder.pop(thing) == who
        i += 4
    question = text[i:]
    return {1: lambda: places[question[2]], 2: lambda: trail[question[3]][-1], 3: lambda: trail[question[3]][-2]}[
        facts
    ]()


@pytest.mark.parametrize("facts", stories.FACTS)
def test_the_answer_of_a_story_follows_from_its_sentences(facts):
    random = Random(facts)
    for _ in range(200):
        text, place = stories.tell(facts, random)
        assert answer(text, facts) == place


def test_stories_are_the_same_every_time_and_in_one_split_only(monkeypatch):
    monkeypatch.setattr(stories, "ROWS", {"train": 60, "valid": 20, "test": 20})
    first, again = stories.stories(2, 60), stories.stories(2, 60)
    assert all(torch.equal(a, b) for split in first for a, b in zip(first[split], again[split], strict=True))
    rows = [tuple(row) for part in first.values() for row in part[0].tolist()]
    assert len(set(rows)) == len(rows) == 100
    assert all(int((part[0] > 0).sum()) == int(part[2].sum()) for part in first.values())


def test_the_summary_is_the_sentence_that_shares_rare_words_with_the_others():
    text = [
        s.split() for s in ("the cat slept all day", "a cat likes the sun", "the cat slept in the sun", "rain fell")
    ]
    weights = summaries.find_weights([text, [["the", "a", "in"]]])
    assert weights["the"] == 0 < weights["cat"]
    assert summaries.find_summary(text, weights, 1.0) == 2


def test_sentences_are_cut_at_the_last_that_fits():
    text = "This film is good. It is! The actors <br /> play their roles very well. I would see it again any time."
    assert [len(words) for words in summaries.split_sentences(text, 12)] == [4, 7]
    assert summaries.split_sentences(text, 12)[1] == ["the", "actors", "play", "their", "roles", "very", "well"]


def test_only_sentences_that_exist_are_picked():
    torch.manual_seed(0)
    layer = Recurrent("gru", 4, 3, batch_first=True, bidirectional=True)
    model = PickSentence(Embed(9, 4), layer)
    x, ends = torch.randint(1, 9, (2, 6)), torch.tensor([[1, 3, 5], [2, -1, -1]])
    scores = model(x, torch.tensor([6, 3]), ends)
    assert scores.shape == (2, 3) and scores[1].argmax() == 0 and (scores[1, 1:] == -1e4).all()
    y, _ = layer(model.embed(x), lengths=torch.tensor([6, 3]))
    assert torch.allclose(scores[0], model.head(y[0, [1, 3, 5]]).squeeze(-1), atol=1e-6)


def test_a_pen_moves_through_all_strokes_of_both_digits():
    random = torch.Generator().manual_seed(0)
    for number in (0, 14, 75, 99):
        moves = pen.write_number(number, random)
        lifts = int((moves[:, 2] == 0).sum())
        assert lifts == sum(len(pen.STROKES[digit]) for digit in divmod(number, 10))
        assert moves[:, :2].norm(dim=1)[moves[:, 2] == 1].mean() == pytest.approx(1, abs=1)


@pytest.mark.parametrize("model", ["gru", "transformer"])
def test_stories_and_handwriting_are_learned_and_compared_with_a_baseline(model, monkeypatch):
    monkeypatch.setattr(stories, "ROWS", {"train": 60, "valid": 20, "test": 20})
    monkeypatch.setattr(pen, "ROWS", {"train": 60, "valid": 20, "test": 20})
    one = next(c for c in Reading.full.conditions if c.task["facts"] == 1)
    study = Reading(shrink(Reading, one, model))
    (trial,) = study.run(lambda _: None)
    assert not trial.failed and study.trivial(one) == trial.scores["trivial"] >= 1 / 6
    assert study.table([trial])[0]["trivial"] == trial.scores["trivial"]
    written = next(c for c in Applications.full.conditions if c.name == HANDWRITING)
    (trial,) = Applications(shrink(Applications, written, model)).run(lambda _: None)
    assert not trial.failed and trial.scores["error"] > 0


def shrink(study, condition, model):
    small = replace(condition, steps=2, task=condition.task | {"budget": 1_500})
    return replace(study.full, conditions=(small,), models=(model,), seeds=1, lrs=(1e-2,), widen=False, tuning=1.0)

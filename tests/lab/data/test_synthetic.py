"""Every synthetic problem: exact seeds, fixed sets, and answers that follow from the question."""

from itertools import islice

import pytest
import torch

from seqloom.lab.data.names import TASK_NAMES
from seqloom.lab.data.registry import TASKS, find, load_task, open_task
from seqloom.lab.data.synthetic import listops
from seqloom.lab.data.task import END, IGNORE, PAD, Tokens

FIRST = 4
FORMS = [
    ("adding", {"steps": 12}),
    ("adding", {"steps": 12, "marks": "halves"}),
    ("copy", {"steps": 15}),
    ("copy", {"steps": 15, "form": "third"}),
    ("copy", {"steps": 15, "form": "selective", "count": 4}),
    ("pattern", {"steps": 20, "noise": 0.3}),
    ("reverse", {"steps": 9}),
    ("recall", {"steps": 9}),
    ("listops", {"steps": 40}),
    ("digits", {}),
]
FORM = pytest.mark.parametrize(
    ("name", "options"), FORMS, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)


def first(task, n, split="train", **order):
    return next(task.batches(split, batch=n, **order))


def are_equal(one, other):
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and torch.equal(one.lengths, other.lengths)


def test_every_registered_problem_is_tested_here():
    assert {name for name, _ in FORMS} == set(TASKS)


@FORM
def test_a_batch_depends_on_seed_epoch_and_number_alone(name, options):
    task, again = open_task(name, **options), open_task(name, **options)
    two = list(islice(task.batches("train", batch=16, seed=3), 2))
    assert are_equal(two[1], next(again.batches("train", batch=16, seed=3, skip=1)))
    assert not are_equal(two[0], two[1])
    assert not are_equal(two[0], first(task, 16, seed=4))
    assert not are_equal(two[0], first(task, 16, seed=3, epoch=1))


@FORM
def test_a_fixed_set_is_the_same_whatever_the_batch(name, options):
    extra = {} if name == "digits" else {"valid": 130, "test": 7}
    task = open_task(name, **options, **extra)
    size = task.splits["valid"].size
    small, large = (list(task.batches("valid", batch=n)) for n in (9, size))
    assert len(small) == task.count("valid", batch=9)
    assert torch.cat([b.rows for b in small]).equal(torch.arange(size)) and len(large) == 1
    for part in small:
        there = large[0].x[part.rows][:, : part.x.shape[1]]
        assert torch.equal(part.x, there)
        assert torch.equal(part.lengths, large[0].lengths[part.rows])


@FORM
def test_ids_fit_the_spaces_and_padding_is_beyond_the_lengths(name, options):
    task = open_task(name, **options)
    batch = first(task, 50)
    if isinstance(task.input, Tokens):
        assert batch.x.max() < task.input.size
        padded = torch.arange(batch.x.shape[1]) >= batch.lengths.unsqueeze(1)
        assert torch.equal(batch.x == PAD, padded)
    else:
        assert batch.x.shape[2] == task.input.size
    if task.kind in ("classify", "tag"):
        asked = batch.y[batch.y != IGNORE]
        assert asked.min() >= 0 and asked.max() < task.target.size


@FORM
def test_a_saved_problem_is_the_same_problem(name, options, tmp_path):
    task = open_task(name, **options)
    task.save(tmp_path)
    again = load_task(tmp_path)
    assert again.splits == task.splits and again.target == task.target
    assert are_equal(first(again, 5), first(task, 5))


@pytest.mark.parametrize("marks", ["anywhere", "halves"])
def test_adding_marks_two_steps_and_asks_for_their_sum(marks):
    batch = first(open_task("adding", steps=11, marks=marks), 4_000)
    v, m = batch.x.unbind(-1)
    assert torch.equal(m.sum(1), torch.full((4_000,), 2.0))
    torch.testing.assert_close((v * m).sum(1, keepdim=True), batch.y)
    assert (m[:, :5].sum(1) == 1).all() == (marks == "halves")
    assert ((batch.y - 1) ** 2).mean().item() == pytest.approx(1 / 6, rel=0.1)


def test_marks_anywhere_are_anywhere():
    m = first(open_task("adding", steps=5), 20_000).x[..., 1]
    assert m.mean(0) == pytest.approx([0.4] * 5, abs=0.02)


def test_copy_after_a_delay_is_as_in_the_literature():
    task = open_task("copy", steps=30)
    batch = first(task, 8)
    assert batch.x.shape == (8, 50)  # 10 symbols, 29 blanks, the sign, 10 blanks
    blank, sign = FIRST + 8, FIRST + 9
    assert (batch.x[:, 10:39] == blank).all() and (batch.x[:, 39] == sign).all() and (batch.x[:, 40:] == blank).all()
    assert (batch.y[:, :40] == 0).all() and torch.equal(batch.y[:, 40:], batch.x[:, :10] - FIRST + 1)
    assert task.target.unscored == ("blank",) and task.target.names[0] == "blank"


def test_selective_copy_keeps_the_order_of_scattered_symbols():
    batch = first(open_task("copy", steps=20, form="selective", count=5), 40)
    for x, y in zip(batch.x, batch.y, strict=True):
        assert torch.equal(x[x < FIRST + 8] - FIRST + 1, y[-5:])
    assert len({tuple((x < FIRST + 8).tolist()) for x in batch.x}) > 30


def test_copy_of_a_third_is_as_in_the_attnrnn_article():
    task = open_task("copy", steps=30, form="third", onehot=True)
    batch = first(task, 200)
    assert batch.x.shape == (200, 30, 8)
    ids = batch.x.argmax(-1)
    assert ids[:, :10].min() == 1 and ids[:, :10].max() == 7
    assert (ids[:, 10] == 0).all() and (ids[:, 11:] == 7).all()
    assert (batch.y[:, :20] == IGNORE).all() and torch.equal(batch.y[:, 20:], ids[:, :10])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_pattern_is_the_only_run_of_five(noise):
    task = open_task("pattern", steps=60, kinds=3, noise=noise)
    batch = first(task, 300)
    windows = (batch.x - FIRST).unfold(1, 5, 1)
    runs = (windows == windows[..., :1]).all(-1)
    own = windows[..., 0] == batch.y.unsqueeze(1)
    assert (runs & own).any(1).all() and not (runs & ~own).any()


def test_the_pattern_may_have_rivals_as_in_the_attnrnn_article():
    batch = first(open_task("pattern", steps=60, kinds=3, unique=False), 300)
    windows = (batch.x - FIRST).unfold(1, 5, 1)
    runs = (windows == windows[..., :1]).all(-1)
    assert (runs & (windows[..., 0] != batch.y.unsqueeze(1))).any()


def test_reverse_is_backwards_and_ends():
    batch = first(open_task("reverse", steps=7, shortest=2), 60)
    assert set(batch.lengths.tolist()) == {2, 3, 4, 5, 6, 7}
    for x, n, y, m in zip(batch.x, batch.lengths, batch.y, batch.y_lengths, strict=True):
        assert m == n + 1
        assert y[:m].tolist() == [*reversed(x[:n].tolist()), END]
        assert (y[m:] == PAD).all()


def test_recall_asks_for_the_first_symbol():
    batch = first(open_task("recall", steps=6), 40)
    assert torch.equal(batch.y, batch.x[:, 0] - FIRST)


def evaluate(words):
    """Evaluate a list independently, with a stack."""
    stack = []
    for word in words:
        if word != "]":
            stack.append(int(word) if word.isdigit() else word)
            continue
        values = []
        while isinstance(stack[-1], int):
            values.append(stack.pop())
        name = stack.pop()
        values.sort()
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
        stack.append({"[MIN": values[0], "[MAX": values[-1], "[MED": middle, "[SM": sum(values) % 10}[name])
    return stack.pop()


def test_listops_have_the_value_that_a_stack_computes():
    batch = first(open_task("listops", steps=60), 200)
    for x, n, y in zip(batch.x, batch.lengths, batch.y, strict=True):
        assert 10 <= n <= 60
        assert evaluate([listops.WORDS[k - FIRST] for k in x[:n].tolist()]) == y


def test_decoding_gives_names():
    task = open_task("listops")
    assert task.decode(torch.tensor([3, 0])) == ["3", "0"]
    tagged = open_task("copy").decode(torch.tensor([[0, 2, 5], [1, 0, 0]]), lengths=[3, 1])
    assert tagged == [["blank", "2", "5"], ["1"]]
    assert open_task("adding").decode(torch.tensor([[0.5]])) == [[0.5]]


def test_rows_of_the_user_are_encoded_with_their_lengths():
    batch = open_task("recall", steps=6).encode([[4, 5, 6], [7]])
    assert batch.x.tolist() == [[4, 5, 6], [7, 0, 0]] and batch.lengths.tolist() == [3, 1] and batch.y is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adding", {"steps": 1}, "steps must be at least 2"),
        ("adding", {"marks": "both"}, "anywhere, halves, got 'both'"),
        ("adding", {"lenght": 3}, "task 'adding' has no option 'lenght': the options are steps, marks"),
        ("adding", {"steps": "5"}, "steps must be of type int, got '5'"),
        ("adding", {"steps": None}, "steps must be of type int, got None"),
        ("adding", {"steps": 10**30}, "steps must be at most 10,000,000 in size"),
        ("adding", {"valid": -(10**30)}, "valid must be at most"),
        ("pattern", {"noise": []}, "noise must be of type float"),
        ("digits", {"split_seed": True}, "split_seed must be of type int, got True"),
        ("copy", {"form": "thrid"}, "delay, third, selective, got 'thrid'"),
        ("copy", {"form": "selective", "steps": 5}, "10 symbols do not fit into 5 steps"),
        ("pattern", {"steps": 4}, "steps must be at least 5, got 4"),
        ("pattern", {"noise": 2.0}, "noise must be between 0 and 1"),
        ("reverse", {"shortest": 0}, "shortest must be at least 1"),
        ("recall", {"valid": 0}, "valid and test must be at least 1"),
        ("listops", {"depth": 1, "shortest": 20}, "raise depth or arguments"),
    ],
)
def test_invalid_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        next(open_task(name, **options).batches("train", batch=1))


def test_an_unknown_name_is_an_error_that_suggests_a_similar_one():
    with pytest.raises(ValueError, match="did you mean 'adding'"):
        find("ading")


def test_the_names_of_tasks_are_known_without_torch():
    assert tuple(TASKS) == TASK_NAMES

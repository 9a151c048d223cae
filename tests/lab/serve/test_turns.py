"""Clients take turns, and so do the requests of a client."""

import pytest

from seqloom.lab.serve.turns import RequestRows, Turns


class Line:
    """Turns, with the names of the jobs whose rows each call has."""

    def __init__(self, most_rows=4, most_steps=100):
        self.turns = Turns(most_rows, most_steps)

    def add(self, name, rows=1, steps=10, client="client", key="key"):
        job = RequestRows(key, [name] * rows, [steps] * rows, client, None)
        self.turns.add(job)
        return job

    def take(self, share=1.0):
        return [row for part in self.turns.take(share) for row in part.rows]

    def take_all(self):
        calls = []
        while call := self.take():
            calls.append("".join(call))
        return calls


def test_a_large_job_is_cut_and_others_run_between_its_parts():
    line = Line()
    line.add("a", rows=12)
    assert line.take() == ["a"] * 4
    line.add("b", client="other")
    line.add("c")
    assert line.take_all() == ["bcaa", "aaaa", "aa"]


def test_a_long_job_waits_while_it_rests():
    line = Line()
    line.add("a", rows=12)
    line.turns.rests = True
    assert not line.turns.has_next()
    assert line.take() == []
    line.add("b")
    assert line.turns.has_next()
    assert line.take() == ["b"]
    line.turns.rests = False
    assert line.take_all() == ["aaaa"] * 3


def test_a_call_does_not_mix_short_rows_with_much_longer_ones():
    line = Line()
    line.add("a", steps=10)
    line.add("b", steps=21)
    line.add("c", steps=20)
    assert line.take_all() == ["ac", "b"]


def test_two_large_jobs_alternate():
    line = Line()
    line.add("a", rows=12, client="one")
    line.add("b", rows=12, client="two")
    assert line.take_all() == ["aaaa", "bbbb"] * 3


def test_a_client_with_many_jobs_has_no_more_than_one_with_a_single_job():
    line = Line()
    for _ in range(8):
        line.add("a", rows=4, client="many")
    line.add("b", rows=8, client="one")
    assert line.take_all() == ["aaaa", "bbbb", "aaaa", "bbbb", *["aaaa"] * 6]


def test_work_counts_not_rows():
    line = Line(most_rows=1)
    line.add("a", rows=4, steps=90, client="long rows")
    line.add("b", rows=6, steps=30, client="short rows")
    assert line.take_all() == ["a", "b", "b", "b", "a", "b", "b", "b", "a", "a"]


def test_a_job_that_fits_in_a_call_is_not_cut():
    line = Line()
    line.add("a", rows=3)
    line.add("b", rows=2)
    line.add("c", rows=1)
    assert line.take_all() == ["aaac", "bb"]


def test_a_row_that_is_longer_than_a_call_runs_alone():
    line = Line()
    line.add("a", steps=10)
    line.add("b", rows=2, steps=1000)
    assert line.take_all() == ["a", "b", "b"]


def test_jobs_with_other_keys_wait_for_the_next_call():
    line = Line()
    line.add("a", key="first version")
    line.add("b", key="second version")
    line.add("c", key="first version")
    assert line.take_all() == ["ac", "b"]


def test_a_client_that_comes_back_is_not_paid_for_its_absence():
    line = Line(most_rows=1)
    line.add("a", rows=6, client="stays")
    assert line.take() + line.take() + line.take() == ["a"] * 3
    line.add("b", rows=3, client="comes")
    assert line.take_all() == ["b", "a", "b", "a", "b", "a"]


@pytest.mark.parametrize("taken", [0, 1])
def test_a_job_that_is_discarded_is_gone_and_its_rows_with_it(taken):
    line = Line()
    gone = line.add("a", rows=8)
    line.add("b")
    for _ in range(taken):
        line.take()
    line.turns.discard(gone)
    line.turns.discard(gone)
    assert line.turns.rows == 1
    assert line.take_all() == ["b"]
    assert (line.turns.rows, line.turns._clients, line.turns._tags) == (0, {}, {})


def test_half_a_call_has_half_of_the_steps():
    line = Line(most_rows=32)
    line.add("a", rows=20)
    assert (len(line.take(0.5)), len(line.take())) == (5, 10)

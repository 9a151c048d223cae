import pytest

from research.studies.parameters import CLAIMS, Parameters


@pytest.fixture(scope="module")
def rows():
    return list(Parameters().run(lambda _: None))


def test_each_printed_mistake_is_named_and_nothing_else_is(rows):
    wrong = {(row.source.split()[0], row.model, row.what): row for row in rows if not row.holds}
    assert set(wrong) == {
        ("AttnRNN", "LSTM", "formula"),
        ("AttnRNN", "GRU", "formula"),
        ("AttnRNN", "AttnRNN", "example"),
        ("AttnRNN", "AttnRNN", "products per step"),
        ("RNN", "RNN", "formula"),
        ("RNN", "LSTM", "formula"),
        ("RNN", "GRU", "formula"),
    }
    assert all(row.mistake not in ("", "the count differs") for row in wrong.values())
    assert wrong["AttnRNN", "AttnRNN", "example"].has == 74_496
    verdict = Parameters().verdict(rows)
    assert all(row.mistake in verdict for row in wrong.values())
    assert verdict.startswith(f"{len(CLAIMS) - 7} of {len(CLAIMS)} printed counts are correct.")


def test_a_claim_that_holds_has_no_mistake_and_the_page_shows_both(rows):
    assert all(not row.mistake for row in rows if row.holds)
    mistakes, everything = Parameters().blocks(rows)
    assert (len(mistakes.rows), len(everything.rows)) == (7, len(CLAIMS))

import numpy as np
import pytest
from advise_data import sample_of, tokens

from seqloom.lab.advise.facts import collect_facts, measure_conflict, nearest_neighbour_error


def test_labels_that_were_flipped_on_equal_inputs_are_counted():
    random = np.random.default_rng(0)
    x, ids = tokens(3_000, 3, kinds=3)
    clean = ids.sum(1) % 2
    flipped = np.where(random.random(3_000) < 0.2, 1 - clean, clean)
    assert measure_conflict(sample_of("classify", x, clean)) == 0
    assert measure_conflict(sample_of("classify", x, flipped)) == pytest.approx(0.2, abs=0.03)


def test_the_rarer_tag_of_a_token_is_a_conflict():
    x = [["a", "b", "b", "b"]] * 100
    y = [[0, 1, 1, 2]] * 100
    assert measure_conflict(sample_of("tag", x, y)) == pytest.approx(0.25)


def test_the_nearest_neighbour_is_right_for_separated_classes():
    random = np.random.default_rng(0)
    y = random.integers(2, size=200)
    x = random.normal(size=(200, 10, 1)) + 5 * y[:, None, None]
    assert nearest_neighbour_error(sample_of("classify", list(x), y)) < 0.05
    assert nearest_neighbour_error(sample_of("classify", list(x), random.permutation(y))) == pytest.approx(
        0.5, abs=0.12
    )


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_balance_of_classes_is_measured(share):
    x, _ = tokens(1_000, 5)
    actual = collect_facts(sample_of("classify", x, (np.arange(1_000) >= 1_000 * share).astype(int)))
    assert actual.commonest == pytest.approx(share, abs=0.02)
    assert actual.rarest == pytest.approx(1 - share, abs=0.02)
    assert (actual.kind, actual.topology, actual.unit, actual.outputs) == ("classify", "N to 1", "tokens", 2)
    assert (actual.median, actual.most, actual.longest, actual.examples) == (5, 5, 5, 900)

import pytest

from seqloom.lab.advise.curve import DistanceCurve, space_distances, stretch_widths


def test_the_reach_holds_nine_tenths_on_either_side():
    curve = DistanceCurve((-2, -1, 0, 1, 2), (0.05, 0.2, 0.5, 0.2, 0.05))
    assert curve.reach == 1
    assert curve.ahead == pytest.approx(0.25)
    assert curve.within(0) == pytest.approx(0.5)


def test_a_sparse_distance_represents_the_steps_around_it():
    assert stretch_widths([0, 1, 2, 10, 20]) == [1.0, 1.0, 4.5, 9.0, 5.5]
    assert DistanceCurve((0, 1, 2, 10, 20), (1.0, 0, 0, 1.0, 0)).within(5) == pytest.approx(0.1)


def test_an_empty_curve_has_no_reach():
    assert DistanceCurve((0, 1), (0.0, 0.0)).reach is None
    assert DistanceCurve((0, 1), (0.0, 0.0)).ahead == DistanceCurve((0, 1), (0.0, 0.0)).within(1) == 0


@pytest.mark.parametrize(("longest", "first"), [(0, [0]), (5, [0, 1, 2, 3, 4, 5]), (600, [0, 1, 2])])
def test_distances_are_close_at_first_and_reach_the_end(longest, first):
    distances = space_distances(longest)
    assert distances[: len(first)] == first and distances[-1] == longest and len(distances) <= 25


def test_distances_must_rise():
    with pytest.raises(ValueError, match="must rise"):
        DistanceCurve((1, 1), (0.0, 0.0))

import pytest

from seqloom.core.plurals import count


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (1200, "row", "1,200 rows"),
        (1.0, "GPU", "1 GPU"),
        (0.5, "GPU", "0.5 GPUs"),
    ],
)
def test_a_noun_follows_its_number(number, noun, text):
    assert count(number, noun) == text


def test_a_plural_can_be_named():
    assert count(2, "study", "studies") == "2 studies"

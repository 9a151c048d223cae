"""Titles above the header of a table are left out, and named; what may be a header or a row stays."""

import pytest

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.readers import delimited
from seqloom.lab.data.task import Notes

ROWS = "".join(f"film number {i},{'good' if i % 2 else 'bad'}\n" for i in range(9))
HEADER = "review,verdict\n"


def read(path, text, **options):
    path.write_text(text)
    notes = Notes()
    source = read_source(path, Reading(**options), notes)
    return source.frame().collect(), [note.text.partition(": ")[2] for note in notes if "header" in note.text]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "films.csv"


@pytest.mark.parametrize(
    ("above", "shown"),
    [
        ("Reviews of 2026\n", "'Reviews of 2026'"),
        ("Reviews of 2026,\n,\n", "'Reviews of 2026'"),
        ('"Reviews\nof 2026"\n\n', "'Reviews', 'of 2026'"),
        ("Reviews\nof 2026\nby us\n\n", "'Reviews', 'of 2026', ..."),
    ],
)
def test_titles_are_left_out_and_named(path, above, shown):
    table, notes = read(path, above + HEADER + ROWS)
    assert (table.columns, len(table)) == (["review", "verdict"], 9)
    assert notes == [f"left out above the header: {shown}; set header=True if the first line is the header"]


def test_titles_of_tables_with_other_separators(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path / "cache"))
    for name, separator in (("films.csv", ";"), ("films.tsv", "\t")):
        rows = (HEADER + ROWS).replace(",", separator)
        table, notes = read(tmp_path / name, "A title, and more\n" + rows)
        assert table.columns == ["review", "verdict"]
        assert "'A title, and more'" in notes[0]


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROWS,
        "review,\n" + ROWS,  # a column without a name: `good` recurs, so it is no header
        "text\n" + "".join(f"line {i}\n" for i in range(9)),  # one column
        "a,b\nx\n" + ROWS,
        "total\n1,2\n3,4\n5,6\n",  # numbers are no header
        "title\nx,y\nfirst,1\nsecond,2,3\nthird,4\n",  # rows of other widths
        "".join(f"line {i}\n" for i in range(11)) + HEADER + ROWS,  # more than titles
    ],
)
def test_what_may_be_data_stays(path, text):
    path.write_text(text)
    assert delimited.find_titles(path, Reading()) == []


def test_a_header_that_is_asked_for_is_the_first_line(path):
    with pytest.raises(UserError, match="line 2 has 2 fields"):
        read(path, "Reviews of 2026\n" + HEADER + ROWS, header=True)


def test_lines_in_messages_count_titles(path):
    with pytest.raises(UserError, match="line 14 has 3 fields"):
        read(path, "Reviews\n\n" + HEADER + ROWS + "one,more\ntoo,many,fields\n")


def test_titles_are_named_when_types_change_late(path):
    rows = "".join(f"{i},{i / 2}\n" for i in range(60_000)) + "none,word\n"
    table, notes = read(path, "Measurements\n" + "step,value\n" + rows)
    assert (table.columns, len(table), len(notes)) == (["step", "value"], 60_001, 1)

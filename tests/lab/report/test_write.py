"""The files that `report.write_report` writes, for every kind of block."""

import csv
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import sample_page

from seqloom.lab import report
from seqloom.lab.report.page import Chart, Curve, Dots, Gallery, Grid, Page, Table, Words
from seqloom.lab.report.values import tabulate_dots

EVIL = '<script>alert(1)</script> & "x" \' | $title'


def written(tmp_path, *blocks, facts=None, verdict="It holds."):
    report.write_report(Page("A title", verdict, list(blocks), facts or {}), tmp_path, {"study": "tiny"})
    return (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()


class Reader(HTMLParser):
    """Collect the elements of a page, the texts of its static tables, and the data of its script."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.cells, self.data, self.inside = [], [], "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside = "data" if ("id", "page") in attrs else tag
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside in ("td", "th"):
            self.cells[-1] += data
        elif self.inside == "data":
            self.data += data


def payload(html):
    return json.loads(Reader(html).data)


def test_every_file_is_written_and_the_page_is_stored_whole(tmp_path):
    page = sample_page.page()
    names = {file.name for file in report.write_report(page, tmp_path, {"study": "tiny", "rows": [1]})}
    assert names == {"report.html", "report.md", "leaderboard.csv", "study.json"}
    assert names == {file.name for file in tmp_path.iterdir()}  # nothing unfinished is left
    document = json.loads((tmp_path / "study.json").read_text())
    assert document["rows"] == [1] and report.page_from_json(document) == page
    again = tmp_path / "again"
    report.write_report(report.page_from_json(document), again, document)
    assert all((again / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_everything_is_escaped(tmp_path):
    blocks = [
        Table(EVIL, [{EVIL: EVIL, "n": 1}], EVIL),
        Chart(EVIL, EVIL, EVIL, [Curve(EVIL, [1.0, 2.0], [1.0, 2.0])], note=EVIL),
        Dots(EVIL, EVIL, {EVIL: [1.0]}, {EVIL: 2.0}, note=EVIL),
        Grid(EVIL, [EVIL], [EVIL], [[1.0]], EVIL),
        Gallery(
            EVIL, [Chart(EVIL, EVIL, EVIL, [Curve(EVIL, [1.0], [1.0])]), Grid(EVIL, [EVIL], [EVIL], [[1.0]])], EVIL
        ),
        Words(EVIL, [EVIL, "`" + EVIL + "`"]),
    ]
    html, md = written(tmp_path, *blocks, facts={"command": EVIL, EVIL: {EVIL: [EVIL]}}, verdict=EVIL)
    page = Reader(html)
    assert page.tags.count("script") == 2  # the data and the page's own
    assert "alert(1)</script>" not in html and 'content="default-src' in html
    assert EVIL in page.cells and json.loads(page.data)["title"] == "A title"
    assert json.loads(page.data)["blocks"][2]["groups"][0]["name"] == EVIL
    assert "<script" not in re.sub(r"```.*?```|`[^`\n]*`", "", md, flags=re.S).replace("\\<", "")


def test_intervals_of_means_reach_the_page_and_its_table(tmp_path):
    intervals = {"a": (0.5, 3.0), "b": (math.nan, 1.0)}
    dots = Dots("Seeds", "y", {"a": [1.0, 2.0], "b": [1.0], "c": [2.0]}, intervals=intervals)
    html, md = written(tmp_path, dots)
    groups = payload(html)["blocks"][0]["groups"]
    assert [group["interval"] for group in groups] == [[0.5, 3.0], [None, 1.0], None]
    assert "| a | 2 | 1.500 | 0.5000 | 3 | 1 | 2 |" in md
    assert "low" not in tabulate_dots(Dots("Seeds", "y", {"a": [1.0, 2.0]})).rows[0]


def test_dots_that_are_not_seeds_are_not_called_seeds(tmp_path):
    dots = Dots("Folds", "y", {"a": [1.0]}, note="Each dot is one score.", by_seed=False)
    html, md = written(tmp_path, dots)
    assert payload(html)["blocks"][0]["by_seed"] is False
    assert "seed" not in md


def test_names_that_look_like_numbers_keep_their_order(tmp_path):
    rows = [{"model": "a", "512": 1, "64": 2}]
    html, _ = written(
        tmp_path, Table("t", rows), Dots("d", "y", {"32": [1.0], "4": [2.0]}), facts={"2": 1, "1": {"9": 2, "8": 1}}
    )
    page = payload(html)
    assert [column["name"] for column in page["blocks"][0]["columns"]] == ["model", "512", "64"]
    assert [group["name"] for group in page["blocks"][1]["groups"]] == ["32", "4"]
    assert page["facts"] == [["2", [["", "1"]]], ["1", [["9", "2"], ["8", "1"]]]]


def test_the_page_is_small_without_its_data(tmp_path):
    html, _ = written(tmp_path, Words("w", ["text"]))
    assert len(html.encode()) < 100_000


def test_a_gallery_is_stored_and_listed_without_a_script(tmp_path):
    pictures = [
        Chart("row 1: true a", "", "", [Curve("x", [0.0, 1.0], [1.0, 2.0])]),
        Grid("row 2", ["a"], ["0"], [[1.0]]),
    ]
    gallery = Gallery("Rows", pictures, "A note.")
    html, md = written(tmp_path, gallery)
    assert "row 1: true a" in Reader(html).cells and "- row 1: true a" in md
    assert report.page_from_json(json.loads((tmp_path / "study.json").read_text())).blocks == [gallery]


def test_a_page_of_an_earlier_version_is_drawn(tmp_path):
    chart = {
        "kind": "chart",
        "title": "c",
        "x_label": "x",
        "y_label": "y",
        "curves": [{"name": "a", "x": [1], "y": [2]}],
    }
    grid = {"kind": "grid", "title": "g", "rows": ["a"], "columns": ["b"], "values": [[75.0]], "note": ""}
    dots = {
        "kind": "dots",
        "title": "d",
        "y_label": "y",
        "groups": {"a": [1.0]},
        "lines": {},
        "log_y": False,
        "note": "",
    }
    old = {"page": {"title": "Old", "verdict": "v", "blocks": [chart, grid, dots], "facts": {}}}
    report.write_report(report.page_from_json(old), tmp_path, {"study": "old"})
    blocks = payload((tmp_path / "report.html").read_text())["blocks"]
    assert [block["kind"] for block in blocks] == ["chart", "grid", "dots"]
    assert blocks[0]["split"] is None and blocks[1]["by_row"] is False and blocks[2]["groups"][0]["interval"] is None


def test_values_that_are_not_finite_are_shown_as_missing(tmp_path):
    bad = [math.nan, math.inf, -math.inf, None]
    table = Table("Rows", [{"model": "a", "x": v} for v in [0.5, *bad, np.float32(2.5)]])
    curve = Curve("a", [0.0, 1.0, 2.0, math.nan, 4.0], [1.0, *bad], [0.5, *bad], [1.5, *bad])
    dots = Dots("Seeds", "y", {"a": [1.0, *bad], "b": [math.nan]}, {"none": math.nan})
    html, md = written(
        tmp_path, table, Chart("Curve", "x", "y", [curve]), dots, Grid("G", ["r"], ["a", "b"], [[math.nan, 1.0]])
    )
    document = (tmp_path / "study.json").read_text()
    shown = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", html, flags=re.S)  # not the page's own script
    for text in (shown, md, document, (tmp_path / "rows.csv").read_text()):
        assert not re.search(r"\b(nan|inf|infinity)\b", text, re.I)
    assert list(csv.reader((tmp_path / "rows.csv").read_text().splitlines()))[1:] == [
        ["a", v] for v in ["0.5", "", "", "", "", "2.5"]
    ]
    curve = payload(html)["blocks"][1]["curves"][0]
    assert curve["x"] == [0.0, 1.0, 2.0, None, 4.0] and curve["y"] == [1.0, None, None, None, None]


def test_empty_blocks_say_so(tmp_path):
    empty = [Table("t", []), Chart("c", "x", "y", []), Dots("d", "y", {}), Grid("g", [], [], []), Words("w", [])]
    html, md = written(tmp_path, *empty)
    assert html.count("There is nothing to show.") == 4 and [b["title"] for b in payload(html)["blocks"]] == list(
        "tcdgw"
    )
    assert md.count("The table is empty") == 4
    assert (tmp_path / "t.csv").read_text().strip() == ""


def test_the_numbers_of_a_column_have_one_format(tmp_path):
    rows = [{"model": "2x128", "a": 0.5, "b": 12, "c": "3.1 +- 0.2", "d": 1e-8, "e": True, "f": "a long way"}]
    rows += [{"model": "b", "a": None, "b": 3400, "c": "failed", "d": 0.0326, "e": False, "f": "3 of 5 failed"}]
    rows += [{"model": "c", "a": 0.8125, "b": 5, "c": "-1.0 +- 2.2", "d": 0.0, "e": None, "f": None}]
    _, md = written(tmp_path, Table("t", rows))
    table = md.split("## t\n\n")[1].split("\n\n")[0].split("\n")
    assert table[1] == "| --- | --: | --: | --: | --: | --- | --- |"
    assert table[2] == "| 2x128 | 0.5000 | 12 | 3.1 +- 0.2 | 1.000e-8 | yes | a long way |"
    assert table[3] == "| b | - | 3,400 | failed | 3.260e-2 | no | 3 of 5 failed |"
    assert table[4] == "| c | 0.8125 | 5 | -1.0 +- 2.2 | 0 | - | - |"


def test_tables_of_one_title_have_files_of_their_own_and_run_nothing_in_a_spreadsheet(tmp_path):
    evil = [{"model": text} for text in ("=1+1", "@sum", "-2 +- 1", "+cmd|x", "-")]
    written(tmp_path, Table("Same", evil), Table("Same", [{"a": 1}]), Table("表", []))
    assert {file.name for file in tmp_path.glob("*.csv")} == {"same.csv", "same-2.csv", "table.csv"}
    assert (tmp_path / "same.csv").read_text().split("\n")[1:6] == ["'=1+1", "'@sum", "-2 +- 1", "'+cmd|x", "-"]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (
            Chart("c", "x", "y", [Curve("gru", [1.0, 2.0], [1.0])]),
            r"chart 'c': curve 'gru' has parts of lengths \[2, 1\]",
        ),
        (Grid("g", ["a"], ["b", "c"], [[1.0]]), r"grid 'g' has rows of \[1\] values, but its names need \[2\]"),
        (Table("t", [{"x": object()}]), r"page.blocks\[0\].rows\[0\].x is a object"),
    ],
)
def test_a_block_that_cannot_be_shown_is_named_and_nothing_is_written(block, says, tmp_path):
    with pytest.raises((ValueError, TypeError), match=says):
        report.write_report(Page("p", "v", [block], {}), tmp_path / "new", {})
    assert not (tmp_path / "new").exists()


def test_a_document_without_a_page_is_named():
    with pytest.raises(ValueError, match="study 'adding' contains no page"):
        report.page_from_json({"study": "adding"})

"""The files that `report.write_report` writes, for every kind of block."""

import csv
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import sample_page

from seqloom.lab import report
from seqloom.lab.report.frame import LETTER, LINE, NARROW, draw_names_axis, fit_frame
from seqloom.lab.report.page import Chart, Curve, Dots, Grid, Page, Table, Words
from seqloom.lab.report.scale import make_scale

EVIL = '<script>alert(1)</script> & "x" \' | $title'


def written(tmp_path, *blocks, facts=None, verdict="It holds."):
    report.write_report(Page("A title", verdict, list(blocks), facts or {}), tmp_path, {"study": "tiny"})
    return (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()


def pictures(html):
    """Parse every picture as XML; raise if one is not well formed."""
    return [ET.fromstring(text) for text in re.findall(r'<svg class="picture.*?</svg>', html, re.S)]


def numbers(picture):
    """Return every number in the attributes of a picture."""
    texts = [v for e in picture.iter() for k, v in e.attrib.items() if k in {"d", "x", "y", "x1", "x2", "y1", "y2"}]
    return [float(n) for text in texts for n in re.findall(r"-?\d+(?:\.\d+)?", text)]


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
        Words(EVIL, [EVIL, "`" + EVIL + "`"]),
    ]
    html, md = written(tmp_path, *blocks, facts={"command": EVIL, EVIL: {EVIL: [EVIL]}}, verdict=EVIL)
    assert html.count("<script") == 3  # two pictures' data, and the page's own
    assert "alert(1)</script>" not in html and 'content="default-src' in html
    assert "<script" not in re.sub(r"```.*?```|`[^`\n]*`", "", md, flags=re.S).replace("\\<", "")


def test_intervals_of_means_are_drawn_where_they_are_numbers(tmp_path):
    intervals = {"a": (0.5, 3.0), "b": (math.nan, 1.0)}
    html, _ = written(tmp_path, Dots("Seeds", "y", {"a": [1.0, 2.0], "b": [1.0], "c": [2.0]}, intervals=intervals))
    assert html.count('class="whisker"') == 2  # one for the wide and one for the narrow drawing
    assert "95% interval" in html
    html, _ = written(tmp_path, Dots("Seeds", "y", {"a": [1.0, 2.0]}))
    assert 'class="whisker"' not in html and "95% interval" not in html


def test_values_that_are_not_finite_are_shown_as_missing(tmp_path):
    bad = [math.nan, math.inf, -math.inf, None]
    table = Table("Rows", [{"model": "a", "x": v} for v in [0.5, *bad, np.float32(2.5)]])
    curve = Curve("a", [0.0, 1.0, 2.0, math.nan, 4.0], [1.0, *bad], [0.5, *bad], [1.5, *bad])
    dots = Dots("Seeds", "y", {"a": [1.0, *bad], "b": [math.nan]}, {"none": math.nan})
    html, md = written(
        tmp_path, table, Chart("Curve", "x", "y", [curve]), dots, Grid("G", ["r"], ["a", "b"], [[math.nan, 1.0]])
    )
    document = (tmp_path / "study.json").read_text()
    shown = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", html, flags=re.S)
    for text in (shown, md, document, (tmp_path / "rows.csv").read_text()):
        assert not re.search(r"\b(nan|inf|infinity)\b", text, re.I)
    assert list(csv.reader((tmp_path / "rows.csv").read_text().splitlines()))[1:] == [
        ["a", v] for v in ["0.5", "", "", "", "", "2.5"]
    ]
    assert all(map(math.isfinite, (n for p in pictures(html) for n in numbers(p))))
    assert "b: mean - of 0 (1 missing)" in html


@pytest.mark.parametrize(
    "chart",
    [
        Chart("one point", "x", "y", [Curve("a", [3.0], [0.2], [0.1], [0.3])]),
        Chart("one point, log", "x", "y", [Curve("a", [3.0], [0.2])], log_x=True, log_y=True),
        Chart("no point", "x", "y", [Curve("a", [], [])], log_y=True),
        Chart("all the same", "x", "y", [Curve("a", [1.0, 2.0], [7.0, 7.0])]),
        Chart("thirty", "x", "y", [Curve(f"c{i}", [0.0, 1.0], [i, i + 1.0]) for i in range(30)]),
        Chart("zeros, log", "x", "y", [Curve("a", [0.0, 10.0, 100.0], [0.0, 1e-300, -1.0])], log_x=True, log_y=True),
        Chart("huge", "x", "y", [Curve("a", [-1e308, 1e308], [1e308, -1e308])]),
        Chart("tiny, log", "x", "y", [Curve("a", [1.0, 2.0], [5e-324, 1e308])], log_y=True),
        Chart("alike", "x", "y", [Curve("a", [1.0, 1.0], [1.0, 2.0]), Curve("a", [1.0], [1.0])]),
    ],
    ids=lambda chart: chart.title,
)
def test_every_chart_is_drawn_inside_its_picture(chart, tmp_path):
    html, _ = written(tmp_path, chart)
    wide, narrow = pictures(html)
    for picture in (wide, narrow):
        width, height = map(float, picture.attrib["viewBox"].split()[2:])
        places = [m for e in picture.iter("path") for m in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", e.attrib["d"])]
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)
        assert len(picture.findall("g")) == len(chart.curves)
        marked = any("mark" in e.attrib["class"] for e in picture.iter("path"))
        assert marked == any(curve.x for curve in chart.curves)


def test_a_zero_on_a_logarithmic_axis_is_a_hollow_mark_that_no_line_reaches(tmp_path):
    curve = Curve("a", [1.0, 2.0, 3.0, 4.0], [1.0, 0.1, 0.0, 0.01])
    html, _ = written(tmp_path, Chart("t", "x", "y", [curve], log_y=True))
    group = pictures(html)[0].find("g")
    paths = {path.attrib["class"]: path.attrib["d"] for path in group}
    assert paths["stroke d0"].count("L") == 1  # from the first to the second; the fourth stands alone
    assert paths["mark hollow"].count("M") == 1 and paths["mark"].count("M") == 3
    assert "Hollow marks" in html


def test_no_two_of_thirty_curves_look_alike_and_a_name_keeps_its_look(tmp_path):
    names = [f"c{i}" for i in range(30)]
    first = Chart("first", "x", "y", [Curve(n, [0.0], [1.0]) for n in names])
    html, _ = written(tmp_path, first, Dots("second", "y", {n: [1.0] for n in reversed(names)}))
    swatches = re.findall(r'<button type="button" class="(c\d)" .*?class="stroke (d\d)"/><path d="(.*?)"', html)
    assert len(set(swatches)) == 30
    groups = [[g.attrib["class"] for g in p.findall("g")] for p in pictures(html)]
    assert groups[0] == groups[1] == [colour for colour, _, _ in swatches] == groups[2][::-1]


def test_empty_blocks_say_so(tmp_path):
    empty = [Table("t", []), Chart("c", "x", "y", []), Dots("d", "y", {}), Grid("g", [], [], []), Words("w", [])]
    html, md = written(tmp_path, *empty)
    for text in ("The table is empty", "The chart has no curves", "There are no groups", "The grid is empty"):
        assert html.count(text) == 1
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


@pytest.mark.parametrize(("count", "turn"), [(4, 0), (7, 40), (20, 90)])
def test_names_below_an_axis_stay_in_the_picture_and_do_not_overlap(count, turn):
    names = ["a", "b" * (16 if turn else 1), *("c" for _ in range(count - 2))]
    frame = fit_frame(NARROW, make_scale([0.0, 1.0], False), names)
    actual = re.findall(r'<text[^>]* x="([\d.]+)"[^>]*>(\w+)<', draw_names_axis(frame, names))
    assert len(actual) == count and (f"rotate({-turn} " in draw_names_axis(frame, names)) == bool(turn)
    if turn:
        angle = math.radians(turn)
        assert all(float(x) - math.cos(angle) * LETTER * len(name) >= 0 for x, name in actual)
        assert (float(actual[1][0]) - float(actual[0][0])) * math.sin(angle) >= 0.8 * LINE

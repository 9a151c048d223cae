"""The page in a real browser: Chromium, if it is installed."""

import json
import shutil
from pathlib import Path

import pytest
import sample_page

from seqloom.lab import report
from seqloom.lab.report.page import Chart, Curve, Dots, Gallery, Grid, Page, Table, Words

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ROOT = Path(__file__).resolve().parents[3]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    report.write_report(sample_page.page(), folder, {"study": "sample"})
    return (folder / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Open the page; fail if it logs an error, opens a dialog or requests anything from another host."""
    wrong, contexts = [], []

    def show(width=1200, scheme="light", place=address, **settings):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:", "blob:")) else None,
        )
        page.goto(place)
        return page

    yield show
    for context in contexts:
        context.close()
    assert not wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_accessibility_problem(opened, scheme):
    page = opened(scheme=scheme)
    page.locator("#what-is-taken-for-what summary").click()
    page.evaluate("document.getElementById('where-the-decoder-looks').remove()")  # axe takes long over 225 cells
    actual = axe.Axe().run(page).response["violations"]
    serious = [
        (v["id"], [node["html"][:120] for node in v["nodes"]]) for v in actual if v["impact"] in ("serious", "critical")
    ]
    assert not serious


@pytest.mark.parametrize("width", [320, 390, 1400])
def test_the_page_fits_a_phone_and_a_desk(opened, width):
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator("#learning-curves .picture").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    table = page.locator("#leaderboard table").bounding_box()
    assert table["width"] >= 0.85 * width  # it uses the width


def test_labels_that_look_like_html_do_nothing(opened, tmp_path):
    curve = Curve(EVIL, [1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])
    chart = Chart(EVIL, EVIL, EVIL, [curve], note=EVIL, x_names=[EVIL, EVIL, EVIL])
    blocks = [
        Table(EVIL, [{EVIL: EVIL, "n": 1}], EVIL),
        chart,
        Dots(EVIL, EVIL, {EVIL: [1.0, 2.0]}, {EVIL: 2.0}, note=EVIL, intervals={EVIL: (0.5, 2.5)}),
        Grid(EVIL, [EVIL], [EVIL], [[1.0]], EVIL, by_row=True),
        Gallery(EVIL, [chart, Grid(EVIL, [EVIL], [EVIL, EVIL], [[1.0, 2.0]])], EVIL),
        Words(EVIL, [EVIL, f"`{EVIL}`"]),
    ]
    report.write_report(Page(EVIL, EVIL, blocks, {"command": EVIL, EVIL: {EVIL: EVIL}}), tmp_path, {"study": "evil"})
    for settings in ({}, {"java_script_enabled": False}):
        page = opened(place=(tmp_path / "report.html").as_uri(), **settings)
        assert page.locator("img").count() == 0 and page.locator("h1").inner_text() == EVIL
    page = opened(place=(tmp_path / "report.html").as_uri())
    assert page.locator("script").count() == 2
    page.locator(".plot").first.focus()
    page.keyboard.press("End")
    assert EVIL in page.locator(".tip").inner_text()
    with page.expect_download() as saved:
        page.locator("button", has_text="SVG").first.click()
    assert "<script" not in Path(saved.value.path()).read_text()


def test_the_legend_hides_a_curve_and_shows_it_again_by_key(opened):
    page = opened()
    part = page.locator("#learning-curves")
    key, curves = part.locator(".legend button", has_text="lstm"), part.locator(".picture .curve")
    assert curves.count() == 6
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false" and curves.count() == 5
    part.locator(".picture").hover(position={"x": 300, "y": 120})
    tip = part.locator(".tip").inner_text()
    assert "gru" in tip and "lstm" not in tip
    key.click()
    assert key.get_attribute("aria-pressed") == "true" and curves.count() == 6


def test_the_arrow_keys_read_a_chart_seeds_and_a_matrix(opened):
    page = opened()
    plot = page.locator("#how-far-the-gradient-reaches .plot")
    plot.focus()
    page.keyboard.press("End")
    assert " ".join(plot.locator(".tip").inner_text().split()) == "distance 1,024 attn_rnn 5.1e-10 lstm 0 gru 0"
    page.keyboard.press("ArrowLeft")
    assert "distance 512" in plot.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert plot.locator(".tip").count() == 0
    seeds = page.locator("#test-accuracy-by-seed .plot")
    seeds.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert seeds.locator(".tip").inner_text().startswith("gru: mean 0.85")
    page.locator("#what-is-taken-for-what .plot").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#what-is-taken-for-what .readout").inner_text() == "2 stars, 2 stars: 1,910"


def test_a_confusion_matrix_shows_shares_of_its_rows_or_counts(opened, tmp_path):
    grid = Grid("Confusions", ["a", "b"], ["a", "b"], [[30, 10], [1, 999]], by_row=True)
    report.write_report(Page("t", "v", [grid], {}), tmp_path, {"study": "grid"})
    page = opened(place=(tmp_path / "report.html").as_uri())
    numbers = page.locator(".shades .number")
    assert numbers.all_text_contents() == ["75.0", "25.0", "0.1", "99.9"]
    fills = page.locator(".shades .cell").evaluate_all("cells => cells.map((cell) => getComputedStyle(cell).fill)")
    assert len(set(fills)) == 4  # 30 of 40 is darker than 10 of 40, though both are rarer than 999
    page.locator("button", has_text="counts").click()
    assert numbers.all_text_contents() == ["30", "10", "1", "999"]


def test_a_table_is_sorted_by_its_headings_with_missing_values_last(opened):
    page = opened()
    table = page.locator("#leaderboard table")
    names = lambda: table.locator("tbody th").all_inner_texts()  # noqa: E731
    first = names()
    heading = table.locator("thead th", has_text="latency of 1")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert names() == [*first[:-1][::-1], "bag of words"]
    heading.locator("button").click()
    assert names() == first
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") is None and names() == first


def test_a_long_table_is_searched(opened, tmp_path):
    rows = [{"model": f"model {i}", "note": "odd" if i % 2 else "even"} for i in range(20)]
    report.write_report(Page("t", "v", [Table("Many", rows)], {}), tmp_path, {"study": "many"})
    page = opened(place=(tmp_path / "report.html").as_uri())
    page.locator("input[type=search]").fill("odd 1")
    assert page.locator("tbody tr").count() == 6 and "6 of 20" in page.locator("#many").inner_text()


def test_pictures_and_tables_are_saved(opened):
    page = opened()
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"step,attn_rnn,")):
        with page.expect_download() as saved:
            page.get_by_label(f"Save Learning curves as {kind}").click()
        assert saved.value.suggested_filename == f"learning-curves.{kind.lower()}"
        content = Path(saved.value.path()).read_bytes()
        assert content.startswith(start)
        if kind == "SVG":
            assert b"transformer</text>" in content and b"rgb(0, 104, 168)" in content  # the legend, and a colour
    with page.expect_download() as saved:
        page.get_by_label("Save Leaderboard as CSV").click()
    assert Path(saved.value.path()).read_text().splitlines()[1].startswith("attn_rnn,0.87")


def test_the_button_changes_the_scheme_and_paper_is_light(opened):
    page = opened()
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    cell = lambda: page.evaluate("getComputedStyle(document.querySelector('.cell')).fill")  # noqa: E731
    light, shade = ground(), cell()
    page.locator("#scheme").click()
    assert ground() != light and cell() != shade and page.locator("#scheme").inner_text() == "Light"
    page.emulate_media(media="print")
    assert ground() == "rgb(255, 255, 255)" and cell() == shade


def test_a_table_of_a_study_is_not_cut_on_paper(opened, tmp_path):
    row = {"condition": "T = 10,000, marks anywhere", "model": "attn_rnn", "MAE": 0.0695, "low": -0.1112, "high": 0.25}
    row |= {"seeds": 5, "failed": 0, "document": 0.3411, "trivial": 0.3333, "MSE": 1.275e-2, "parameters": 51_185}
    row |= {"hidden": 112, "lr": 0.01, "start": "orthogonal", "ms/step": 73.56}
    report.write_report(Page("T", "V.", [Table("T", [row])], {}), tmp_path, {"study": "wide"})
    page = opened(width=688, place=(tmp_path / "report.html").as_uri())  # A4 between its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.querySelector('table').scrollWidth") <= 688 * 4 / 3  # Chromium shrinks by so much


def test_the_page_shows_the_same_tables_without_scripts(opened):
    cells = "tables => tables.map((table) => [...table.rows].map((row) => [...row.cells].map((c) => c.textContent)))"
    plain = opened(java_script_enabled=False)
    assert plain.locator("#learning-curves table").is_visible() and plain.locator("svg").count() == 0
    texts = plain.locator("#leaderboard").inner_text()
    drawn = opened().locator("#leaderboard table").evaluate_all(cells)[0]
    assert all(cell in texts for row in drawn for cell in row) and len(drawn) == 8


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1400])
def test_every_stored_study_is_drawn(opened, tmp_path, width):
    files = sorted((ROOT / "research" / "results" / "studies").glob("*/study.json"))
    if not files:
        pytest.skip("no study is stored")
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        report.write_report(report.page_from_json(document), tmp_path / file.parent.name, {"study": "again"})
        page = opened(width=width, place=(tmp_path / file.parent.name / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width, file
        pictures = [block for block in document["page"]["blocks"] if block["kind"] in ("chart", "dots", "grid")]
        assert page.locator("svg.picture").count() == len(pictures), file

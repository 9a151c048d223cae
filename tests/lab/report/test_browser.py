"""The page in a real browser: Chromium, if it is installed."""

import shutil

import pytest
import sample_page

from seqloom.lab import report
from seqloom.lab.report.page import Page, Table

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
    pytest.mark.xdist_group("browser"),
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
    """Open the page; fail if it logs an error or requests anything from another host."""
    wrong, contexts = [], []

    def show(width=1200, scheme="light", **settings):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda asked: wrong.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None
        )
        page.goto(address)
        return page

    yield show
    for context in contexts:
        context.close()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_accessibility_problem(opened, scheme):
    page = opened(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    page.add_style_tag(content=".scroll { background: none !important }")  # axe cannot see through its shadow
    actual = axe.Axe().run(page).response["violations"]
    serious = [
        (v["id"], [node["html"][:120] for node in v["nodes"]]) for v in actual if v["impact"] in ("serious", "critical")
    ]
    assert not serious


@pytest.mark.slow
def test_a_phone_shows_the_page_without_sideways_scrolling(opened):
    page = opened(width=320)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert page.locator(".picture.narrow").first.is_visible() and page.locator(".picture.wide").first.is_hidden()


@pytest.mark.slow
def test_the_legend_hides_a_curve_and_shows_it_again_by_key(opened):
    page = opened()
    key = page.locator(".legend button", has_text="lstm").first
    curve = page.locator(f"figure:has(.legend button) .wide g[data-curve='{key.get_attribute('data-curve')}']").first
    assert curve.is_visible()
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false" and curve.is_hidden()
    plot = page.locator("figure:has(.legend button) .plot").first
    plot.hover(position={"x": 300, "y": 120})
    tip = plot.locator(".tip").inner_text()
    assert "gru" in tip and "lstm" not in tip
    key.click()
    assert key.get_attribute("aria-pressed") == "true" and curve.is_visible()


@pytest.mark.slow
def test_the_arrow_keys_read_a_chart(opened):
    page = opened()
    plot = page.locator("#how-far-the-gradient-reaches .plot")
    plot.focus()
    page.keyboard.press("End")
    assert " ".join(plot.locator(".tip").inner_text().split()) == "distance 1,024 attn_rnn 5.1e-10 lstm 0 gru 0"
    page.keyboard.press("ArrowLeft")
    assert "distance 512" in plot.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert plot.locator(".tip").is_hidden()


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_button_changes_the_scheme(opened):
    page = opened()
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    page.locator("#scheme").click()
    assert ground() != light and page.locator("#scheme").inner_text() == "Light"
    page.emulate_media(media="print")
    assert ground() == light  # paper is light whatever the screen was


@pytest.mark.slow
def test_a_table_of_a_study_is_not_cut_on_paper(browser, tmp_path):
    row = {"condition": "T = 10,000, marks anywhere", "model": "attn_rnn", "MAE": 0.0695, "low": -0.1112, "high": 0.25}
    row |= {"seeds": 5, "failed": 0, "document": 0.3411, "trivial": 0.3333, "MSE": 1.275e-2, "parameters": 51_185}
    row |= {"hidden": 112, "lr": 0.01, "start": "orthogonal", "ms/step": 73.56}
    report.write_report(Page("T", "V.", [Table("T", [row])], {}), tmp_path, {"study": "wide"})
    page = browser.new_page(viewport={"width": 688, "height": 1000})  # A4 between its margins
    page.emulate_media(media="print")
    page.goto((tmp_path / "report.html").as_uri())
    wide = page.evaluate("document.querySelector('table').scrollWidth")
    page.close()
    assert wide <= 688 * 4 / 3  # by so much Chromium makes a page smaller


@pytest.mark.slow
def test_the_page_is_readable_without_scripts(opened):
    page = opened(java_script_enabled=False)
    assert page.locator(".wide g[data-curve]").first.is_visible() and page.locator("#scheme").is_hidden()

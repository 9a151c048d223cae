"""The explorer in a real browser: Chromium, if it is installed."""

import json
import shutil
import threading
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from kinds_of_runs import KINDS, train_kind

from seqloom.lab.explore.saved_page import build_page, record_examples
from seqloom.lab.explore.server import Session, make_server
from seqloom.lab.explore.service import RunEntry, Service

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CLAMP = {"layer": "l9", "letter": "z", "value": 1, "units": [], "steps": None}
TEXT = "the plot is dull , but the cast is great"

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
def service(run):
    broken = RunEntry("broken <b>", problem="runs/broken is not a run: <script>document.title = 'run'</script>")
    return Service([RunEntry("turns", run), RunEntry("again", run), broken])


@contextmanager
def serve(service):
    ready, session = threading.Event(), Session()
    server = make_server(service, session, lambda _: ready.set())
    thread = threading.Thread(target=server.serve_site)
    thread.start()
    assert ready.wait(60)
    yield f"{server.address}/?token={session.token}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def address(service):
    with serve(service) as place:
        yield place


@pytest.fixture
def opened(browser, address):
    """Open the page; fail if it logs an error or asks another host for anything."""
    wrong, contexts = [], []

    def show(view, width=1200, scheme="light", place=address):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if "status of 400" not in message.text else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        allowed = (place.split("?")[0], "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(allowed) else wrong.append(asked.url))
        page.goto(f"{place}#{quote(json.dumps(view))}")
        return page

    yield show
    for context in contexts:
        context.close()
    assert not wrong


def wait_for(page, expression):
    """Wait until an expression is true; the page's policy forbids the `eval` of `Page.wait_for_function`."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{expression} did not become true in 30 s")


def show_finding(page):
    page.locator(".finding .first").first.wait_for()
    return page.locator(".finding .first").first.inner_text()


def list_serious_problems(page):
    """Return what axe-core calls serious or critical, with the elements."""
    found = axe.Axe().run(page).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    return [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in serious]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_serious_accessibility_problem(opened, scheme):
    page = opened({"run": "turns", "input": TEXT, "cursor": 5, "unit": 3}, scheme=scheme)
    assert "'but'" in show_finding(page)
    page.locator(".heat canvas").first.wait_for()
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    page.wait_for_timeout(300)
    assert not list_serious_problems(page)


def test_typing_moves_the_prediction_and_the_link_restores_the_view(opened):
    page = opened({"run": "turns", "input": "the plot is good"})
    show_finding(page)
    page.locator("textarea").fill("the plot is not good")
    page.get_by_text("'not' turns the prediction").first.wait_for()
    page.locator(".letters button", has_text="z").click()
    page.locator("body").press("ArrowRight")
    page.locator("body").press("Shift+ArrowRight")
    wait_for(page, "JSON.parse(decodeURIComponent(location.hash.slice(1) || '{}')).span")
    again = opened(json.loads(page.evaluate("decodeURIComponent(location.hash.slice(1))")))
    assert "'not'" in show_finding(again)
    assert again.locator(".letters button[aria-pressed=true]").inner_text() == "z"
    again.locator(".step.marked").nth(1).wait_for()


def test_holding_a_gate_moves_the_prediction(opened):
    page = opened({"run": "turns", "input": "the plot is not good"})
    show_finding(page)
    page.locator("form select").select_option("z")
    page.locator("form input").nth(1).fill("1")
    page.locator("form input").nth(2).fill("3")
    page.get_by_role("button", name="hold").click()
    page.locator(".moved").wait_for()
    assert "moves from" in page.locator(".moved").inner_text()


def test_similar_moments_are_found(opened):
    page = opened({"run": "turns", "input": "the plot is not good", "span": [3, 3], "cursor": 3})
    show_finding(page)
    page.get_by_role("button", name="find moments like").click()
    page.locator(".matches mark").first.wait_for()
    assert page.locator(".matches mark").first.inner_text() == "not"


def test_two_models_stand_side_by_side(opened):
    page = opened({"run": "turns", "other": "again", "input": TEXT})
    page.locator(".finding").nth(1).wait_for()
    assert page.locator(".finding").count() == 2


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        ({"run": "broken <b>"}, "broken <b> cannot be shown: runs/broken is not a run: <script>"),
        ({"run": "turns", "row": 10**6}, "there is no row 1000000"),
        ({"run": "turns", "input": "x", "clamps": [CLAMP]}, "no layer 'l9' to clamp"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence_and_nothing_executes(opened, view, sentence):
    page = opened(view)
    page.get_by_role("alert").first.wait_for()
    assert sentence in page.get_by_role("alert").first.inner_text()
    assert page.title() == "seqloom explore"


def test_strange_text_does_not_execute(opened):
    page = opened({"run": "turns", "input": "<img src=x onerror=document.title='run'> 🎉 טוב not good"})
    show_finding(page)
    page.locator(".strip").wait_for()
    assert page.title() == "seqloom explore" and page.locator(".strip img").count() == 0


def test_a_phone_shows_the_page_without_sideways_scrolling(opened):
    page = opened({"run": "turns", "input": TEXT, "cursor": 2, "unit": 1}, width=390)
    show_finding(page)
    page.locator(".heat canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_saved_page_works_from_disk(opened, service, tmp_path):
    place = tmp_path / "page.html"
    place.write_text(build_page(record_examples(service, 2, [TEXT])), encoding="utf-8")
    page = opened({"run": "turns", "row": 0}, place=place.as_uri())
    assert "'but'" in show_finding(page)
    page.locator(".heat canvas").first.wait_for()


def test_a_saved_page_runs_the_model_by_itself(opened, service, run, tmp_path):
    place = tmp_path / "page.html"
    place.write_text(build_page(record_examples(service, 1)), encoding="utf-8")
    page = opened({"run": "turns", "input": "the film is cold"}, place=place.as_uri())
    show_finding(page)
    for text in ("the film is not cold", "The SCORE isn't cold , but the plot is not great"):
        page.locator("textarea").fill(text)
        wait_for(page, f"document.querySelectorAll('.step').length === {len(text.split())}")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save Prediction as the sequence grows as CSV").click()
        header, *_, last = (line.split(",") for line in saved.value.path().read_text().splitlines())
        shown = dict(zip(header[2:], map(float, last[-len(header[2:]) :]), strict=True))
        assert shown == pytest.approx(run.predict([text], probabilities=True)[0]["probabilities"], abs=1e-4)
        written = service.answer("explain", {"run": "turns", "input": text})["findings"]
        said = page.locator(".finding .plain").all_inner_texts()
        assert said[0] == written[0]["text"]
        assert [t for t in said if "but" in t] == [
            f["text"] for f in written if "but" in f["text"] and "unit" not in f["text"]
        ]
    page.locator("form select").select_option("z")
    page.locator("form input").nth(1).fill("1")
    page.get_by_role("button", name="hold").click()
    page.locator(".moved").wait_for()


def test_pictures_and_data_are_saved(opened):
    page = opened({"run": "turns", "input": TEXT})
    show_finding(page)
    page.locator(".heat canvas").first.wait_for()
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"step,token")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save Memory as {kind}").click()
        content = saved.value.path().read_bytes()
        assert content.startswith(start) and len(content) > 500


IN_EACH_RUN = ("Finding", "Prediction", "Contribution of each step", "Memory", "Gradient flow |dL/dh_t|", "Intervene")
ELSEWHERE = {
    "text": ("Steps", "Prediction as the sequence grows"),
    "tags": ("Steps", "Output at each step"),
    "series": ("Input over time (scaled)", "Prediction as the sequence grows"),
    "value": ("Steps",),
    "forecast": ("Input over time (scaled)", "Forecast of level"),
    "translation": ("Steps", "Attention"),
    "characters": ("Steps", "Output at each step"),
    "audio": ("Input over time (scaled)", "Prediction as the sequence grows"),
    "speech": ("Input over time (scaled)", "Output at each step"),
}
QUICK = ("tags", "series", "forecast", "translation", "audio")
ALL = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.long) for kind in KINDS]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ALL)
def test_every_view_of_a_run_of_each_kind_is_drawn(opened, tmp_path, kind):
    with serve(Service([RunEntry(kind, train_kind(kind, tmp_path))])) as place:
        page = opened({"cursor": 1, "unit": 2}, place=place)
        assert show_finding(page)
        for title in (*IN_EACH_RUN, *ELSEWHERE[kind]):
            page.locator(f"section[aria-label='{title}'], section[aria-label^='{title}:']").first.wait_for()
        canvas = page.locator(".heat canvas").first
        letters = page.locator(".letters button")
        shown = set()
        for number in range(letters.count()):
            letters.nth(number).click()
            page.locator(f".heat canvas[aria-label^='{letters.nth(number).inner_text()} of']").wait_for()
            shown.add(canvas.evaluate("(c) => c.toDataURL()"))
        assert len(shown) == letters.count() >= 4
        page.locator("summary", has_text="held-out rows").click()
        page.locator(".rows button").nth(1).click()
        page.locator(".rows button.current").wait_for()
        page.locator("summary", has_text="Learning curves").click()
        page.locator("details[open] .gallery svg path.marks").first.wait_for()  # one validation: a point
        assert page.get_by_role("alert").count() == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_kind_of_run_has_a_serious_accessibility_problem(opened, tmp_path, kind, scheme):
    with serve(Service([RunEntry(kind, train_kind(kind, tmp_path))])) as place:
        page = opened({"cursor": 1, "unit": 2}, place=place, scheme=scheme)
        show_finding(page)
        page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        page.wait_for_timeout(300)
        assert not list_serious_problems(page)

"""The page to try a run and the page of all routes, in a browser."""

import shutil
from contextlib import contextmanager

import pytest
from test_server import serve

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


@contextmanager
def open_page(folder, path, **settings):
    """Serve runs and open a page; at its end, check that it asked this server alone and reported no error."""
    playwright = pytest.importorskip("playwright.sync_api")
    with serve(folder, **settings) as (server, _), playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, errors, asked = browser.new_page(), [], []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.address + path)
        yield page
        assert not [error for error in errors if "status of 40" not in error]  # a browser reports refused requests
        assert all(url.startswith(server.address) for url in asked)
        browser.close()


def test_a_person_can_predict_and_run_a_stream(folder):
    with open_page(folder, "/") as page:
        page.locator("#facts", has_text="reads order").wait_for()
        page.click("#send")
        page.locator("#table td", has_text="tea").or_(page.locator("#table td", has_text="infusion")).first.wait_for()
        page.click("#step")
        page.locator("#table th", has_text="step").wait_for()
        assert page.locator("#curl").inner_text().startswith("curl --json '")
        page.fill("#rows", "[{")
        page.click("#send")
        page.locator("#status", has_text="400: the body is not valid JSON").wait_for()


def test_the_page_of_routes_lists_fields_and_sends_requests(folder):
    with open_page(folder, "/docs") as page:
        routes = page.locator("#routes > details")
        predict = routes.filter(has_text="POST /v1/predict")
        predict.locator("summary").first.click()
        predict.locator("td", has_text="rows[].order").first.wait_for()
        predict.get_by_role("button", name="Send").click()
        predict.locator("pre", has_text='"results"').wait_for()
        predict.get_by_label("Body, as JSON").fill("[{")
        predict.get_by_role("button", name="Send").click()
        predict.locator("pre", has_text="the body is not valid JSON").wait_for()
        describe = routes.filter(has_text="GET /v1/runs/{run}")
        describe.locator("summary").first.click()
        describe.get_by_label("run", exact=True).fill("zan/zibar")
        describe.get_by_role("button", name="Send").click()
        describe.locator("pre", has_text="404").wait_for()


def test_the_page_of_routes_asks_for_the_token(folder):
    token = "0123456789abcdef0123"
    with open_page(folder, "/docs", token=token) as page:
        page.locator("#status", has_text="401: this server needs a token").wait_for()
        page.get_by_label("Token of this server").fill(token)
        page.keyboard.press("Tab")
        page.locator("#routes > details", has_text="POST /v1/predict").wait_for()

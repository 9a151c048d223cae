"""The page to try a run, in a browser."""

import shutil

import pytest
from test_server import serve

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_person_can_predict_and_run_a_stream(folder):
    playwright = pytest.importorskip("playwright.sync_api")
    with serve(folder) as (server, _), playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, errors, asked = browser.new_page(), [], []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.address)
        page.locator("#facts", has_text="reads order").wait_for()
        page.click("#send")
        page.locator("#table td", has_text="tea").or_(page.locator("#table td", has_text="infusion")).first.wait_for()
        page.click("#step")
        page.locator("#table th", has_text="step").wait_for()
        assert page.locator("#curl").inner_text().startswith("curl --json '")
        assert not errors
        assert all(url.startswith(server.address) for url in asked)
        page.fill("#rows", "[{")
        page.click("#send")
        page.locator("#status", has_text="400: the body is not valid JSON").wait_for()
        browser.close()

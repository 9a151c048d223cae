"""The OpenAPI document describes the routes as they are."""

import subprocess
import sys

import pytest
from small_runs import open_site
from test_server import serve

from seqloom.lab.serve import app


def test_every_example_of_the_document_works(client):
    document = client.get("/openapi.json").json()
    seen = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                if "{token}" in path:
                    run = example["value"]["run"]
                    token = client.post("/v1/stream", json={"run": run}).json()["token"]
                    answer = client.request(method, path.replace("{token}", token), json=example["value"])
                else:
                    answer = client.request(method, path, json=example["value"])
                assert answer.status_code in (200, 201), (path, answer.text)
                assert str(answer.status_code) in operation["responses"]
                seen += 1
    assert seen == 3 + 1 + 4 + 4  # predict, generate, start, step


def test_every_route_is_described_with_its_problems(client):
    document = client.get("/openapi.json").json()
    routes = {(path, method) for path, operations in document["paths"].items() for method in operations}
    assert routes == {
        ("/v1/predict", "post"),
        ("/v1/generate", "post"),
        ("/v1/runs", "get"),
        ("/v1/runs/{run}", "get"),
        ("/v1/stream", "post"),
        ("/v1/stream/{token}", "delete"),
        ("/v1/stream/{token}/steps", "post"),
        ("/v1/stream/{token}/reset", "post"),
        ("/v1/stream/{token}/events", "get"),
        ("/healthz", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            assert {"404", "413", "422"} <= set(operation["responses"])


def test_a_token_is_part_of_the_document(folder):
    with (site := open_site([folder / "cups"], token="0123456789abcdef0123")).client:
        given = {"authorization": "Bearer 0123456789abcdef0123"}
        assert site.client.get("/openapi.json", headers=given).json()["security"] == [{"bearer": []}]


def test_the_page_asks_only_this_server(client):
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for text in (client.get(path).text for path, _, _ in app.PAGES):
        assert "http://" not in text
        assert "https://" not in text


@pytest.mark.slow
def test_no_request_that_the_document_allows_or_forbids_fails_in_the_server(folder):
    pytest.importorskip("schemathesis")
    code = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    with serve(folder) as (server, _):
        words = ["run", f"{server.address}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "3"]
        words += ["--exclude-path", "/v1/stream/{token}/events", "--seed", "1", "--no-color"]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]

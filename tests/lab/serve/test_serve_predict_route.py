"""POST /v1/predict and /v1/generate answer as `seqloom predict` and `seqloom generate` do."""

import asyncio
import json

import pytest
from small_runs import open_site

import seqloom

EXAMPLES = {
    "cups": [{"order": "mint honey kettle"}, {"order": "spoon"}, {"order": ""}],
    "pulses": [{"pulse": [0.1, None, 0.3], "flow": [1, 2, 3]}, {"pulse": [0.5], "flow": [0.25]}],
    "level": [{"level": [1.0, 2.0, 3.0, 2.5], "day": "2025-03-01"}],
}


@pytest.mark.parametrize("run", EXAMPLES)
def test_the_results_are_those_of_the_run(client, folder, run):
    rows = EXAMPLES[run]
    answer = client.post("/v1/predict", json={"run": run, "rows": rows, "probabilities": True})
    assert answer.status_code == 200, answer.text
    expected = seqloom.Run.load(folder / run).predict(rows, probabilities=True)
    assert answer.json() == {"run": run, "step": 2, "results": json.loads(json.dumps(expected))}


def test_a_row_with_one_column_may_be_the_input_itself(client):
    rows = ["mint honey", {"order": "mint honey", "drink": "tea", "another": 1}]
    first, second = client.post("/v1/predict", json={"run": "cups", "rows": rows}).json()["results"]
    assert first == second


def test_no_rows_have_no_results(client):
    assert client.post("/v1/predict", json={"run": "cups", "rows": []}).json()["results"] == []


def test_requests_at_the_same_time_share_a_call_and_get_their_own_results(site, folder):
    texts = ["mint", "honey kettle lemon", "spoon saucer"]
    runs = site.runs.by_name["cups"]
    calls = []
    call = runs.rows._call

    def count_jobs(key, jobs):
        calls.append(len(jobs))
        return call(key, jobs)

    async def ask():
        return await asyncio.gather(*(runs.predict(runs.check([{"order": text}]), False, "client") for text in texts))

    runs.rows._call = count_jobs
    try:
        answers = site.client.portal.call(ask)
    finally:
        runs.rows._call = call
    expected = seqloom.Run.load(folder / "cups").predict(texts)
    for results, wanted in zip(answers, expected, strict=True):
        assert results[0]["prediction"] == wanted["prediction"]
        assert results[0]["probability"] == pytest.approx(wanted["probability"], abs=2e-6)
    assert max(calls) > 1 or len(calls) == 3  # the first may have started alone
    assert sum(calls) == 3


def test_a_bad_row_fails_its_own_request_only(site):
    run = site.runs.by_name["pulses"]
    good = {"pulse": [0.1, 0.2], "flow": [1.0, 2.0]}
    bad = {"pulse": [0.1, 0.2], "flow": [1.0]}

    async def ask():
        rows = [[good], [bad], [good]]
        return await asyncio.gather(
            *(run.predict(run.check(one), False, "client") for one in rows), return_exceptions=True
        )

    first, second, third = site.client.portal.call(ask)
    assert first == third
    assert second.status == 422
    assert "'flow' has 1 step and 'pulse' has 2" in second.sentence


def test_texts_are_those_of_the_seed_and_begin_with_the_prompt(client):
    body = {"run": "verse", "prompts": ["kettle"], "max_tokens": 5, "seed": 1, "count": 2}
    first, second = (client.post("/v1/generate", json=body).json()["results"] for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert all(one["text"].startswith("kettle") for one in first)


def test_runs_are_described_with_columns_and_an_example_that_works(client):
    runs = client.get("/v1/runs").json()["runs"]
    assert [run["name"] for run in runs] == ["cups", "pulses", "level", "verse"]
    assert runs[1]["columns"] == ["pulse", "flow"]
    for run in runs:
        assert client.get(f"/v1/runs/{run['name']}").json() == run
        if run["task"] != "generate":
            answer = client.post("/v1/predict", json={"run": run["name"], "rows": [run["example"]]})
            assert answer.status_code == 200, answer.text


def test_a_single_run_need_not_be_named(folder):
    with (site := open_site([folder / "cups"])).client:
        assert site.client.post("/v1/predict", json={"rows": ["mint"]}).status_code == 200


def test_a_run_can_have_another_name(folder):
    with (site := open_site([folder / "cups", f"old={folder / 'cups'}"])).client:
        assert list(site.runs.by_name) == ["cups", "old"]
        assert site.client.post("/v1/predict", json={"run": "old", "rows": ["mint"]}).status_code == 200


def test_metrics_count_rows_and_requests(folder):
    with (site := open_site([folder / "cups"])).client:
        site.client.post("/v1/predict", json={"rows": ["mint", "honey"]})
        site.client.post("/v1/predict", json={"rows": 3})
        text = site.client.get("/metrics").text
    assert 'seqloom_rows_total{run="cups"} 2.0' in text
    assert 'seqloom_requests_total{method="POST",route="/v1/predict",status="200"} 1.0' in text
    assert 'seqloom_requests_total{method="POST",route="/v1/predict",status="422"} 1.0' in text


def test_the_rows_of_a_large_request_keep_their_order_and_their_numbers(site):
    texts = ["mint honey", "kettle teapot saucer spoon", "lemon"] * 40
    one_by_one = {text: ask(site.client, "cups", [text]).json()["results"][0] for text in set(texts)}
    together = ask(site.client, "cups", texts).json()["results"]
    assert [result["prediction"] for result in together] == [one_by_one[text]["prediction"] for text in texts]
    good, bad = {"pulse": [0.1, 0.2], "flow": [1.0, 2.0]}, {"pulse": [0.1, 0.2], "flow": [1.0]}
    answer = ask(site.client, "pulses", [good] * 70 + [bad])
    assert answer.status_code == 422 and "row 71" in answer.json()["error"]


def ask(client, run, rows):
    return client.post("/v1/predict", json={"run": run, "rows": rows})

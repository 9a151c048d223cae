"""A new checkpoint is served while requests go on."""

import asyncio
import shutil

from small_runs import open_site

import seqloom
from seqloom.lab.files import checkpoint


def train_on(run_folder):
    """Write a checkpoint with other weights and a later step, as a training does."""
    run = seqloom.Run.load(run_folder)
    best = run.checkpoint("best")
    weights = {name: tensor + 0.5 for name, tensor in best.tensors("weights").items()}
    facts = {name: value for name, value in best.facts.items() if name not in ("files", "seal")}
    checkpoint.write(run_folder / "best", facts | {"step": 99}, weights=weights)


def copy(folder, tmp_path):
    return shutil.copytree(folder / "pulses", tmp_path / "pulses")


def test_a_new_checkpoint_is_served(folder, tmp_path):
    place, row = copy(folder, tmp_path), {"pulse": [0.1, 0.2], "flow": [1, 2]}
    with (site := open_site([place])).client:
        run = site.runs.by_name["pulses"]
        before = site.client.post("/v1/predict", json={"rows": [row]}).json()
        assert site.client.portal.call(run.look_for_checkpoint) is False
        train_on(place)
        assert site.client.portal.call(run.look_for_checkpoint) is True
        after = site.client.post("/v1/predict", json={"rows": [row]}).json()
    assert (before["step"], after["step"]) == (2, 99)
    assert after["results"] == seqloom.Run.load(place).predict([row])
    assert after["results"] != before["results"]


def test_no_request_is_lost_while_checkpoints_are_loaded(folder, tmp_path):
    place, row = copy(folder, tmp_path), {"pulse": [0.1, 0.2], "flow": [1, 2]}
    with (site := open_site([place])).client:
        run = site.runs.by_name["pulses"]

        async def ask(n):
            await asyncio.sleep(0.005 * n)
            rows = run.check([row])
            return rows.version, await run.predict(rows, False, "client")

        async def go():
            train = asyncio.to_thread(train_on, place)
            asked = [asyncio.create_task(ask(n)) for n in range(60)]
            await train
            loaded = await run.look_for_checkpoint()
            asked += [asyncio.create_task(ask(n)) for n in range(5)]
            return loaded, await asyncio.gather(*asked)

        loaded, answers = site.client.portal.call(go)
    assert loaded
    assert len(answers) == 65
    assert {version.step for version, _ in answers} >= {99}
    assert all(results[0]["prediction"] in ("calm", "moved") for _, results in answers)


def test_a_stream_stays_with_its_checkpoint_until_it_is_reset(folder, tmp_path):
    place, step = copy(folder, tmp_path), {"pulse": 0.1, "flow": 1}
    with (site := open_site([place])).client:
        client, run = site.client, site.runs.by_name["pulses"]
        old, new = (client.post("/v1/stream", json={}).json()["token"] for _ in range(2))
        steps = {"steps": [step]}
        first = client.post(f"/v1/stream/{old}/steps", json=steps).json()
        client.post(f"/v1/stream/{new}/steps", json=steps)
        train_on(place)
        assert client.portal.call(run.look_for_checkpoint)
        client.post(f"/v1/stream/{new}/reset")
        changed = client.post(f"/v1/stream/{new}/steps", json=steps).json()
        assert changed != first
        expected = seqloom.Run.load(place).predict([{"pulse": [0.1], "flow": [1]}])[0]
        assert changed["results"][0]["prediction"] == expected["prediction"]
        second = client.post(f"/v1/stream/{old}/steps", json=steps).json()
        assert second["results"][0]["step"] == 2


def test_a_damaged_checkpoint_leaves_the_old_one_in_place(folder, tmp_path):
    place = copy(folder, tmp_path)
    with (site := open_site([place])).client:
        run = site.runs.by_name["pulses"]
        version = run.version
        train_on(place)
        weights = place / "best" / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        shutil.rmtree(place / "last")
        assert site.client.portal.call(run.look_for_checkpoint) is False
        assert run.version is version
        assert site.client.get("/readyz").status_code == 200

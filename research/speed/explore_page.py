"""Time the explorer's page in Chromium: 5,000 steps x 256 units, moved, zoomed and scrolled.

    python -m research explore_page [--steps 5000] [--units 256] [--page FILE] [--json FILE]

Times on the clock depend on what else the machine does; processor time of the page's main thread does not. A frame
that keeps 60 frames a second has 16.7 ms.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright

import seqloom
from research.record import build_parser, print_row, write_record
from seqloom.models.embed import Embed

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FRAMES = 60
ROUNDS = 3  # the one with the least processor time is kept
SHOW = {"top": "scrollTo(0, 0)", "heat map": "document.querySelector('.heat').scrollIntoView({ block: 'center' })"}
WATCH = """
addEventListener("DOMContentLoaded", () => {
  const look = () => {
    const canvas = document.querySelector(".heat canvas");
    if (canvas && canvas.width > 310) window.heatAt = performance.now();
    else requestAnimationFrame(look);
  };
  look();
});
"""
WAIT = "new Promise((done) => { const look = () => (window.heatAt ? done() : setTimeout(look, 20)); look(); })"
MOVE = """
async ([frames, what]) => {
  const range = document.querySelector(".window input[type=range]");
  const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
  const canvas = document.querySelector(".heat");
  const times = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < frames; i++) {
    if (what === "window") {
      set.call(range, String(20 * (i + 1)));
      range.dispatchEvent(new Event("input", { bubbles: true }));
    } else if (what === "cursor") {
      const box = canvas.getBoundingClientRect();
      const place = { bubbles: true, clientX: box.left + 100 + 8 * i, clientY: box.top + 50 };
      canvas.querySelector("svg").dispatchEvent(new MouseEvent("mousemove", place));
    } else scrollBy(0, 30);
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  return times;
}
"""


def write_long_page(path: Path, steps: int, units: int) -> None:
    """Write the page of an untrained GRU and random words."""
    torch.manual_seed(0)
    model = seqloom.Classify(seqloom.GRU(32, units, batch_first=True), classes=2, embed=Embed(1000, 32))
    words = [random.Random(i).choice(("the", "plot", "is", "not", "wonderful", "however")) for i in range(steps)]
    seqloom.explore(model, torch.randint(4, 1000, (steps,)), steps=words, classes=["bad", "good"]).save(path)


def measure_row(page: Any, metrics: Any, what: str) -> dict[str, Any]:
    """Move something for some frames; return milliseconds per frame, on the clock and of the processor."""
    before = metrics()
    times = page.evaluate(MOVE, [FRAMES, what])
    after = metrics()
    return {
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(sorted(times)[int(0.95 * FRAMES)], 1),
        "cpu_ms": round(1000 * (after["TaskDuration"] - before["TaskDuration"]) / FRAMES, 1),
        "script_ms": round(1000 * (after["ScriptDuration"] - before["ScriptDuration"]) / FRAMES, 1),
    }


def find_memory(chromium: Any) -> int:
    """Return the resident megabytes of the largest process that draws a page (Linux)."""
    listed = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    pids = [one["id"] for one in listed if one["type"] == "renderer"]
    sizes = [Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0] for pid in pids]
    return round(max(map(int, sizes)) / 1000)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--page", type=Path, help="a page to measure; written if it does not exist")
    flags = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        path = flags.page or Path(folder) / "page.html"
        if not path.exists():
            write_long_page(path, flags.steps, flags.units)
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})

        def metrics() -> dict[str, float]:
            return {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}

        page.goto(path.resolve().as_uri())
        page.evaluate(WAIT)
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        opened = {"first_paint_ms": page.evaluate(paint), "heat_map_ms": page.evaluate("window.heatAt")}
        rows.append({"what": "open", "page_mb": round(path.stat().st_size / 1e6, 1)} | opened)
        print_row(rows[-1])
        for what in ("window", "cursor", "scroll"):
            for place in ("top", "heat map"):
                page.evaluate(SHOW[place])
                rounds = [measure_row(page, metrics, what) for _ in range(1 + ROUNDS)][1:]  # the first one warms up
                rows.append({"what": what, "at": place} | min(rounds, key=lambda one: one["cpu_ms"]))
                print_row(rows[-1])
        rows.append(
            {"what": "memory", "heap_mb": round(metrics()["JSHeapUsedSize"] / 1e6), "page_mb": find_memory(chromium)}
        )
        print_row(rows[-1])
        chromium.close()
    write_record(flags.json, rows=rows, steps=flags.steps, units=flags.units)

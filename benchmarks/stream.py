"""Microseconds for one token of a stream, on one thread: python benchmarks/stream.py [--hidden 128] [--json]."""

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from timeit import timeit

import torch

import seqloom
from seqloom.tools import doctor

TURNS, ROUNDS, STEPS = 10, 200, 40  # in turns and in short rounds, so that some are left alone by everything else


def streams(D: int, H: int) -> dict[str, Callable[[], object]]:
    """A function for each layer that takes one token, each from the state after the first."""
    x, steps = torch.randn(1, D), {}
    for cell in ("rnn", "gru", "lstm", "attn_rnn", "ln_gru", "ln_lstm"):
        layer = seqloom.Recurrent(cell, D, H).eval()
        steps[f"seqloom {cell}.step"] = lambda step=layer.step, now=layer.step(x)[1]: step(x, now)
    gru, cell = torch.nn.GRU(D, H).eval(), torch.nn.GRUCell(D, H).eval()
    steps["torch.nn.GRU, T=1"] = lambda now=gru(x.unsqueeze(0))[1]: gru(x.unsqueeze(0), now)
    steps["torch.nn.GRUCell"] = lambda now=cell(x): cell(x, now)
    return steps


def timed(step: Callable[[], object]) -> float:
    return timeit(step, number=STEPS) / STEPS * 1e6


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--hidden", type=int, default=128)
    flags.add_argument("--json", action="store_true")
    given = flags.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows, about = [], {"command": " ".join(["python", *sys.argv]), "hidden": given.hidden}
    with torch.inference_mode():
        for D in (given.hidden, given.hidden // 2):
            best = {}
            for name, step in list(streams(D, given.hidden).items()) * TURNS:
                best[name] = min(best.get(name, 1e9), *(timed(step) for _ in range(ROUNDS)))
            rows += [{"layer": name, "input": D, "us_per_token": round(us, 2)} for name, us in best.items()]
    if given.json:
        about |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": doctor.versions()}
        about |= {"hardware": doctor.hardware() | {"denormals": "flushed"}, "rows": rows}
        print(json.dumps(about, indent=1))
    else:
        lines = [f"{r['us_per_token']:8.2f} us  {r['layer']}, {r['input']} -> {given.hidden}" for r in rows]
        print("one row, float32, inference mode, one thread, denormals flushed, best round", *lines, sep="\n")


if __name__ == "__main__":
    main()

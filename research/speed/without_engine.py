"""Measure what a layer costs without the CPU engine, and under an autocast that the processor emulates.

    python -m research without_engine [--json results.json]

Both passes on one thread, T=64. Prints the time without the engine over the time with it, and of AttnRNN (128 units,
32 rows) the time under emulated bfloat16 autocast over that in float32. The fastest of five rounds counts.
"""

import contextlib

import torch

import seqloom
from research.record import build_parser, time_best, write_record
from seqloom.core import precision
from seqloom.kernels.cpu import engine

LAYERS = {"gru": seqloom.GRU, "attn_rnn": seqloom.AttnRNN, "ln_gru": seqloom.LNGRU, "ln_lstm": seqloom.LNLSTM}
SIZES = ((64, 1), (128, 32))  # units, rows
STEPS = 64


def time_passes(layer, x, context=contextlib.nullcontext):
    """Return the seconds of one forward and backward pass."""

    def run():
        with context():
            layer(x)[0].float().sum().backward()

    return time_best(run)


@contextlib.contextmanager
def replace(module, name, value):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def main():
    args = build_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    rows = {}
    for name, kind in LAYERS.items():
        for hidden, batch in SIZES:
            layer, x = kind(hidden, hidden), torch.randn(STEPS, batch, hidden)
            fast = time_passes(layer, x)
            with replace(engine, "load_library", lambda: "left out"):
                rows[f"{name} H={hidden} B={batch}"] = round(time_passes(layer, x) / fast, 1)
    layer, x = seqloom.AttnRNN(128, 128), torch.randn(STEPS, 32, 128)

    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    plain = time_passes(layer, x, autocast)  # stays in float32 where the processor has no 16-bit products
    with replace(precision, "has_fast_products", lambda *_: True):
        rows["attn_rnn H=128 B=32, autocast emulated over float32"] = round(time_passes(layer, x, autocast) / plain, 1)
    for name, ratio in rows.items():
        print(f"{name:<55} {ratio:6.1f}")
    write_record(args.json, seed=0, ratios=rows)

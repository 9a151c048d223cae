"""Time the first call of a compiled cell, both passes, in fresh processes with an empty and a filled cache.

python -m research first_call [--cells leaky,lem] [--device cuda] [--type float32] [--json FILE]

Seconds of the wall clock and of the processor after importing torch and seqloom, and after a first call of
torch.nn.GRU on the device.
"""

import os
import subprocess
import tempfile

import torch

from research.record import PROCESSOR, Stopwatch, build_parser, print_row, start_again, write_record

SIZE, BATCH, LENGTH = 128, 16, 64


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--cells", default="leaky,lem,slstm,ln_lstm", help="names, separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--type", default="float32")
    parser.add_argument("--one", action="store_true", help="time the first cell in this process, and print seconds")
    args = parser.parse_args()
    if args.one:
        print(*time_first(args.cells, args.device, getattr(torch, args.type)))
        return
    rows = []
    for cell in args.cells.split(","):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty", "filled"):
                words = [
                    *start_again(),
                    "--one",
                    "--cells",
                    cell,
                    "--device",
                    args.device,
                    "--type",
                    args.type,
                ]
                done = subprocess.run(
                    words, env=os.environ | {"SEQLOOM_CACHE": cache}, check=True, stdout=subprocess.PIPE, text=True
                )
                seconds, processor = (round(float(word), 3) for word in done.stdout.split())
                rows.append({"cell": cell, "cache": state, "seconds": seconds, "processor_seconds": processor})
                print_row(rows[-1])
    settings = {"device": args.device, "type": args.type, "hidden": SIZE, "batch": BATCH, "length": LENGTH}
    write_record(args.json, settings=settings, rows=rows)


def time_first(name: str, device: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return the seconds of the first call: of the wall clock, and of the processor."""
    import seqloom
    from research.speed.published_cells import CELLS

    x = torch.randn(LENGTH, BATCH, SIZE, device=device, dtype=dtype)
    torch.nn.GRU(SIZE, SIZE, device=device, dtype=dtype)(x)[0].sum().backward()
    layer = seqloom.Recurrent(CELLS.get(name, name), SIZE, SIZE, device=device, dtype=dtype)
    if device == "cuda":
        torch.cuda.synchronize()
    start, used = Stopwatch(), Stopwatch(PROCESSOR)
    layer(x)[0].sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return start.seconds, used.seconds

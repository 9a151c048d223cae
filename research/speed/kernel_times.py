"""Time the CUDA kernels of AttnRNN and GRU with the profiler: python -m research kernel_times [--json FILE].

Microseconds per step of the forward and the reverse kernel of one layer, to compare two versions of a kernel.
"""

import torch
from torch.profiler import ProfilerActivity, profile

import seqloom
from research.record import build_parser, print_row, write_record

LENGTH = 512
# cell, kernel, type: hidden sizes and rows
SHAPES = {
    ("attn_rnn", "cluster", "bfloat16"): [
        *((256, 16), (256, 64), (256, 256), (512, 1), (512, 16), (512, 64), (512, 256), (768, 16)),
    ],
    ("attn_rnn", "grid", "bfloat16"): [
        *((512, 1), (512, 16), (512, 32), (512, 64), (512, 128)),
        *((768, 16), (768, 64), (1024, 1), (1024, 16), (1024, 32), (1024, 64)),
    ],
    ("attn_rnn", "cluster", "float32"): [
        *((192, 16), (256, 1), (256, 16), (256, 64), (256, 256), (512, 1), (512, 16), (512, 64)),
    ],
    ("attn_rnn", "grid", "float32"): [(512, 1), (512, 16), (512, 64), (1024, 1), (1024, 16), (1024, 32), (1024, 64)],
    ("attn_rnn", "cluster", "tf32"): [(256, 16), (256, 64), (512, 1), (512, 16), (512, 64)],
    ("attn_rnn", "grid", "tf32"): [(512, 16), (512, 64), (1024, 1), (1024, 16), (1024, 64)],
    **{
        ("gru", tier, "bfloat16"): [
            *((256, 16), (256, 64), (256, 256), (384, 16), (512, 1), (512, 16), (512, 64), (512, 256)),
            *((768, 16), (1024, 1), (1024, 16), (1024, 64), (1024, 128), (1024, 256)),
        ]
        for tier in ("cuda", "grid")
    },
    **{
        (cell, tier, "bfloat16"): [(256, 16), (512, 16), (512, 64), (1024, 16), (1024, 64)]
        for cell in ("ln_gru", "lstm")
        for tier in ("cuda", "grid")
    },
}


def main() -> None:
    parser = build_parser(__doc__)
    args = parser.parse_args()
    rows = [measure_row(*kind, *shape) for kind, shapes in SHAPES.items() for shape in shapes]
    write_record(args.json, length=LENGTH, rows=rows)


def measure_row(cell: str, tier: str, dtype: str, hidden: int, batch: int) -> dict[str, object]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    numbers = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    how = {"batch_first": True, "kernel": tier, "device": "cuda", "dtype": numbers}
    layer = seqloom.Recurrent(cell, hidden, hidden, **how)
    x = torch.randn(batch, LENGTH, hidden, device="cuda", dtype=numbers, requires_grad=True)
    layer(x)[0].sum().backward()  # compiled
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(2):
            layer(x)[0].sum().backward()
        torch.cuda.synchronize()
    row: dict[str, object] = {"cell": cell, "kernel": tier, "dtype": dtype, "hidden": hidden, "batch": batch}
    for name in ("forward", "reverse"):
        spent = sum(
            e.self_device_time_total
            for e in seen.key_averages()
            if f"cluster_{name}" in e.key or f"gated_{name}" in e.key
        )
        row[f"{name}_us_per_step"] = round(spent / 2 / LENGTH, 3)
    print_row(row)
    return row

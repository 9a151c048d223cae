"""Run every CUDA kernel, forward and backward, on small sequences under NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m research sanitize [--only cluster]
    compute-sanitizer --tool racecheck --error-exitcode 1 python -m research sanitize

Sizes are the smallest at which units cross blocks, heads cross warps, and rows come in two teams.
"""

import torch

import seqloom
from research.record import build_parser

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# cell, kernel, type, hidden size, rows, and slots
CASES = [
    ("attn_rnn", "attn_rnn_cuda", BF16, 48, 9),
    ("attn_rnn", "attn_rnn_cuda", FP16, 128, 9),
    ("attn_rnn", "attn_rnn_cluster", BF16, 80, 9),
    ("attn_rnn", "attn_rnn_cluster", FP16, 512, 70),
    ("attn_rnn", "attn_rnn_cluster", FP32, 80, 9),
    ("attn_rnn", "attn_rnn_grid", BF16, 160, 9),
    ("attn_rnn", "attn_rnn_grid", BF16, 1024, 40),
    ("attn_rnn", "attn_rnn_grid", FP32, 160, 9),
    ("attn_rnn", "attn_rnn_row", FP32, 64, 5),
    ("attn_rnn", "attn_rnn_row", FP32, 128, 140),
    ("attn_rnn", "attn_rnn_slots", BF16, 48, 5, 3),
    ("attn_rnn", "attn_rnn_slots", FP16, 128, 5, 4),
    ("attn_rnn", "attn_rnn_graph", FP32, 40, 9),
    *((cell, f"{cell}_grid", BF16, 80, 9) for cell in ("gru", "ln_gru", "lstm", "ln_lstm")),
    *((cell, f"{cell}_cuda", dtype, 80, 9) for cell in ("gru", "ln_gru", "lstm", "ln_lstm") for dtype in (BF16, FP16)),
]


def main() -> None:
    flags = build_parser(__doc__, record=False)
    flags.add_argument("--only", default="", help="a part of a kernel's name")
    flags.add_argument("--steps", type=int, default=3)
    args = flags.parse_args()
    for cell, kernel, dtype, H, B, *slots in CASES:
        if args.only not in kernel:
            continue
        torch.manual_seed(0)
        noise = seqloom.Dropouts(recurrent=0.2, zoneout=0.2)
        settings = {"batch_first": True, "kernel": kernel, "dropouts": noise, "device": "cuda", "dtype": dtype}
        layer = seqloom.Recurrent(cell, H, H, **settings, **dict(zip(("slots",), slots, strict=False)))
        x = torch.randn(B, args.steps, H, device="cuda", dtype=dtype, requires_grad=True)
        y, _ = layer(x, lengths=torch.randint(0, args.steps + 1, (B,), device="cuda"))
        y.square().sum().backward()
        torch.cuda.synchronize()
        print(f"{kernel} {dtype} H={H} B={B}: done", flush=True)

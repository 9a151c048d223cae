"""Choose kernels and their sizes: every threshold, with the measurement or the reason behind it.

Times are microseconds per step, forward + backward, on one H200 unless stated otherwise; "LOG" is research/LOG.md.
Sizes that follow from the source of a kernel (such as its layout of shared memory) are defined beside that kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from seqloom.core.precision import allows_tf32

# --- Kernels of this package for NVIDIA GPUs ---------------------------------------------------------------------

# hidden_size must be a multiple of this: weights are divided into the 16 x 16 tiles of mma.m16n8k16.
HIDDEN_MULTIPLE = 16

# Shared memory that one block may use on Hopper, in bytes (CUDA programming guide, compute capability 9.0).
SHARED_BYTES = 227 << 10

# Blocks of the kernel that sums gradients of biases: four on each of the 132 multiprocessors of an H100 or H200.
SUM_BLOCKS = 528

# Recorded CUDA graphs of different shapes that are kept; each holds the memory of its chunk.
GRAPHS_KEPT = 16
# Passes of one form before their launches are recorded: recording costs the time that about six passes
# save (4 ms, AttnRNN H=64 B=1), which shapes that occur once or twice never recover.
RUNS_BEFORE_RECORDING = 3
# Rows and steps of a covering shape are multiples of the first, or of an eighth of the next power of two: few shapes,
# each of which soon is recorded. Longer or larger inputs keep the GPU busy: padding costs more (docs/decisions/0029).
COVERING_STEP, COVERING_MOST = 16, 256
# Shares of a GPU's memory, as divisors: recorded passes of the gated kernels keep their arguments, results and
# temporaries. A pass that needs more than 1/256 of the memory (0.5 GB of an H200), or a forward pass that needs more
# than 1/1,024, keeps the GPU busy longer than the host; all passes together use at most 1/16.
RECORDED_PASS_SHARE, RECORDED_FORWARD_SHARE, RECORDED_SHARE = 256, 1024, 16
# A recorded pass may be discarded for another one if it has not run while all passes together ran this many times their
# number. LSTM 2 x 400 in two directions, float32, 12 shapes in turns: their passes need 4 GB; with room for 2.2 GB, and
# the oldest discarded, half of them were recorded in every step (8.7 ms, torch 6.4).
RECORDED_IDLE = 16

# --- attn_rnn_cuda and attn_rnn_slots: 8 rows or slots per block ---

# Largest hidden size: the four weights of more units do not fit into the registers of a block.
BLOCK_LARGEST_HIDDEN = 128
# Maximum number of slots: the 8 columns of a product.
MOST_SLOTS = 8
# The backward pass divides the sequence into this many chunks: more cost launches, a single one would cost memory (LOG,
# second and third run of the GPU kernels: 4 to 16 chunks took 4 to 16 rounds of seven launches; two keep the peak below
# nn.GRU's).
BLOCK_CHUNKS = 2
# Elements in one of the eleven planes of a chunk: fewer are not worth the launches, more are not worth the memory.
BLOCK_CHUNK_NUMBERS = (1 << 19, 1 << 24)

# --- attn_rnn_row: one row per block, float32 ---

ROW_LARGEST_HIDDEN = 128  # registers and shared memory hold no more
# By largest number of units: how many of a thread's quads of each weight lie in shared memory. With fewer, registers
# spill.
ROW_QUADS_IN_SHARED = {"forward": {96: 0, 112: 5, 128: 4}, "reverse": {96: 0, 128: 5}}

# Above this many units a row has two blocks, if there are enough multiprocessors: float32 H=128 B=1 0.84 + 0.88 instead
# of 1.06 + 1.23.
ROW_PAIR_HIDDEN = 96

# --- attn_rnn_cluster: the units are divided over a cluster of blocks (also the gated kernels) ---

CLUSTER_SIZES = (1, 2, 4, 8, 16)  # blocks; 16 is Hopper's maximum
# Share of a GPU that clusters can use: blocks of a cluster must share a GPC, so some multiprocessors remain idle.
CLUSTER_FILL = 0.9
# Largest hidden size by bytes per element: registers and shared memory of 16 blocks hold no more.
CLUSTER_LARGEST_HIDDEN = {2: 768, 4: 512}
# By rows of the batch, then by tiles of 16 units per block: warps per tile.
CLUSTER_SPLITS = {8: {1: 8, 2: 4, 3: 4, 4: 2}, 16: {1: 16, 2: 8, 4: 4}}
# Registers per thread for weights, by bytes per element and warps: the rest of its share of 64 K is for the step.
CLUSTER_REGISTERS = {2: {8: 128, 12: 96, 16: 64}, 4: {8: 128, 12: 96, 16: 48}}
# How many of the four weights may lie in shared memory.
CLUSTER_WEIGHTS_IN_SHARED = 2
# The backward pass of row, cluster and grid: recomputed bytes per chunk, and at most 8 chunks. A chunk costs the host a
# dozen launches: H=256 B=16 takes 7.4 for both passes in four chunks, 4.6 in one (LOG, kernels, third look). Saving
# less memory than this does not matter compared with what a layer holds anyway.
CHUNK_BYTES, MOST_CHUNKS = 64 << 20, 8

# --- attn_rnn_grid: the units are divided over blocks anywhere on the GPU ---

GRID_LARGEST_HIDDEN = 1024  # 32 blocks of 32 units, or 64 of 16 in float32
# Units of a block, by bytes of a number: what its registers and shared memory hold. The first if all rows then run at
# once: fewer units, fewer products. H=512 B=64, forward / both passes: float32 16 units 9.5 / 27.3, 32: 6.9 / 23.4.
GRID_UNITS = {2: (32,), 4: (16, 32)}
# Groups of more blocks than this run the forward in fewer groups of more rows: H=1024 B=16 two groups of 8 rows 4.38,
# four of 4 rows 5.10; at H=512 fewer rows are faster, 3.35 against 3.93.
GRID_FILL_BLOCKS = 16
# Up to this many sources (64 bytes of a row), a warp takes from four of them in one round of messages, else from eight
# in two: float32 H=512 B=16 5.80 + 5.63 in one round, 8.24 + 6.13 in two.
GRID_ONE_ROUND_SOURCES = 32
# Rounds, bytes of a number, units of a block, rows: of the four weights in shared memory, and tiles of one more. What
# registers hold; there is no room for what is not listed.
GRID_WEIGHTS_IN_SHARED = {
    (1, 2, 32, 8): (2, 2),
    (1, 2, 32, 16): (2, 6),
    (1, 4, 16, 8): (0, 0),
    (1, 4, 16, 16): (1, 0),
    (1, 4, 32, 8): (2, 8),
    (1, 4, 32, 16): (2, 4),
    (2, 4, 16, 8): (2, 8),
    (2, 4, 16, 16): (2, 8),
}
# The same if products may use tf32, which leaves more registers: rounds, units per block, rows, pass.
GRID_WEIGHTS_IN_SHARED_TF32 = {
    (1, 32, 8, "forward"): (2, 0),
    (1, 32, 16, "forward"): (2, 0),
    (1, 32, 8, "reverse"): (2, 2),
    (1, 32, 16, "reverse"): (2, 2),
    (2, 16, 16, "forward"): (2, 0),
    (2, 16, 8, "reverse"): (2, 4),
    (2, 16, 16, "reverse"): (2, 4),
}

# --- attn_rnn_tiles: products of tiles of many rows ---

TILES_LARGEST_HIDDEN = 1024
# Rows of a group and units of a block, the first whose groups all run at once. Smaller tiles fetch more in relation to
# what they multiply, but more of them run.
TILES_DIVISIONS = ((32, 16), (32, 32), (64, 32))
# The same on Hopper, by bytes of a number, each up to a number of units; True: products by wgmma, two blocks to the
# same units. Forward / both passes, wgmma and mma: bf16 H=1024 B=128 13.3 / 33.9 and 15.1 / 37.9, B=256 16.1 / 44.2 and
# 19.4 / 51.5, but H=512 B=256 10.9 / 28.3 and 9.6 / 25.8; float32 H=512 B=128 13.4 / 36.3 and 11.9 / 33.5, B=256 15.0 /
# 44.7 and 16.4 / 47.3, H=1024 B=64 17.5 / 48.5 and 18.7 / 50.7, B=256 25.0 / 92.7 and 37.9 / 116; tf32 H=512 B=256 14.0
# / 38.2 and 15.6 / 40.7, H=1024 B=64 16.5 / 41.5 and 19.9 / 47.6, B=256 22.9 / 73.5 and 35.2 / 98.2 (LOG, tiles by
# wgmma). 513 to 768 units were not timed.
TILES_HOPPER_DIVISIONS: dict[int, tuple[tuple[int, tuple[tuple[int, int, bool], ...]], ...]] = {
    2: (
        (768, ((32, 16, False), (32, 32, False), (64, 64, True), (64, 32, False))),
        (1024, ((32, 16, False), (64, 32, True), (64, 64, True), (64, 32, False))),
    ),
    4: (
        (768, ((32, 16, False), (64, 32, True), (64, 64, True), (64, 32, False))),
        (1024, ((64, 16, True), (64, 32, True), (64, 64, True), (64, 32, False))),
    ),
}
# Bytes of messages and weights in flight for wgmma if not all weights stay resident, if there is room.
TILES_AHEAD = 96 << 10
# Minimum chunks of messages and of weights in flight, in units of 128 bytes per row, by planes; and maximum chunks of
# weights: as many as hide the latency of the cache. The rest of shared memory holds resident chunks of weights.
TILES_CHUNK = (
    256  # bytes of a row. 128: bf16 H=1024 B=256 30.7 / 75.4 instead of 22.2 / 57.7, float32 46 / 136 and 40 / 125
)
TILES_STAGES, TILES_WEIGHT_STAGES, TILES_MOST_STAGES = {1: 8, 2: 6}, {1: 6, 2: 6}, 8

# --- attn_rnn_graph: products by torch ---

# Steps of a recorded chunk: a graph then depends on the batch, not on the length (docs/decisions/0007).
GRAPH_STEPS = 32

# --- Compiled cells on GPUs: one kernel for all steps, or a graph with products by cuBLAS ---
COMPILED_BLOCKS = 32  # blocks over which a batch is spread before a block gets more rows
COMPILED_MOST_ROWS = 8  # rows per block
COMPILED_WEIGHTS = 1 << 18  # elements of weights that a block multiplies with at every step; above this, cuBLAS is used
COMPILED_TRAFFIC = 64 << 20  # bytes that all blocks read at every step
# Units and rows for which this was measured to be faster than cuDNN in float32: both passes from the first number of
# units on, the forward pass from the second.
COMPILED_OWN = {"gru": (129, 192, 256)}
COMPILED_OWN_ROWS = 256
# Shortest sequences for it, both passes and the forward pass alone: its launch takes the host longer than cuDNN's. GRU
# H=256 B=32, us: T=16 941 / 2407 (forward / both passes), cuDNN 526 / 1693; T=64 1062 / 1838, cuDNN 988 / 2646.
COMPILED_OWN_STEPS = (64, 128)

# --- Which kernel runs on a GPU ---


class Rule(NamedTuple):
    """Sizes at which some kernels were measured to be the fastest; ranges include both ends."""

    kernels: tuple[str, ...]  # backends, the fastest first
    cells: tuple[str, ...]
    types: tuple[str, ...]  # "tf32" is float32 where torch's flags allow it for products
    hidden: tuple[int, int]
    rows: tuple[int, int]
    trains: bool | None = None  # with gradients, without, or None for either
    steps: tuple[int, int] = (1, 1 << 40)
    layers: int = 1  # at least


NO_LIMIT = 1 << 40
_ALL, _LN, _ATTN = ("gru", "lstm", "rnn"), ("ln_gru", "ln_lstm"), ("attn_rnn",)
_FP32, _16_BITS, _ANY = ("float32", "tf32"), ("bfloat16", "float16"), (1, NO_LIMIT)
# Measured with 512 steps, 64 to 1,024 units and 1, 16, 64 and 256 rows (LOG, GRU and LSTM in float32 on GPUs); between
# two sizes the border is in the middle. "tf32" is float32 where torch's flags allow it for products. cuDNN has
# persistent kernels for up to 128 units in float16 and float32, and for LSTMs of 8 to 48 rows in float16. Where rows
# and units are many, its products are large, and in float32 it uses tf32 by torch's default where ours are exact.
# float16 with recorded passes, cuDNN and ours, both passes: GRU H=64 B=1, 16, 64 2.87, 3.09, 3.88 and 1.85, 1.79, 2.14;
# LSTM 3.11, 3.08, 3.51 and 1.88, 1.97, 2.33; H=128 GRU 2.45, 3.83 and 2.08, 2.47, LSTM 4.27, 4.05, 4.67 and 3.06, 3.50,
# 3.89 (LOG, recorded passes of gated cells). RNN was not measured. float32 in halves of fp16, cuDNN and ours, forward /
# both passes: GRU H=512 B=256 15.2 / 51.9 and 9.6 / 28.9, LSTM 22.4 / 60.8 (as a graph 12.6 / 39.6) and 16.5 / 41.8,
# H=1024 B=64 19.5 / 50.9 and 13.2 / 39.3 (LOG, what surrounds a recurrence).
#
# Short sequences, whole eager calls, in which the host counts: torch's time over ours. One step of 128 to 1,024 units
# and 4 to 256 rows in bf16 2.0 to 2.7 with gradients and 3.2 to 5.1 without, in float32 1.3 to 2.3 and 1.4 to 2.7; 20
# steps 1.4 to 3.3 and 1.4 to 7.7, 1.5 to 3.3 and 1.1 to 7.1. In float32 cuDNN takes over with 128 units from 12 steps
# on (10 steps 1.2 to 1.8, 20 0.8 to 1.3) and with gradients from 80 on (64 steps 1.0 to 1.7, 98 0.8 to 1.1), with 64
# units from 32 on (40 steps 0.9 to 1.9, where cuDNN behind our call has 1.2 to 1.4) and with gradients later than 98
# (1.4 to 1.8). An LSTM of 128 units with 1,024 rows in 16 bits: 30 steps 1.5, 100 steps 1.0, 4,000 rows 2.4 (LOG, short
# sequences). These times repeat one shape: passes are recorded.
#
# cuDNN runs the layers of a stack beside each other. LSTM H=1024 B=64 in float32, ms of both passes, cuDNN and ours:
# one layer of 128 steps 7.3 / 5.2, two 9.7 / 10.3, three 12.7 / 15.3, three of 35 steps 5.9 / 5.4; three with 16 rows
# 13.2 / 5.3, three of 768 units 18.9 / 13.3 (LOG, stacks that cuDNN runs better).
CUDNN_FASTER = (
    Rule(("aten",), ("rnn",), ("float16",), (1, 128), (1, 7), False, (32, NO_LIMIT)),
    Rule(("aten",), ("rnn",), ("float16",), (1, 96), (1, 96), True, (32, NO_LIMIT)),
    Rule(("aten",), ("rnn",), ("float16",), (97, 128), (1, 32), True, (32, NO_LIMIT)),
    Rule(("aten",), ("lstm",), ("float16",), (1, 96), (1, 7), False, (32, NO_LIMIT)),
    Rule(("aten",), ("lstm",), ("float16",), (384, 1024), (8, 48), False, (32, NO_LIMIT)),
    Rule(("aten",), ("lstm",), _16_BITS, (97, 128), (769, 2048), True, (64, NO_LIMIT)),
    Rule(("aten",), _ALL, _16_BITS, (513, 1024), (129, NO_LIMIT), None, (32, NO_LIMIT)),
    Rule(("aten",), _ALL, _FP32, (1, 96), _ANY, False, (32, NO_LIMIT)),
    Rule(("aten",), _ALL, _FP32, (97, 128), _ANY, False, (12, NO_LIMIT)),
    Rule(("aten",), ("gru", "rnn"), _FP32, (1, 96), (1, 128), True, (128, NO_LIMIT)),
    Rule(("aten",), ("gru", "rnn"), _FP32, (97, 128), (1, 128), True, (80, NO_LIMIT)),
    Rule(("aten",), ("lstm",), _FP32, (1, 96), _ANY, True, (128, NO_LIMIT)),
    Rule(("aten",), ("lstm",), _FP32, (97, 128), _ANY, True, (80, NO_LIMIT)),
    Rule(("aten",), ("lstm",), ("float32",), (385, 512), (193, NO_LIMIT), False),
    Rule(("aten",), _ALL, ("float32",), (513, 1024), (97, NO_LIMIT)),
    Rule(("aten",), _ALL, ("tf32",), (769, 1024), (97, NO_LIMIT)),
    Rule(("aten",), ("lstm",), ("float32",), (897, 1024), (49, NO_LIMIT), True, (64, NO_LIMIT), layers=2),
)
# Longer sequences end in cuDNN's "not supported" (float32, torch 2.13 and cuDNN 9).
CUDNN_MOST_STEPS = 65_535
# Up to this hidden size, by bytes of a number, the gated cells run on clusters, above it on the grid: gru H=512 B=16
# grid 1.32 + 1.60, cluster 1.28 + 2.11; H=256 B=16 1.22 + 1.49 and 0.70 + 1.36 (LOG, kernels written without a GPU).
# float32: H=512 B=16 grid 6.1 / 4.8 times as fast as nn.GRU, cluster 4.2 / 3.4; H=256 5.7 / 6.9 and 5.5 / 6.0.
GATED_CLUSTER_HIDDEN = {2: 448, 4: 320}
# Sizes up to GATED_CLUSTER_HIDDEN at which the grid was measured to be faster all the same, forward / both passes, grid
# and cluster: H=256 GRU float32 B=16 2.0 / 4.6 and 2.5 / 6.3, B=64 2.4 / 6.3 and 2.6 / 7.1, B=256 4.7 / 14.4 and 7.9 /
# -, LSTM 2.5 / 5.9 and 3.3 / 8.0, 2.7 / 7.9 and 3.4 / 9.2, 7.9 / 20.9 and 11.3 / - (LOG, float32 in halves); tf32 B=256
# GRU 4.3 / 11.4 and 3.6 / 13.7, LSTM 5.0 / 14.5 and 7.3 / 18.5 (LOG, 32 units to a block).
_GATED = (
    Rule(("grid", "cuda"), (*_ALL, *_LN), _16_BITS, (GATED_CLUSTER_HIDDEN[2] + 1, NO_LIMIT), _ANY),
    Rule(("grid", "cuda"), _ALL, _FP32, (GATED_CLUSTER_HIDDEN[4] + 1, NO_LIMIT), _ANY),
    Rule(("grid", "cuda"), _ALL, ("float32",), (193, 320), _ANY),
    Rule(("grid", "cuda"), ("gru", "rnn"), ("tf32",), (193, 320), (193, NO_LIMIT), trains=True),
    Rule(("grid", "cuda"), ("lstm",), ("tf32",), (193, 320), (193, NO_LIMIT)),
    Rule(("cuda",), (*_ALL, *_LN), (*_16_BITS, *_FP32), _ANY, _ANY),
)
# Where attn_rnn_tiles was measured to be faster than every other kernel of AttnRNN, with 512 steps; forward / both
# passes, tiles and the other one: bf16 H=512 B=256 9.6 / 25.8 and 12.1 / 37.2, H=1024 B=64 12.2 / 29.6 and 6.9 / 20.2,
# B=128 13.3 / 33.9 and 13.7 / 38.8, B=256 16.1 / 44.2 and 26.5 / 70.8; float32 H=512 B=128 11.9 / 33.5 and 9.5 / 28.4,
# B=256 15.0 / 44.7 and 18.7 / 57.1, H=1024 B=64 17.5 / 48.5 and 26.1 / 69.2, B=256 25.0 / 92.7 and 111 / 308; tf32
# H=512 B=256 14.0 / 38.2 and 16.7 / 42.9, H=1024 B=64 16.5 / 41.5 and 21.7 / 52.7, B=256 22.9 / 73.5 and 38.2 / 115
# (LOG, products of tiles; tiles by wgmma).
#
# attn_rnn_row takes up to 1,024 rows of 64 units, half as many above: a multiprocessor runs two such rows at a time.
# Where clusters overtake it was extrapolated from times with 256 rows. In 16 bits: bf16 H=64 B=16 forward 0.61,
# attn_rnn_cuda, whose blocks have 8 rows, 0.72; B=64 0.64 and 0.75; not measured above.
#
# attn_rnn_grid and attn_rnn_cluster, 16 bits: H=768 B=16 grid 4.8-5.2 + 4.9, cluster 4.8 + 7.0. float32 without tf32:
# H=512 B=16 grid 5.80 + 5.63, cluster 7.07 + 7.62 (LOG, kernels written without a GPU). H=512 B=64 grid 3.8 + 5.2,
# cluster 4.8 + 7.1; up to 32 rows the cluster has 3.4 + 3.7 against 3.3 + 4.3. In float32 with 32 units to a block:
# H=256, forward / both passes, grid and cluster: float32 B=128 5.8 / 17.9 and 7.4 / 21.7, B=256 10.5 / 31.0 and 14.7 /
# 41.3; tf32 B=256 7.7 / 20.1 and 10.1 / 26.8, B=64 4.0 / 10.5 and 3.1 / 8.5. Above 128 rows of more than 640 units the
# products of attn_rnn_graph are large: H=768 B=256 grid 39 / 90, graph 24 / 59; B=64 grid 9.9 / 23, graph 20 / 46 (LOG,
# every size in bf16).
_ATTN_RNN = (
    Rule(("row",), _ATTN, _16_BITS, (1, ROW_LARGEST_HIDDEN), (1, 64)),
    Rule(("cuda",), _ATTN, _16_BITS, (1, BLOCK_LARGEST_HIDDEN), (65, NO_LIMIT)),
    Rule(("row",), _ATTN, _FP32, (1, 64), (1, 1024)),
    Rule(("row",), _ATTN, _FP32, (65, ROW_LARGEST_HIDDEN), (1, 512)),
    Rule(("tiles",), _ATTN, _16_BITS, (449, 1024), (193, NO_LIMIT)),
    Rule(("tiles",), _ATTN, _16_BITS, (769, 1024), (128, 192)),
    Rule(("tiles",), _ATTN, _FP32, (449, 512), (193, NO_LIMIT)),
    Rule(("tiles",), _ATTN, _FP32, (769, 1024), (33, NO_LIMIT)),
    Rule(("grid", "cluster"), _ATTN, _FP32, (193, 512), (96, NO_LIMIT)),
    Rule(("grid", "cluster"), _ATTN, ("float32",), (321, NO_LIMIT), (1, 128)),
    Rule(("grid", "cluster"), _ATTN, (*_16_BITS, "tf32"), (641, NO_LIMIT), (1, 128)),
    Rule(("grid", "cluster"), _ATTN, (*_16_BITS, *_FP32), (449, NO_LIMIT), (57, 128)),
    Rule(("cluster", "grid"), _ATTN, (*_16_BITS, *_FP32), _ANY, (1, 128)),
    Rule(("cluster",), _ATTN, (*_16_BITS, *_FP32), (1, 640), (129, NO_LIMIT)),
)
GPU_RULES = (*_GATED, *_ATTN_RNN)


def rank_kernels(
    cell: str, dtype: str, hidden: int, rows: int, steps: int, trains: bool, is_plain: bool = True, layers: int = 1
) -> tuple[str, ...]:
    """Return the backends that `kernel="auto"` should try for a cell on a GPU, the fastest first.

    Backends that are not listed are slower than those that follow in `registry.py`, such as cuDNN or a graph. A cell
    without a rule has none.

    Args:
        cell: The name of the cell.
        dtype: The type that the kernel computes in: "bfloat16", "float16", "float32", or "tf32" (`name_type`).
        hidden: Units.
        rows: Rows of the batch.
        steps: Steps.
        trains: Whether gradients may be wanted.
        is_plain: Whether the call has neither resets nor recurrent dropout, which cuDNN does not support.
        layers: Layers that may run as one stack.
    """
    rules = (*CUDNN_FASTER, *GPU_RULES) if is_plain and steps <= CUDNN_MOST_STEPS else GPU_RULES
    kernels = (
        kernel
        for rule in rules
        if cell in rule.cells
        and dtype in rule.types
        and rule.hidden[0] <= hidden <= rule.hidden[1]
        and rule.rows[0] <= rows <= rule.rows[1]
        and rule.steps[0] <= steps <= rule.steps[1]
        and rule.trains in (None, trains)
        and rule.layers <= layers
        for kernel in rule.kernels
    )
    return tuple(dict.fromkeys(kernels))


def name_type(dtype: torch.dtype) -> str:
    """Return the name of a type in the rules, under torch's current flags."""
    return "tf32" if dtype == torch.float32 and allows_tf32() else str(dtype).removeprefix("torch.")


# --- Gradients of weights: sums over rows in split-K slices, then over the slices ---

# Rows per slice. A longer sum in float32 has a larger error than the loop's; other types round far more coarsely: 1,024
# rows in place of 256 write, add and read a quarter of the sums (LOG, overhead, seeds, training).
PIECE_ROWS = {torch.float32: 32, torch.bfloat16: 1024, torch.float16: 1024}
PIECE_NUMBERS = 1 << 20  # elements in the sums of all slices of one weight: a limit on memory

# --- Products of float32 on tensor cores, by the fp16 hi/lo split ---

# GRU H=512 B=64 T=512, us per product: cuBLAS 1065, per weight gradient 988; with the hi/lo split 483 and 439, plus 40
# or 147 to split an operand. Error against float64 1.4e-7 and 2.7e-7, cuBLAS 4.1e-7 and 9.8e-7 (LOG, float32 in
# halves). Minimum multiplications of such a product: cuBLAS takes 45 us for this many, and three launches replace one.
EXACT_LEAST_PRODUCTS = 1 << 30
# Minimum depth of sums for wgmma on Hopper: GRU H=512 B=256, a product takes 1524 us instead of 1897, a weight's
# gradient 1157 instead of 1740, H=256 573 instead of 617. Sums over fewer values were not measured (LOG, what surrounds
# a recurrence).
EXACT_WGMMA_DEPTH = 256
EXACT_PIECE_ROWS = 512  # minimum rows of a slice of a sum over rows

# --- gru, lstm, ln_gru, ln_lstm on GPUs ---

GATED_LARGEST_HIDDEN = 1024  # on a grid 32 blocks of 32 units, or in float32 64 of 16
# By rows, then by tiles of units per block: warps per tile.
GATED_SPLITS = {8: {1: 8, 2: 4, 3: 4, 4: 2, 8: 2}, 16: {1: 16, 2: 8, 4: 4}}
# Registers per thread for weights, by bytes per element and warps.
GATED_REGISTERS = {2: {8: 128, 12: 96, 16: 64}, 4: {8: 112, 12: 72, 16: 40}}
# Rows of a block or a cluster if the batch then takes half of the GPU at most: one warp to a scheduler does what is
# pointwise, not two. Kernels of both passes, 16 rows, eight to a block / four: GRU H=64 0.99 / 0.87, H=128 1.83 / 1.39,
# H=256 2.11 / 1.48; LSTM 1.22 / 1.04, 1.90 / 1.51, 2.70 / 1.86; LN-LSTM 1.77 / 1.47, 3.08 / 2.48, 4.28 / 3.05; in
# float32 GRU 2.38 / 2.10, 7.30 / 6.64, 5.09 / 4.17. In 16 bits one block takes two rows, if it can: H=64, four rows and
# two, GRU 0.97 / 0.94, LSTM 1.02 / 1.00, LN-GRU 1.05 / 0.95, LN-LSTM 1.23 / 1.07.
GATED_FEW_ROWS: tuple[int, ...] = (4,)
GATED_FEWEST_ROWS: tuple[int, ...] = (2,)
# Blocks of a cluster up to which warps without a row help those of a normalised cell that have one, forward and back.
# 16 rows, without and with: H=64 LN-GRU 0.45 / 0.44 and 0.70 / 0.61, LN-LSTM 0.61 / 0.50 and 0.85 / 0.73; on clusters
# H=128 1.12 / 0.92 and 1.40 / 1.22 back, H=256 0.92 / 0.96 and 1.27 / 1.30 forward, 1.33 / 1.13 and 1.91 / 1.76 back.
GATED_HELPED_BLOCKS = 1, 16
GATED_TILES_UNDERWAY = 64  # tiles in flight from the cache to a block
# Weight tiles per warp in registers on a grid, by bytes per element, pass and rows. With more, registers spill.
GATED_GRID_REGISTERS = {
    2: {("forward", 8): 24, ("forward", 16): 24, ("reverse", 8): 16, ("reverse", 16): 24},
    4: {("forward", 8): 24, ("forward", 16): 18, ("reverse", 8): 18, ("reverse", 16): 16},
}
# If warps halve the tiles of units, a warp has fewer sums and room for more tiles: those of up to three gates.
GATED_HALVED_REGISTERS = 24
# Those that normalised cells have fewer, without their memory's five.
GATED_NORM_REGISTERS = {("forward", 8): 0, ("forward", 16): 4, ("reverse", 8): 1, ("reverse", 16): 9}
GATED_GRID_REGISTERS_TF32 = 26  # maximum if shared memory is full: TF32 products need few other registers
# Units of a block on a grid, by bytes of a number. The first if all rows then run at once: fewer units, fewer products.
# GRU H=512 B=64, forward / both passes: float32 16 units 7.0 / 21.8, 32: 6.7 / 20.8; tf32 3.9 / 11.0, 2.9 / 8.3.
GATED_GRID_UNITS = {2: (32,), 4: (16, 32)}
# Most blocks of the normalisation of the input, there and back: a few of 256 threads on each of 132 multiprocessors; on
# the backward pass fewer, because each warp group has its own sum.
NORM_BLOCKS, NORM_BACK_BLOCKS = 792, 396
# Elements in a plane (B, steps, H) of a chunk of the backward pass if it has one more plane than gates, 16 MB in 16
# bits; and a factor for passes whose forward pass saved products: gradients of a whole pass are split once (H=512 B=256
# in float32 has one chunk with 512 steps, not four, and 0.5 GB beside the 2.7 GB that the pass needs anyway).
GATED_CHUNK_NUMBERS, GATED_KEPT_CHUNKS = 1 << 23, 4
GATED_PIECE_ROWS = {2: 256, 4: 32}  # rows per slice of a weight gradient, by bytes per element
GATED_PIECE_NUMBERS = 1 << 22  # elements in the sums of all slices

# --- The C++ engine ----------------------------------------------------------------------------------------------

# Minimum rows and columns per thread: fewer are not worth a thread.
ROWS_PER_THREAD, COLUMNS_PER_THREAD = 4, 128
# From this hidden size on weights outgrow the cache of a core (4 H^2 floats, 2 MB), and threads divide the columns of
# a product rather than the rows, up to this many rows to a thread (LOG, the CPU engine with columns shared between
# threads: at H=512 columns are 2.3 / 2.0 times as fast with 8 rows, 1.0 / 1.1 with 32).
COLUMNS_HIDDEN, COLUMNS_ROWS = 384, 16
# A single step runs in the engine up to this many rows of AttnRNN, which reads its weights again for each, and of other
# cells, whose rows share them in fours: with more than 4,096 numbers in all states torch's products are faster (LSTM on
# AVX-512, us in the engine and in torch: H=256, 16 rows 513, 722, 32 rows 894, 806; H=512, 8 rows 768, 3,723; a GRU of
# 512 units, 16 rows 1,316, 1,076). Up to this many units: the weights of more come from memory, where one core is slow.
STEP_MOST_ROWS, STEP_MOST_GATED_ROWS, STEP_MOST_NUMBERS, STEP_LARGEST_HIDDEN = 4, 32, 4096, 1024
# A training call of one step of a GRU goes to torch from this hidden size on: H=256, B=32 takes 1,318 us in the engine,
# 1,034 in torch (AVX-512); H=128 is faster in the engine (LOG, what a call costs, second look).
ONE_STEP_HIDDEN = 192
# Below this hidden size torch's LSTM runs one step without gradients in training mode: oneDNN's inference mode
# rearranges the weights in every call (AVX-512, B=32, difference to torch.nn in training mode in us: H=64 -83 and -50,
# H=200 +33, H=256 +69, +27).
TRAINING_FORM_HIDDEN = 192
# Up to this many multiply-adds the CPU engine computes the product of the input and its weight itself, and its
# gradients: torch's operators take longer to start. Packing the weight takes as long as some rows do. Time of both
# passes before over after (AVX-512, one thread): 1.05 to 1.25 below the limit, 1.0 around it.
INPUT_PRODUCT_NUMBERS, INPUT_PRODUCT_ROWS = 2**19, 8
# The intermediates of the steps are saved for the backward pass up to this many bytes, and recomputed above.
SAVED_BYTES = 2**29
# Below this hidden size auto leaves float32 LSTMs with equal lengths to oneDNN, on x86 alone: on a Neoverse-N1 (B=16,
# H=256) torch takes 278 ms, the engine 74 (LOG, every machine).
ONEDNN_LSTM_HIDDEN = 512
# But one step without gradients, and small states, run in the engine there, too, if whole vectors hold the units. Time
# of oneDNN over the engine's (AVX-512, 1 and 4 threads): one step of 2 to 64 rows of 64 to 384 units 1.1 to 4.6 and 1.0
# to 2.5; 1 to 64 steps, forward and both passes, of up to this many units and numbers in a state 1.0 to 1.8 and 1.1 to
# 1.9 (LOG, what a call costs, fifth look). 200 units: 0.8 to 1.6, so they stay with oneDNN.
SMALL_LSTM_HIDDEN, SMALL_LSTM_NUMBERS, LSTM_HIDDEN_MULTIPLE = 128, 1280, 16
# Shorter sequences stay with the loop: with one row of 64 units it is as fast as a compiled cell for 2 steps of a GRU,
# 4 of a leaky cell and 5 of an IndRNN (AVX-512).
COMPILED_STEPS = 5
# Cells whose step takes 0.6 to 2.6 s to trace, a custom cell 0.3 s. On a CPU they are compiled from this many steps on:
# with 100 steps both passes of the loop take 0.1 to 0.9 s, of the compiled cell a 5th to a 35th of it (LOG, own cells).
# On a GPU, where NVRTC's time is added, they were not measured and stay with the loop.
SLOW_TO_COMPILE = frozenset({"ntm", "ode_gru", "rnn_attention"})
SLOW_TO_COMPILE_STEPS = 50

# --- A long sequence in chunks that run in parallel ---

# On a GPU: shortest sequence and shortest chunk, in steps. Two passes cost the host 1.4 ms forward, 4.7 ms both ways.
# With 4,096 steps chunks take 0.44 to 0.89 times as long as the whole in float32. Kernels for 16 bits are faster: 0.8
# to 1.0 times, and 1.4 times in a whole training step (GRU, 128 units, 4 rows, autocast). On CPUs chunks do not pay:
# the whole takes 0.35 to 1.4 times as long with 16 threads (LOG, long recurrences).
PARALLEL_LEAST_STEPS, PARALLEL_LEAST_STEPS_IN_16_BITS, PARALLEL_CHUNK = 4096, 8192, 256
# Rows * units^2 that run in about the time of one row, with at least so many units: 256 rows of up to 256 units. With
# more, a step takes longer in proportion.
PARALLEL_CAPACITY, PARALLEL_LEAST_HIDDEN = 1 << 24, 256
# Fewest chunks: two passes must cost much less than one over the whole sequence. Most passes before it runs as a whole.
PARALLEL_LEAST_CHUNKS, PARALLEL_MOST_PASSES = 8, 8
# Largest difference between the end of a chunk and the next start, in rounding errors of the type (the float32 kernels
# for tensor cores err by 8), and of the sum of the differences over all chunks, in units of that.
PARALLEL_ROUNDINGS = {torch.float64: 16, torch.float32: 16, torch.bfloat16: 1, torch.float16: 1}
PARALLEL_SUM = 16
# Calls that run as a whole after chunks of no length agreed: at first, and at most.
PARALLEL_WAITS = 64, 4096

# --- Plain torch -------------------------------------------------------------------------------------------------

# The handwritten backward pass of AttnRNN materialises the products of all pairs of slots up to this many elements.
PAIRWISE_NUMBERS = 2**22

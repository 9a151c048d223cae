"""Deep stacks on the names task: one to eight layers, with and without residual connections and norms between layers.

python -m research depth_table --device cuda --data .carry/data --prepare 12 --json FILE

Every stack has about 74,000 weights. Models are named cell-layers-norm-plain or cell-layers-norm-residual. How learning
rates are chosen is in tuned_table.py. Eight layers come first: a run that is cut has what matters most. `--kinds
none-plain batch-residual` and `--stacks gru` train fewer models.
"""

from functools import partial

import seqloom
from research.quality.small_tasks import WIDTH
from research.quality.tuned_table import Table, add_settings
from research.record import build_parser

CELLS = {"attn_rnn": 16, "gru": 2, "lstm": 2}  # the hidden size is a multiple of this
NORMS = ("none", "rms", "layer", "batch")
KINDS = [f"{norm}-{connection}" for connection in ("plain", "residual") for norm in NORMS]
DEPTHS = (8, 1, 4, 2)
WEIGHTS = 74_000


def count_weights(cell: str, depth: int, hidden: int) -> int:
    return sum(p.numel() for p in seqloom.Recurrent(cell, WIDTH, hidden, depth, device="meta").parameters())


def choose_hidden(cell: str, depth: int) -> int:
    """Return the hidden size whose number of weights is closest to the budget."""
    sizes = range(CELLS[cell], 400, CELLS[cell])
    return min(sizes, key=lambda hidden: abs(count_weights(cell, depth, hidden) - WEIGHTS))


def make_stack(cell: str, hidden: int, depth: int, kind: str) -> seqloom.Recurrent:
    norm, _, connection = kind.partition("-")
    stack_norm, residual = None if norm == "none" else norm, connection == "residual"
    return seqloom.Recurrent(cell, WIDTH, hidden, depth, batch_first=True, residual=residual, stack_norm=stack_norm)


def main() -> None:
    parser = build_parser(__doc__)
    add_settings(parser, ["names"], steps=1000, rates=3, seeds=3)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="norms and connections between layers")
    parser.add_argument("--stacks", nargs="+", default=list(CELLS), choices=list(CELLS), help="cells")
    settings = parser.parse_args()
    layers, parts = {}, []
    for depth in DEPTHS:
        part = {
            f"{cell}-{depth}-{kind}": partial(make_stack, cell, choose_hidden(cell, depth), depth, kind)
            for kind in (settings.kinds if depth > 1 else KINDS[:1])
            for cell in settings.stacks
        }
        layers |= part
        parts.append(list(part))
    Table(settings, layers).run(parts)

"""Sixteen cells on four tasks in one table: names, digits, adding and the register, with the same budget for each.

python -m research cells_table --device cuda --data .carry/data --prepare 16 --json FILE

Each model is an input layer of 32 features, one recurrent layer with about as many weights as a GRU of 64 units, and a
linear head. How learning rates are chosen is in tuned_table.py, the tasks are in small_tasks.py. `--resume FILE` takes
the rows of an earlier record with the same settings and trains what is missing.
"""

from functools import partial

import seqloom
from research.quality.small_tasks import WIDTH
from research.quality.tuned_table import Table, add_settings
from research.record import build_parser

CELLS = (
    *("gru", "lstm", "rnn", "attn_rnn", "ln_gru", "min_gru", "mgu", "janet", "star", "nbr", "peephole_lstm", "slstm"),
    *("cfc", "lem", "cornn", "orthogonal_rnn"),
)
UNITS, MULTIPLE, LARGEST = 64, 8, 400


def count_weights(cell: str, hidden: int) -> int:
    return sum(p.numel() for p in seqloom.Recurrent(cell, WIDTH, hidden).parameters())


def choose_hidden(cell: str) -> int:
    """Return the multiple of 8 units whose number of weights is closest to that of the GRU."""
    goal = count_weights("gru", UNITS)
    return min(range(MULTIPLE, LARGEST, MULTIPLE), key=lambda h: abs(count_weights(cell, h) - goal))


def main() -> None:
    parser = build_parser(__doc__)
    add_settings(parser, ["names", "register", "adding", "digits"], steps=1500, rates=4, seeds=5)
    settings = parser.parse_args()
    layers = {
        cell: partial(seqloom.Recurrent, cell, WIDTH, choose_hidden(cell), batch_first=True)
        for cell in settings.cells or CELLS
    }
    Table(settings, layers).run()

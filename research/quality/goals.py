"""Train towards fixed goals, by one recipe each: python -m research goals --goals smnist copy --seeds 0 1.

Each training that ends appends a line to the ledger: the scores, the settings, the seed, the command, the hardware and
the versions. Settings were chosen on validation rows; the test rows are read once, with the last weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from research.quality.goal_characters import shakespeare
from research.quality.goal_images import (
    psmnist,
    psmnist_light,
    psmnist_linear,
    psmnist_scan,
    psmnist_shift,
    smnist,
    smnist_distort,
    smnist_linear,
    smnist_shift,
    smnist_wide,
)
from research.quality.goal_recipe import Training
from research.quality.goal_reviews import imdb
from research.quality.goal_series import etth1, etth1_long
from research.quality.goal_size import Size
from research.quality.goal_synthetic import adding, copy
from research.quality.goal_tags import conll, conll_all, conll_drop, ewt
from research.quality.goal_training import train_all
from research.quality.goal_translation import multi
from research.record import build_parser

RECIPES: dict[str, Callable[[int, Size], Training]] = {
    "smnist": smnist,
    "smnist_shift": smnist_shift,
    "smnist_wide": smnist_wide,
    "smnist_distort": smnist_distort,
    "smnist_linear": smnist_linear,
    "psmnist": psmnist,
    "psmnist_light": psmnist_light,
    "psmnist_linear": psmnist_linear,
    "psmnist_scan": psmnist_scan,
    "psmnist_shift": psmnist_shift,
    "copy": copy,
    "adding": adding,
    "imdb": imdb,
    "shakespeare": shakespeare,
    "ewt": ewt,
    "conll": conll,
    "conll_all": conll_all,
    "conll_drop": conll_drop,
    "etth1": etth1,
    "etth1_long": etth1_long,
    "multi30k": multi,
}


def main() -> None:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--goals", nargs="+", required=True, metavar="NAME[:SEED,SEED]", help=", ".join(RECIPES))
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which all trainings have ended")
    parser.add_argument("--until", type=float, default=1.0, help="share of the trainings at which this run ends")
    parser.add_argument("--checkpoints", type=Path, help="a folder from which trainings continue, and for their states")
    parser.add_argument("--out", type=Path, required=True, help="the ledger, a file of JSON lines")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="check that everything runs")
    args = parser.parse_args()
    size = Size(torch.device(args.device), args.tiny)
    torch.set_float32_matmul_precision("high")
    trainings = []
    for name, _, seeds in (goal.partition(":") for goal in args.goals):
        trainings += [RECIPES[name](int(seed), size) for seed in (seeds or "0").split(",")]
    train_all(trainings, size.device, args.limit, args.out, args.until, args.checkpoints)

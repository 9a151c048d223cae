"""What int8 weights cost linear recurrences: accuracy on test rows before and after rounding, and the size of a file.

    python -m research linear_int8 names.csv --target language --steps 200 --json out.json

Trains a small classifier with each of the layers on a file, rounds its matrices as `seqloom export --int8` does, and
scores both on the rows that were held out.
"""

from __future__ import annotations

import tempfile
import warnings

from research.record import build_parser, print_row, write_record
from seqloom.lab.export.int8 import is_rounded, measure_loss, round_weights
from seqloom.lab.training.fit import fit
from seqloom.layers.linear.layer import Mixer


def main() -> None:
    """Train and score all layers, one after the other."""
    parser = build_parser(__doc__)
    parser.add_argument("file")
    parser.add_argument("--target", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=64)
    given = parser.parse_args()
    rows = []
    for name in sorted(Mixer.registry):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = fit(
                given.file,
                model=name,
                target=given.target,
                runs=folder,
                hidden=given.hidden,
                embedding=given.hidden,
                steps=given.steps,
                seed=0,
            )
            model = run.model("best").eval()
            loss = measure_loss(run, model, round_weights(model))
        weights = list(model.parameters())
        whole = sum(4 * p.numel() for p in weights)
        small = sum(p.numel() + 4 * p.shape[0] if is_rounded(p) else 4 * p.numel() for p in weights)
        rows.append({"layer": name, **loss, "bytes_float32": whole, "bytes_int8": small})
        print_row(rows[-1])
        write_record(given.json, seed=0, rows=rows)

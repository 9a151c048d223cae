"""State tracking by linear recurrences: what negative eigenvalues allow, and what needs a nonlinear recurrence."""

from __future__ import annotations

from dataclasses import replace

from seqloom.lab.studies.state import State, track

MODELS = (
    *("gru", "lstm", "attn_rnn", "transformer", "mamba2"),
    *("gated_deltanet", "gated_deltanet negative", "deltanet negative", "deltaproduct negative"),
)

GATED = ("gated_deltanet", "gated_deltanet negative")  # their decay is learned slowly: they are trained longer as well


# S5 is given by a swap and the cycle of five, whose products are all 120 permutations: with all 120 as symbols neither
# GRU nor AttnRNN learned it in 5,000 steps. The cycle is a product of four reflections, not of fewer.


class Linear(State, name="linear"):
    """Compare linear recurrences with nonlinear ones and attention in tracking state: parity and permutations."""

    full = replace(
        State.full,
        conditions=(
            track("parity", 3_000),
            replace(track("parity", 9_000, "parity, 9,000 steps"), models=GATED, tuned_at="parity"),
            track("S5 generators", 6_000, batch=256),
        ),
        models=MODELS,
        seeds=3,
        other_seeds=3,
        lrs=(3e-3, 1e-2, 3e-2, 1e-1),
        starts=("default", "chrono"),
        tuning_seeds=1,
        widen=False,
    )
    quick = replace(State.quick, models=("gru", "gated_deltanet", "gated_deltanet negative"), seeds=2)

"""State tracking by linear recurrences: what negative eigenvalues allow, and what needs a nonlinear recurrence."""

from __future__ import annotations

from dataclasses import replace

from seqloom.lab.studies.state import State, track

MODELS = (
    *("gru", "attn_rnn", "lstm", "transformer", "mamba2"),
    *("deltanet", "deltanet negative", "gated_deltanet", "gated_deltanet negative", "deltaproduct negative"),
)


class Linear(State, name="linear"):
    """Which linear recurrences track state, against nonlinear ones and attention: parity and permutations."""

    full = replace(
        State.full,
        conditions=(track("parity", 6_000), track("S5", 6_000, batch=512), track("S3", 6_000)),
        models=MODELS,
        seeds=3,
        other_seeds=3,
        lrs=(3e-3, 1e-2, 3e-2),
        starts=("default", "chrono"),
        tuning_seeds=1,
        widen=False,
    )
    quick = replace(State.quick, models=("gru", "gated_deltanet", "gated_deltanet negative"), seeds=2)

"""State tracking by linear recurrences: what negative eigenvalues allow, and what needs a nonlinear recurrence."""

from __future__ import annotations

from dataclasses import replace

from seqloom.lab.studies.state import State, track

MODELS = (
    *("gru", "lstm", "attn_rnn"),
    *("gated_deltanet", "gated_deltanet negative", "deltaproduct negative", "mamba2"),
    "transformer",
)


class Linear(State, name="linear"):
    """Which linear recurrences track state, against nonlinear ones and attention: parity, permutations, recall."""

    full = replace(
        State.full,
        conditions=(track("parity", 3_000), track("S5", 6_000), track("S3", 3_000), track("recall", 3_000)),
        models=MODELS,
        seeds=3,
        other_seeds=3,
        tuning_seeds=1,
        starts=("default",),
        widen=False,
    )
    quick = replace(State.quick, models=("gru", "gated_deltanet", "gated_deltanet negative"), seeds=2)

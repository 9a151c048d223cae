"""The selection guides of the two documents, a rule for each line, with what was measured beside it."""

from __future__ import annotations

from math import inf

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.rule import Rule

SHORT, LONG, VERY_LONG = 20, 100, 1_000  # steps, guide of document 001
BRIEF, EXTENDED = 50, 200  # steps, guide of document 004
ADDED = "mean absolute error of adding two of {T} numbers (trivial 0.333): "
COPIED = "accuracy of copying 10 symbols after 100 steps (chance 0.125): "
STEP = "a step of one stream takes an RNN {} us, a GRU {}, an LSTM {}, an AttnRNN {}"
STEP_KEYS = ("step.rnn", "step.gru", "step.lstm", "step.attn_rnn")
WIDE = "8,192 steps on one CPU thread take an RNN layer {} ms, AttnRNN {}, a TCN {}, fused self-attention {}"
WIDE_KEYS = ("long.rnn", "long.attn_rnn", "long.tcn", "long.transformer")


def long_memory(facts: Facts) -> str:
    return f"90% of the information lies within {facts.reach:.0f} steps" if facts.reach > LONG else ""


def _length(facts: Facts, low: float, high: float) -> str:
    """Where the usual length lies between the two."""
    segments = f" of {facts.segment} values each" if facts.segment > 1 else ""
    return f"a usual sequence has {facts.steps:.0f} steps{segments}" if low <= facts.steps < high else ""


def _gpu(facts: Facts) -> str:
    return "there is a GPU" if facts.device == "cuda" else ""


FIRST = (
    Rule(
        "short sequences",
        "001, 7.1",
        f"below {SHORT} steps, with a simple task and little to compute with, an RNN",
        lambda f: _length(f, 0, SHORT),
        {"rnn": 0.25},
        ADDED.format(T=20) + "RNN {}, GRU {}, AttnRNN {}; " + STEP + ", so that an RNN saves little",
        ("adding.rnn.20", "adding.gru.20", "adding.attn_rnn.20", *STEP_KEYS),
    ),
    Rule(
        "long dependences",
        "001, 7.2",
        f"dependences over more than {LONG} steps, an LSTM",
        long_memory,
        {"lstm": 0.25, "attn_rnn": 0.25},
        COPIED + "LSTM {}, GRU {}, AttnRNN {}; " + ADDED.format(T=200) + "LSTM {}, GRU {}, AttnRNN {}",
        (
            *("copy.lstm.100", "copy.gru.100", "copy.attn_rnn.100"),
            *("adding.lstm.200", "adding.gru.200", "adding.attn_rnn.200"),
        ),
    ),
    Rule(
        "medium sequences",
        "001, 7.3",
        "sequences of medium length, where training time and parameters count, a GRU",
        lambda f: _length(f, SHORT, LONG + 1),
        {"gru": 0.75},
        "a GRU has three quarters of an LSTM's parameters; " + STEP,
        STEP_KEYS,
    ),
    Rule(
        "very long sequences",
        "001, 7.4",
        "very long sequences, a Transformer or a TCN",
        lambda f: _length(f, VERY_LONG, inf),
        {"tcn": 1.0, "transformer": 0.5, "local_transformer": 1.0, "linear_transformer": 1.0},
        WIDE,
        WIDE_KEYS,
    ),
    Rule(
        "parallel computing",
        "001, 7.4",
        "where steps can be computed in parallel, a Transformer or a TCN",
        _gpu,
        {"tcn": 0.5, "transformer": 0.5},
    ),
)

SECOND = (
    Rule(
        "short sequences",
        "004, 7",
        f"below {BRIEF} steps, a plain RNN: simple and efficient",
        lambda f: _length(f, 0, BRIEF),
        {"rnn": 0.0, "gru": 0.5},
        ADDED.format(T=20) + "RNN {}, GRU {}; of 50: RNN {}, GRU {}: an RNN is no model for 50 steps",
        ("adding.rnn.20", "adding.gru.20", "adding.rnn.50", "adding.gru.50"),
    ),
    Rule(
        "medium sequences",
        "004, 7",
        f"{BRIEF} to {EXTENDED} steps, an LSTM or a GRU",
        lambda f: _length(f, BRIEF, EXTENDED + 1),
        {"lstm": 0.25, "gru": 0.5},
        ADDED.format(T=200) + "LSTM {}, GRU {}, AttnRNN {}",
        ("adding.lstm.200", "adding.gru.200", "adding.attn_rnn.200"),
    ),
    Rule(
        "long sequences",
        "004, 7",
        f"more than {EXTENDED} steps, a Transformer",
        lambda f: _length(f, EXTENDED + 1, inf),
        {"transformer": 0.5, "local_transformer": 0.5},
        "pixels of MNIST one by one, percent right: attention {}, AttnRNN {}, GRU {}; " + WIDE,
        ("pixels.dense", "pixels.attn_rnn", "pixels.gru", *WIDE_KEYS),
    ),
    Rule(
        "sequence labelling",
        "004, 7",
        "a label for every step, a bidirectional LSTM",
        lambda f: "every step has its tag" if f.kind == "tag" else "",
        {"bi_lstm": 2.0, "bi_attn_rnn": 2.0, "bi_gru": 2.0},
        "UD English-EWT: bi_lstm {} % of the tags right, bi_attn_rnn {} % (one seed each)",
        ("tag.ewt.bi_lstm", "tag.ewt.bi_attn_rnn"),
    ),
    Rule(
        "parallel computing",
        "004, 7",
        "where steps are to be computed in parallel, a Transformer",
        _gpu,
        {"transformer": 0.5},
    ),
)

"""Rules beside the guides: from these data themselves, from other parts of the documents, from measurements."""

from __future__ import annotations

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.guides import ADDED
from seqloom.lab.advise.rule import Rule

HERE = "found here"
AHEAD = 0.05  # share of the information after a step that is worth reading backwards for
FEW = 500  # examples
DEEP = 50_000  # examples from which several layers are worth their cost
REMEMBERED = 5  # steps from which remembering is a task
FORGOTTEN = 20  # steps after which a plain RNN has forgotten
NOTHING_LEFT, MOST = 0.97, 0.5  # shares of what can be known


def known(facts: Facts) -> float:
    """The share of what can be known that a linear model knows: 0 is the trivial answer, 1 the best there can be."""
    b = facts.baseline
    if b is None:
        return 0.0
    best = 1 - (facts.conflict or 0.0) if b.higher else 0.0
    return (b.linear - b.trivial) / (best - b.trivial) if best != b.trivial else 0.0


def _nothing_left(facts: Facts) -> str:
    b = facts.baseline
    if b is None or known(facts) < NOTHING_LEFT:
        return ""
    return f"{b.how} has {b.metric} {b.linear:.3f} on a sample, {known(facts):.0%} of what can be known"


def _words(facts: Facts) -> str:
    b = facts.baseline
    if b is None or facts.kind != "classify" or not facts.text or known(facts) < MOST:
        return ""
    unordered = f", {b.bag:.3f} whatever the order" if b.bag is not None else ""
    return f"{b.how} has accuracy {b.linear:.3f} on a sample{unordered}; {b.trivially} {b.trivial:.3f}"


def _ridge(facts: Facts) -> str:
    b = facts.baseline
    if b is None or facts.kind != "forecast" or known(facts) < MOST:
        return ""
    return f"{b.how} has mse {b.linear:.3f} on a sample, {b.trivially} {b.trivial:.3f}"


def _both_ways(facts: Facts) -> str:
    if facts.kind == "tag" and facts.information.ahead > AHEAD:
        return f"{facts.information.ahead:.0%} of the information about a tag comes after it"
    return "the whole recording is there before it is written down" if facts.kind == "transcribe" else ""


def _whole(facts: Facts) -> str:
    whole = facts.kind in ("classify", "regress")
    return "a sequence is there as a whole before anything is said of it" if whole else ""


FOUND = (
    Rule(
        "nothing is left to learn",
        HERE,
        "a linear model, and no recurrent or attention model",
        _nothing_left,
        {"linear": 4.0},
    ),
    Rule(
        "words say it",
        HERE,
        "a text has its class from its words and phrases more than from their order: a linear model first",
        _words,
        {"linear": 3.0},
    ),
    Rule(
        "the past goes on",
        HERE,
        "a linear map from the past to the future is hard to beat",
        _ridge,
        {"linear": 2.0},
    ),
    Rule(
        "something to remember",
        "000",
        "AttnRNN keeps its gradient over many steps",
        lambda f: f"90% of the information lies within {f.reach:.0f} steps" if f.reach >= REMEMBERED else "",
        {"attn_rnn": 0.5},
        ADDED.format(T=50) + "AttnRNN {}, GRU {}, LSTM {}; before training, |dL/dh_0| over 64 steps is {}, {} and {}",
        (
            *("adding.attn_rnn.50", "adding.gru.50", "adding.lstm.50"),
            *("gradient.attn_rnn.64", "gradient.gru.64", "gradient.lstm.64"),
        ),
    ),
    Rule(
        "a plain RNN forgets",
        "001, 5.1",
        f"an RNN gets much worse beyond {FORGOTTEN} steps",
        lambda f: f"90% of the information lies within {f.reach:.0f} steps" if f.reach > FORGOTTEN else "",
        {"rnn": -1.0},
        ADDED.format(T=20) + "{}, of 50 {}; before training, |dL/dh_0| over 32 steps is {}",
        ("adding.rnn.20", "adding.rnn.50", "gradient.rnn.32"),
    ),
    Rule(
        "context on both sides",
        "004, 4",
        "reading both ways uses what comes before and after",
        _both_ways,
        {"bi_gru": 1.0, "bi_lstm": 1.0, "bi_attn_rnn": 1.0, "bi_hybrid": 0.5},
        "spoken digits, written down: digit error bi_gru {} %, bi_lstm {} %, bi_transformer {} % (one seed each)",
        tuple(f"transcribe.spoken digits.{name}" for name in ("bi_gru", "bi_lstm", "bi_transformer")),
    ),
    Rule(
        "read as a whole",
        "004, 4",
        "reading both ways represents a sequence better",
        _whole,
        {"bi_gru": 0.25, "bi_lstm": 0.25, "bi_attn_rnn": 0.25},
    ),
    Rule(
        "few examples",
        "004, 5",
        "larger models need more data and more regularisation",
        lambda f: f"there are {f.examples:,}" if f.examples is not None and f.examples < FEW else "",
        {"transformer": -1.0, "linear_transformer": -1.0, "local_transformer": -1.0},
    ),
    Rule(
        "one layer first",
        "004, 5",
        "more layers cost time, and make gradients worse",
        lambda f: f"there are {f.examples:,} examples" if f.examples is not None and f.examples < DEEP else "",
        {"gru:2": -0.5, "lstm:2": -0.5, "attn_rnn:2": -0.5},
    ),
    Rule(
        "a sequence is written",
        "003",
        "an encoder and a decoder with attention between them",
        lambda f: "a target of its own length" if f.kind == "translate" else "",
        {"gru": 1.0, "lstm": 0.5, "attn_rnn": 0.5, "transformer": 0.5},
        "Multi30k de-en, BLEU: GRU {}, with additive attention {}, Transformer {} (one seed each)",
        ("translate.none", "translate.additive", "translate.transformer"),
    ),
)

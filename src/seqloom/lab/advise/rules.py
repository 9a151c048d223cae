"""The rules of the advice: conditions on the data that add or subtract points for models.

A rule comes from an article, or from the data themselves. Where measurements contradict an article, the points
follow the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.measurements import Measurements
from seqloom.layers.registry import BI_PREFIX

DATA = "this data"
ATTN_RNN = "AttnRNN article"
FAMILY = "RNN family article, section "
COURSE = "RNN architecture course"
NOTES = "network architecture notes, section "
DELTA = "Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464"

FAMILY_SHORT, FAMILY_LONG, FAMILY_VERY_LONG = 20, 100, 1_000  # steps (RNN family article, section 7)
NOTES_SHORT, NOTES_LONG = 50, 200  # steps (network architecture notes, section 7)
LOOKAHEAD = 0.05  # share of the information after a step from which reading both ways pays
FEW_EXAMPLES = 500
DEEP_EXAMPLES = 50_000  # examples from which several layers are worth their cost
# The fewest steps at which AttnRNN is ahead of a GRU in a study of tuned models: reviews of 200 words whose padding is
# read, then the 784 pixels of MNIST. Adding and copying show no difference at any length, and on names, of about 7
# letters, it is behind the GRU in each of six settings.
MEMORY_STEPS = 200
RNN_MEMORY = 20  # steps after which a plain RNN has forgotten
ALL_KNOWN, MOST_KNOWN = 0.97, 0.5  # shares of the possible improvement that a linear model reaches


@dataclass(frozen=True)
class AdviceRule:
    """A condition on the facts, with points for the models it speaks for or against."""

    name: str
    source: str  # the article and its section, or the data
    says: str  # the advice, in a sentence
    when: Callable[[Facts], str]  # why the rule applies to these facts; "" if it does not
    points: Mapping[str, float]  # by model; a name covers its variants (bi_, :2) unless they are named too
    why: str = ""  # a sentence with a placeholder for each measurement
    keys: tuple[str, ...] = ()  # keys of the measurements

    def reason(self, measurements: Measurements) -> str:
        """Return the measured evidence, or "" if a measurement is missing."""
        if not measurements.has(*self.keys):
            return ""
        return self.why.format(*(format_number(measurements(key)) for key in self.keys))


@dataclass(frozen=True)
class MatchedRule:
    """A rule that applies to some facts, with the reason and the evidence."""

    rule: AdviceRule
    because: str
    reason: str

    def points(self, model: str) -> float:
        """Return the points of a model; `bi_gru:2` falls back to `bi_gru`, then to `gru`."""
        bare = model.partition(":")[0]
        names = (model, bare, bare.removeprefix(BI_PREFIX))
        return next((self.rule.points[name] for name in names if name in self.rule.points), 0.0)


def match_rules(rules: tuple[AdviceRule, ...], facts: Facts, measurements: Measurements) -> list[MatchedRule]:
    """Return the rules that apply, in their order."""
    matched = [(rule, rule.when(facts)) for rule in rules]
    return [MatchedRule(rule, because, rule.reason(measurements)) for rule, because in matched if because]


def format_number(value: float) -> str:
    """Format with three significant digits, four from 10."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def linear_share(facts: Facts) -> float:
    """Return how much of the possible improvement a linear model reaches: 0 is trivial, 1 the best possible score."""
    b = facts.baseline
    if b is None:
        return 0.0
    # equal sequences of different classes cannot all be right; equal tokens can, by the tokens around them
    contradicted = (facts.conflict or 0.0) if facts.is_of_classes else 0.0
    best = 1 - contradicted if b.higher else 0.0
    return min(1.0, (b.linear - b.trivial) / (best - b.trivial)) if best != b.trivial else 0.0


def _linear_suffices(facts: Facts) -> str:
    b = facts.baseline
    if b is None or linear_share(facts) < ALL_KNOWN:
        return ""
    reached = f"{linear_share(facts):.0%} of the possible improvement over {b.trivially}"
    return f"{b.how} reaches {b.title} {b.linear:.3f} on a sample, {reached}"


def _words_decide(facts: Facts) -> str:
    b = facts.baseline
    if b is None or not facts.is_of_classes or not facts.text or linear_share(facts) < MOST_KNOWN:
        return ""
    unordered = f", {b.bag:.3f} without word order" if b.bag is not None else ""
    return f"{b.how} reaches accuracy {b.linear:.3f} on a sample{unordered}; {b.trivially} reaches {b.trivial:.3f}"


def _linear_forecast(facts: Facts) -> str:
    b = facts.baseline
    if b is None or not facts.traits.spans_rows or linear_share(facts) < MOST_KNOWN:
        return ""
    return f"{b.how} reaches {b.title} {b.linear:.3f} on a sample, {b.trivially} {b.trivial:.3f}"


def _context_after(facts: Facts) -> str:
    if facts.is_of_tags and facts.information.ahead > LOOKAHEAD:
        return f"{facts.information.ahead:.0%} of the information about a tag comes after it"
    return "the whole recording is available before it is transcribed" if facts.traits.aligns_text else ""


def _reach_above(facts: Facts, steps: float) -> str:
    return f"90% of the information lies within {facts.reach:.0f} steps" if facts.reach > steps else ""


def _length_between(facts: Facts, low: float, high: float) -> str:
    segments = f" of {facts.segment} values each" if facts.segment > 1 else ""
    return f"a typical sequence has {facts.steps:.0f} steps{segments}" if low <= facts.steps < high else ""


def _examples_below(facts: Facts, count: int) -> str:
    few = facts.examples is not None and facts.examples < count
    return f"there are {facts.examples:,} training examples" if few else ""


def _gpu(facts: Facts) -> str:
    return "this machine has a GPU" if facts.device == "cuda" else ""


ADDING = "mean absolute error of adding two of {T} numbers (trivial 0.333): "
COPYING = "accuracy of copying 10 symbols after 100 steps (chance 0.125): "
STEP_TIME = "one streaming step takes {} us for an RNN, {} for a GRU, {} for an LSTM, {} for AttnRNN"
STEP_TIME_KEYS = ("step.rnn", "step.gru", "step.lstm", "step.attn_rnn")
LONG_TIME = "8,192 steps on one CPU thread take {} ms with an RNN layer, {} AttnRNN, {} TCN, {} fused self-attention"
LONG_TIME_KEYS = ("long.rnn", "long.attn_rnn", "long.tcn", "long.transformer")

RULES = (
    AdviceRule(
        "a linear model suffices",
        DATA,
        "use a linear model; no recurrent or attention model is needed",
        _linear_suffices,
        {"linear": 4.0},
    ),
    AdviceRule(
        "words decide the class",
        DATA,
        "the class depends more on words and phrases than on their order: try a linear model first",
        _words_decide,
        {"linear": 3.0},
    ),
    AdviceRule(
        "linear forecast",
        DATA,
        "a linear map from the past to the future is hard to beat",
        _linear_forecast,
        {"linear": 2.0},
    ),
    AdviceRule(
        "memory needed",
        ATTN_RNN,
        "AttnRNN preserves its gradient over many steps",
        lambda f: _reach_above(f, 0) if f.reach >= MEMORY_STEPS else "",
        {"attn_rnn": 0.5},
        ADDING.format(T=200) + "AttnRNN {}, GRU {}, LSTM {}; before training, |dL/dh_0| over 64 steps is {}, {} and {}",
        (
            *("adding.attn_rnn.200", "adding.gru.200", "adding.lstm.200"),
            *("gradient.attn_rnn.64", "gradient.gru.64", "gradient.lstm.64"),
        ),
    ),
    AdviceRule(
        "a plain RNN forgets",
        FAMILY + "5.1",
        f"an RNN gets much worse beyond {RNN_MEMORY} steps",
        lambda f: _reach_above(f, RNN_MEMORY),
        {"rnn": -1.0},
        ADDING.format(T=20) + "{}, of 50 {}; before training, |dL/dh_0| over 32 steps is {}",
        ("adding.rnn.20", "adding.rnn.50", "gradient.rnn.32"),
    ),
    AdviceRule(
        "context on both sides",
        NOTES + "4",
        "reading both ways uses what comes before and after",
        _context_after,
        {"bi_gru": 1.0, "bi_lstm": 1.0, "bi_attn_rnn": 1.0, "bi_hybrid": 0.5},
        "transcription of spoken digits: digit error bi_gru {} %, bi_lstm {} %, bi_transformer {} % (one seed each)",
        tuple(f"transcribe.spoken digits.{name}" for name in ("bi_gru", "bi_lstm", "bi_transformer")),
    ),
    AdviceRule(
        "whole sequence available",
        NOTES + "4",
        "reading both ways represents a sequence better",
        lambda f: "the whole sequence is available before the prediction" if f.traits.is_per_row else "",
        {"bi_gru": 0.25, "bi_lstm": 0.25, "bi_attn_rnn": 0.25},
    ),
    AdviceRule(
        "few examples",
        NOTES + "5",
        "larger models need more data and more regularisation",
        lambda f: _examples_below(f, FEW_EXAMPLES),
        {"transformer": -1.0, "linear_transformer": -1.0, "local_transformer": -1.0},
    ),
    AdviceRule(
        "one layer first",
        NOTES + "5",
        "more layers take more time and make gradients worse",
        lambda f: _examples_below(f, DEEP_EXAMPLES),
        {"gru:2": -0.5, "lstm:2": -0.5, "attn_rnn:2": -0.5},
    ),
    AdviceRule(
        "sequence to sequence",
        COURSE,
        "use an encoder and a decoder with attention between them",
        lambda f: "the target is a sequence with its own length" if f.traits.writes else "",
        {"gru": 1.0, "lstm": 0.5, "attn_rnn": 0.5, "transformer": 0.5},
        "Multi30k de-en, BLEU: GRU {}, with additive attention {}, Transformer {} (one seed each)",
        ("translate.none", "translate.additive", "translate.transformer"),
    ),
    AdviceRule(
        "short sequences",
        FAMILY + "7.1",
        f"below {FAMILY_SHORT} steps, for a simple task with little compute, use an RNN",
        lambda f: _length_between(f, 0, FAMILY_SHORT),
        {"rnn": 0.25},
        ADDING.format(T=20) + "RNN {}, GRU {}, AttnRNN {}; " + STEP_TIME + ", so an RNN saves little",
        ("adding.rnn.20", "adding.gru.20", "adding.attn_rnn.20", *STEP_TIME_KEYS),
    ),
    AdviceRule(
        "long dependencies",
        FAMILY + "7.2",
        f"for dependencies over more than {FAMILY_LONG} steps, use an LSTM",
        lambda f: _reach_above(f, FAMILY_LONG),
        {"lstm": 0.25, "attn_rnn": 0.25},
        COPYING + "LSTM {}, GRU {}, AttnRNN {}; " + ADDING.format(T=200) + "LSTM {}, GRU {}, AttnRNN {}",
        (
            *("copy.lstm.100", "copy.gru.100", "copy.attn_rnn.100"),
            *("adding.lstm.200", "adding.gru.200", "adding.attn_rnn.200"),
        ),
    ),
    AdviceRule(
        "medium sequences",
        FAMILY + "7.3",
        "for sequences of medium length, where training time and parameters matter, use a GRU",
        lambda f: _length_between(f, FAMILY_SHORT, FAMILY_LONG + 1),
        {"gru": 0.75},
        "a GRU has three quarters of an LSTM's parameters; " + STEP_TIME,
        STEP_TIME_KEYS,
    ),
    AdviceRule(
        "very long sequences",
        FAMILY + "7.4",
        "for very long sequences, use a Transformer or a TCN",
        lambda f: _length_between(f, FAMILY_VERY_LONG, inf),
        {"tcn": 1.0, "transformer": 0.5, "local_transformer": 1.0, "linear_transformer": 1.0},
        LONG_TIME,
        LONG_TIME_KEYS,
    ),
    AdviceRule(
        "very long sequences with a small state",
        DELTA,
        "for very long sequences and streams, a linear recurrence trains in parallel and keeps a state of fixed size",
        lambda f: _length_between(f, FAMILY_VERY_LONG, inf),
        {"gated_deltanet": 1.0, "mamba2": 1.0, "mlstm": 0.5},
        "trained on texts of 128 characters and tested on 1,024, Gated DeltaNet predicts {} % of them, Mamba-2 {}, "
        "AttnRNN {}, an LSTM {}, a Transformer with rotary positions {}",
        ("text.gated_deltanet", "text.mamba2", "text.attn_rnn", "text.lstm", "text.transformer"),
    ),
    AdviceRule(
        "parallel computing",
        FAMILY + "7.4",
        "where steps can be computed in parallel, use a Transformer or a TCN",
        _gpu,
        {"tcn": 0.5, "transformer": 0.5},
    ),
    AdviceRule(
        "short sequences",
        NOTES + "7",
        f"below {NOTES_SHORT} steps, use a plain RNN: simple and efficient",
        lambda f: _length_between(f, 0, NOTES_SHORT),
        {"rnn": 0.0, "gru": 0.5},  # the measurements speak against a plain RNN
        ADDING.format(T=20) + "RNN {}, GRU {}; of 50: RNN {}, GRU {}: 50 steps are too many for an RNN",
        ("adding.rnn.20", "adding.gru.20", "adding.rnn.50", "adding.gru.50"),
    ),
    AdviceRule(
        "medium sequences",
        NOTES + "7",
        f"for {NOTES_SHORT} to {NOTES_LONG} steps, use an LSTM or a GRU",
        lambda f: _length_between(f, NOTES_SHORT, NOTES_LONG + 1),
        {"lstm": 0.25, "gru": 0.5},
        ADDING.format(T=200) + "LSTM {}, GRU {}, AttnRNN {}",
        ("adding.lstm.200", "adding.gru.200", "adding.attn_rnn.200"),
    ),
    AdviceRule(
        "long sequences",
        NOTES + "7",
        f"for more than {NOTES_LONG} steps, use a Transformer",
        lambda f: _length_between(f, NOTES_LONG + 1, inf),
        {"transformer": 0.5, "local_transformer": 0.5},
        LONG_TIME,
        LONG_TIME_KEYS,
    ),
    AdviceRule(
        "sequence labelling",
        NOTES + "7",
        "for a label at every step, use a bidirectional LSTM",
        lambda f: "every step has a tag" if f.is_of_tags else "",
        {"bi_lstm": 2.0, "bi_attn_rnn": 2.0, "bi_gru": 2.0},
        "tagging accuracy on UD English-EWT: bi_lstm {} %, bi_attn_rnn {} % (one seed each)",
        ("tag.ewt.bi_lstm", "tag.ewt.bi_attn_rnn"),
    ),
    AdviceRule(
        "parallel computing",
        NOTES + "7",
        "where steps are to be computed in parallel, use a Transformer",
        _gpu,
        {"transformer": 0.5},
    ),
)

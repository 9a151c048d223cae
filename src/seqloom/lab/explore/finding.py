"""Describe what a model did with an input. Each sentence is checked by an ablation, and withdrawn if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from seqloom.lab.explore.contributions import Growth, Occlusion, Run, Target, read_target, remove_windows
from seqloom.lab.explore.inside import Array, InsideView, LayerView
from seqloom.lab.explore.subject import LabelledInput, Subject
from seqloom.tools.intervene import Clamp, record

LEAST_CHANGE = 0.02  # change of a probability that counts as an effect; smaller changes vary with the seed
SMALL_CHANGE = 0.05  # change of a probability without the first steps if the last steps suffice for the prediction
LEAST_TURN = 0.1  # change of a probability by the part after a turning word
LEAST_STEPS = 6  # steps of an input whose beginning may not matter
GATE_WORDS = {
    ("gru", "z"): ("kept its state (z rose", "opened to the input (z fell"),
    ("lstm", "f"): ("kept its memory (f rose", "forgot (f fell"),
    ("lstm", "i"): ("opened its input gate (i rose", "closed its input gate (i fell"),
    ("lstm", "o"): ("opened its output gate (o rose", "closed its output gate (o fell"),
    ("attn_rnn", "g"): ("opened its gate (g rose", "closed its gate (g fell"),
}  # what a rising and a falling gate does; other gates are named by their letter
# Words that reverse the meaning of a text only decide which of several steps a finding names first; whether the
# prediction turns there is measured with the model.
CONTRASTS = frozenset(  # what follows counts against what comes before
    (
        *("but", "however", "yet", "though", "although", "nevertheless", "nonetheless", "still", "whereas", "except"),
        *("aber", "jedoch", "doch", "dennoch", "trotzdem", "sondern", "allerdings"),
        *("mais", "pourtant", "cependant", "toutefois", "néanmoins"),
        *("pero", "aunque", "sino", "embargo", "però", "tuttavia", "mas", "porém"),
        *("但", "但是", "然而", "可是", "不过", "却"),
    )
)
NEGATIONS = frozenset(  # what follows, or the verb before it, means the opposite
    (
        *("not", "no", "never", "nothing", "nobody", "neither", "nor", "without", "hardly", "cannot"),
        *("nicht", "kein", "keine", "keinen", "nie", "niemals", "ohne"),
        *("pas", "jamais", "sans", "aucun", "aucune", "nunca", "sin", "ni", "non", "mai", "senza", "não", "sem"),
        *("不", "没", "没有", "无", "别"),
    )
)


@dataclass(frozen=True)
class Statement:
    """One sentence about an input."""

    text: str  # the sentence
    check: str  # how it was checked, with numbers
    confirmed: bool  # whether the check agrees; the page strikes out the others
    step: int | None = None  # the step that it is about, or None
    unit: tuple[str, int] | None = None  # the layer and the unit that it is about, or None


@dataclass(frozen=True)
class Evidence:
    """What is known of a model and one input."""

    subject: Subject
    example: LabelledInput
    inside: InsideView  # what happened inside
    target: Target  # the output that is explained
    growth: Growth  # the outputs as the sequence grows
    occlusion: Occlusion  # the output without each of some windows
    run: Run  # runs the model, with the interventions that the user chose

    @property
    def value(self) -> float:
        """The explained output."""
        return float(read_target(self.inside.outputs, self.target)[0])

    @property
    def label(self) -> str:
        """The name of the explained output."""
        where = "" if self.target.step is None else f" at output step {self.target.step}"
        return f"{self.inside.outputs.labels[self.target.output]!r}{where}"

    def name(self, first: int, end: int) -> str:
        """Return the name of the steps from `first` to `end`, exclusive."""
        words = self.example.steps[first:end]
        if all(word == str(first + i) for i, word in enumerate(words)):
            return f"step {words[0]}" if len(words) == 1 else f"steps {words[0]} to {words[-1]}"
        return f"'{' '.join(words)}'"

    @torch.no_grad()
    def measure(self, clamps: Sequence[Clamp], uniform_attention: bool = False) -> float:
        """Return the explained output under an intervention."""
        subject, wanted = self.subject, self.inside.outputs.wanted
        with record(subject.network, clamps, uniform_attention):
            return float(read_target(subject.compute_outputs(self.example.batch, wanted), self.target)[0])


def describe(evidence: Evidence) -> list[Statement]:
    """Return what a model did with an input, the most important statement first."""
    if evidence.subject.kind.has_values:
        return _describe_value(evidence)
    statements = [_describe_turn(evidence)]
    if (flip := _describe_flip(evidence)) is not None:
        turn = statements[0]
        if flip.step == turn.step and flip.confirmed:
            statements = [Statement(f"{flip.text} {turn.text}", turn.check, True, turn.step)]
        else:
            statements.append(flip)
    if (contrast := _describe_contrast(evidence)) is not None:
        at = int(contrast.step == statements[0].step)  # one word that decides the prediction is more informative
        statements.insert(at, contrast)
    step = statements[0].step
    if step is not None and evidence.inside.layers:
        statements += _describe_unit(evidence, step)
        statements += _describe_attention(evidence, step)
    return [*statements, *_describe_beginning(evidence)]


def _describe_turn(evidence: Evidence) -> Statement:
    """Name the step without which the prediction would change most.

    A negation whose removal changes the predicted class takes precedence over words with a larger effect: removing the
    negated word often leaves nothing to predict from.
    """
    subject, example, target = evidence.subject, evidence.example, evidence.target
    windows, effects = evidence.occlusion
    p, label = evidence.value, evidence.label
    order = effects.argsort(descending=True).tolist()
    best = order[0]
    if float(effects[best]) < LEAST_CHANGE:
        check = f"occlusion: at most {max(0.0, float(effects[best])):.2f} each"
        return Statement(f"No single step decides {label} ({p:.2f}).", check, True)
    single = [i for i in order if windows[i][1] - windows[i][0] == 1 and float(effects[i]) >= LEAST_CHANGE]
    negations = [i for i in single if is_negation(example.steps[windows[i][0]])]
    candidates = [*negations, best]
    with torch.no_grad():
        deletes = subject.deletes and len(example.steps) > 1
        without = evidence.run(remove_windows(example.batch, [windows[i] for i in candidates], deletes))
    others = without.values if target.step is None else without.values[:, target.step]
    rivals = others.argmax(1).tolist()
    chosen, rival = next(
        ((i, r) for i, r in zip(candidates, rivals, strict=True) if r != target.output), (best, rivals[-1])
    )
    window, effect = windows[chosen], float(effects[chosen])
    word = evidence.name(*window)
    check = f"occlusion: {p:.2f} with it, {p - effect:.2f} without it"
    if rival != target.output:
        verb, it = ("turn", "them") if word.startswith("steps ") else ("turns", "it")
        text = f"{word} {verb} the prediction to {label} ({p - effect:.2f} -> {p:.2f})"
        text += f"; without {it} the prediction is {evidence.inside.outputs.labels[rival]!r}."
    else:
        text = f"{label} ({p:.2f}) rests most on {word}, without which it is {p - effect:.2f}."
        text = text[0].upper() + text[1:]
    return Statement(text, check, True, window[0])


def _describe_contrast(evidence: Evidence) -> Statement | None:
    """Name the word at which a text turns, or after which it decides.

    The text turns if the model predicts something else from only the part before the word, and the final prediction
    from only the part after it. The part after it decides if it suffices for the prediction, and omitting it changes
    more than omitting any single step. Punctuation beside the word belongs to neither part.
    """
    subject, example, inside, target = evidence.subject, evidence.example, evidence.inside, evidence.target
    words = [t for t, word in enumerate(example.steps) if word.lower() in CONTRASTS]
    ends, starts = _find_parts(example.steps)
    words = [t for t in words if ends[t] > 0 and starts[t] < len(example.steps)]
    if not words or not subject.deletes or target.step is not None or inside.outputs.values.ndim != 2:
        return None
    with torch.no_grad():
        before = torch.cat([evidence.run(example.batch.cut(ends[t])).values for t in words])
        after = evidence.run(remove_windows(example.batch, [(0, starts[t]) for t in words], delete=True)).values
    p, k, label = evidence.value, target.output, evidence.label
    keeps = [i for i in range(len(words)) if int(after[i].argmax()) == k and float(after[i, k]) >= p - LEAST_TURN]
    if not keeps:
        return None
    best = max(keeps, key=lambda i: float(after[i, k] - before[i, k]))
    step, rival = words[best], int(before[best].argmax())
    left, now = float(before[best, k]), float(after[best, k])
    word = evidence.name(step, step + 1)
    if rival != k and p - left >= LEAST_TURN:
        was = f"{inside.outputs.labels[rival]!r} ({float(before[best, rival]):.2f})"
        text = f"Turns at {word}: {was} before it, {label} ({now:.2f}) after it."
    elif p - left >= max(LEAST_TURN, float(evidence.occlusion.effects.max())):
        text = f"What follows {word} decides {label} ({p:.2f}): {now:.2f} alone, {left:.2f} without it."
    else:
        return None
    check = f"occlusion: {p:.2f} with {word} and what follows, {left:.2f} without; {now:.2f} without what precedes"
    return Statement(text, check, True, step)


def _find_parts(steps: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Return, for each step, where the part before it ends and the part after it starts, without punctuation."""
    is_word = [any(letter.isalnum() for letter in step) for step in steps]
    ends, starts = [0] * len(steps), [len(steps)] * len(steps)
    for t in range(1, len(steps)):
        ends[t] = t if is_word[t - 1] else ends[t - 1]
    for t in range(len(steps) - 2, -1, -1):
        starts[t] = t + 1 if is_word[t + 1] else starts[t + 1]
    return ends, starts


def _describe_flip(evidence: Evidence) -> Statement | None:
    """Name the step at which the prediction changed to the final one."""
    (ends, values), (windows, effects), target = evidence.growth, evidence.occlusion, evidence.target
    if target.step is not None or len(ends) < 2:
        return None
    winners = values.argmax(1)
    other = (winners != target.output).nonzero()
    if not len(other) or int(other[-1]) + 1 >= len(ends):
        return None
    at = int(other[-1]) + 1
    step, (before, after) = ends[at], values[at - 1 : at + 1, target.output].tolist()
    index = next(i for i, (a, b) in enumerate(windows) if a <= step < b)
    effect, p = float(effects[index]), evidence.value
    return Statement(
        f"Changed its mind at {evidence.name(step, step + 1)} ({before:.2f} -> {after:.2f}).",
        f"occlusion: {p:.2f} with it, {p - effect:.2f} without it",
        effect >= LEAST_CHANGE,
        step,
    )


def _describe_unit(evidence: Evidence, step: int) -> list[Statement]:
    """Name the unit whose change at a step has the largest effect on the output, and what its gates did."""
    best: tuple[float, LayerView, int] | None = None
    for layer in evidence.inside.layers.values():
        if layer.effect is None or step >= len(layer.effect):
            continue
        unit = int(layer.effect[step].argmax())
        size = float(layer.effect[step, unit])
        if best is None or size > best[0]:
            best = size, layer, unit
    if best is None or best[0] <= 0:
        return []
    _, layer, unit = best
    before_step = step + 1 if layer.name.endswith("_reverse") else step - 1
    h = layer.tensors["h"]
    before = float(h[before_step, unit]) if 0 <= before_step < len(h) else 0.0
    clamp = Clamp(layer.name, "h", before, (unit,), (step, step))
    p, held = evidence.value, evidence.measure([clamp])
    place = f"unit {unit} of {layer.name}"
    action = _describe_gate(layer, unit, step, before_step)
    return [
        Statement(
            f"At {evidence.name(step, step + 1)}, {place} {action}: h {before:.2f} -> {float(h[step, unit]):.2f}.",
            f"held at {before:.2f} there: {p:.3f} becomes {held:.3f}",
            p - held >= LEAST_CHANGE / 4,
            step,
            (layer.name, unit),
        )
    ]


def _describe_gate(layer: LayerView, unit: int, step: int, before: int) -> str:
    """Return what the gate of a unit that changed most did."""
    changes = {}
    for letter, values in layer.tensors.items():
        if letter in ("h", "c") or letter.startswith("a(") or unit >= values.shape[1] or not 0 <= before < len(values):
            continue
        if values.min() < 0 or values.max() > 1:  # a candidate, not a gate
            continue
        changes[letter] = float(values[before, unit]), float(values[step, unit])
    if not changes:
        return "changed most for this output"
    letter = max(changes, key=lambda name: abs(changes[name][1] - changes[name][0]))
    was, now = changes[letter]
    rose, fell = GATE_WORDS.get((layer.cell, letter), (f"raised {letter} (it rose", f"lowered {letter} (it fell"))
    return f"{rose if now > was else fell} from {was:.2f} to {now:.2f})"


def _describe_attention(evidence: Evidence, step: int) -> list[Statement]:
    """Name what attention looks at in a step; checked by making all attention uniform."""
    example, inside = evidence.example, evidence.inside
    looks = [(layer, letter) for layer in inside.layers.values() for letter in layer.tensors if letter.startswith("a(")]
    text = ""
    if looks and step < len(looks[0][0].tensors[looks[0][1]]):
        layer = looks[0][0]
        shares = {letter: float(layer.tensors[letter][step].mean()) for name, letter in looks if name is layer}
        row = max(shares, key=lambda letter: shares[letter])
        text = f"At {evidence.name(step, step + 1)}, {layer.name} attends most to {row[2:-1]} ({shares[row]:.2f})"
        text += f"; equal weights would be {1 / len(shares):.2f}."
    elif inside.attention:
        name, weights = max(inside.attention.items(), key=lambda item: float(_received(item[1])[1]))
        key, share = _received(weights)
        if weights.shape[2] == len(example.steps):
            text = f"{name} attends most to {evidence.name(key, key + 1)} ({share:.2f} of all weights"
            text += f"; equal weights would be {1 / weights.shape[2]:.2f})."
    if not text:
        return []
    p, equal = evidence.value, evidence.measure((), uniform_attention=True)
    return [
        Statement(text, f"with equal weights everywhere: {p:.2f} becomes {equal:.2f}", abs(p - equal) >= LEAST_CHANGE)
    ]


def _received(weights: Array) -> tuple[int, float]:
    """Return the key with the largest mean weight (heads, T, S) and that weight."""
    mean = weights.mean((0, 1))
    return int(mean.argmax()), float(mean.max())


def _describe_beginning(evidence: Evidence) -> list[Statement]:
    """State how many steps at the end suffice for the same prediction."""
    subject, example = evidence.subject, evidence.example
    n = len(example.steps)
    if n < LEAST_STEPS or subject.is_per_step or subject.kind.aligns_text:
        return []
    p = evidence.value
    counts = sorted({round(n * share / 10) for share in range(1, 10)} - {0, n})
    remove = partial(remove_windows, example.batch, delete=subject.deletes)
    with torch.no_grad():
        left = read_target(evidence.run(remove([(0, k) for k in counts])), evidence.target)
    small = (left - p).abs() < SMALL_CHANGE
    count = 0
    for k, is_small, value in zip(counts, small.tolist(), left.tolist(), strict=True):
        if not is_small:
            break
        count, last = k, value
    if count < n // 3:
        return []
    rest = n - count
    which = f"The last {rest} of {n} steps alone give" if rest > 1 else f"The last of {n} steps alone gives"
    return [
        Statement(
            f"{which} the same prediction.",
            f"occlusion: {p:.2f} with the others, {last:.2f} without them",
            True,
        )
    ]


def _describe_value(evidence: Evidence) -> list[Statement]:
    """Name the steps that a predicted number depends on most."""
    (windows, effects), target = evidence.occlusion, evidence.target
    outputs = evidence.inside.outputs
    best = int(effects.abs().argmax())
    value, effect = evidence.value, float(effects[best])
    name = outputs.labels[target.output]
    where = "" if target.step is None else f" at {outputs.steps[target.step]}"
    share = float(effects.abs()[best] / effects.abs().sum().clamp(min=1e-12))
    word = evidence.name(*windows[best])
    return [
        Statement(
            f"{name}{where} is predicted as {value:.4g}; it depends most on {word} ({share:.0%} of all changes).",
            f"occlusion: {value:.4g} with it, {value - effect:.4g} without it",
            abs(effect) > 1e-3 * max(abs(value), 1e-12),
            windows[best][0],
        )
    ]


def is_negation(word: str) -> bool:
    """Return whether a word is a negation: one of the list, or an English verb with n't."""
    word = word.lower().replace("\u2019", "'")
    return word in NEGATIONS or word.endswith("n't")
